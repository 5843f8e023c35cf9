# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of doctor.yml: each names the fault that is made here, and none finds anything on a healthy node."""

from __future__ import annotations

import base64
import functools
import json
import os
import pathlib
import re
import time
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import doctor as checks
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.discover import Operation
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.doctor import NotChecked, findings, row
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.commands import TimedOut
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import doctor
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations.check import packed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORMS
from ansible_collections.inference.fleet.tests.unit.engines.nvidia_node import NvidiaNode
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.operating import answering

CLONE = pathlib.Path(__file__).resolve().parents[4]
FIXTURES = CLONE / "tests" / "unit" / "fixtures"
CHECKS = checks.CHECKS
OF_SERVERS = ("servers", "restarts", "logs", "sampling", "services", "proxies")
ETCD = {"name": "etcd", "urls": ["http://127.0.0.1:1"], "greeting": ""}
KEY = "sk-Zq7Xw2Vb9Nm4Lp8Rt6Ks3Hd5"


@pytest.fixture
def case(tmp_path):
    """A healthy node with one server."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"x" * 4096)
    entry = plan_entry(8000, weights=[str(weights)])
    made = types.SimpleNamespace(
        tree=NvidiaNode(tmp_path / "sysroot"), paths=NodePaths(str(tmp_path / "root")), platform=gpus([]),
        hardware={}, entries={"server-0": entry}, weights={str(weights): 300}, now=1000.0, received=1002.0, log=[],
        row={"name": "server-0", "state": "running", "ready": True, "reason": None, "differences": []},
        secrets=lambda name: {}, given={"secrets": {"fleet_api_key": KEY}},
    )  # fmt: skip
    made.system = System(made.tree.root)
    made.rows = [made.row]
    manager = types.SimpleNamespace(log_tail=lambda name, lines: made.log, definition_path=lambda name: "/nowhere")
    made.node = lambda: types.SimpleNamespace(manager=manager, paths=made.paths)
    kernel(made, "usb 1-1: new device")
    os.makedirs(made.paths.state)
    made.folder = weights
    return made


def write(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pathlib.Path(path).write_text(json.dumps(value))


def kernel(case, line):
    case.tree.program("journalctl", "#!/bin/sh\necho '2026-01-15T10:32:05+0000 n1 kernel: %s'\n" % line)


def change(case, **keys):
    case.entries["server-0"] = plan_entry(8000, **{"weights": [str(case.folder)], **keys})


def gpus(faults):
    """A platform with one GPU."""
    device = types.SimpleNamespace(id=0, faults=faults)
    return types.SimpleNamespace(
        present=lambda system: True, detect=lambda system: types.SimpleNamespace(devices=[device], as_dict=dict),
        kernel_faults=PLATFORMS["nvidia"].kernel_faults,
    )  # fmt: skip


def starts(case):
    write(case.paths.server_state("server-0"), {"name": "server-0", "phase": "restarting", "starts": [time.time()] * 3,
                                                "reason": "it ended with status 1"})  # fmt: skip


def logged(line):
    def make(case):
        case.row.update(ready=False)
        case.log.append(line)

    return make


def top_p(case):
    """In a link, as the cache of a hub's client has it."""
    (case.folder / "blob").write_text('{"top_p": 0.9}')
    (case.folder / "generation_config.json").symlink_to("blob")


FAULTS = [
    ("hardware", lambda case: setattr(case, "platform", gpus(["GPU 0 (0000:8f:00.0) is lost. Reboot the node."])),
     "doctor.device-faulty", "GPU 0"),
    ("kernel", lambda case: kernel(case, "NVRM: Xid (PCI:0000:8f:00): 48, pid=1, DBE (double bit error)"),
     "doctor.hardware-error", "Xid"),
    ("kernel", lambda case: kernel(case, "Out of memory: Killed process 7 (VLLM::EngineCor) total-vm:1kB"),
     "doctor.out-of-memory", "VLLM::EngineCor"),
    ("kernel", lambda case: kernel(case, "I/O error, dev nvme0n1, sector 7 op 0x0:(READ)"), "doctor.disk-error",
     "nvme0n1"),
    ("kernel", lambda case: kernel(case, "mce: [Hardware Error]: Machine check events logged"),
     "doctor.hardware-error", "Machine check"),
    ("kernel", lambda case: kernel(case, "INFO: task python3:77 blocked for more than 120 seconds."),
     "doctor.hardware-error", "python3:77"),
    ("clock", lambda case: setattr(case, "received", 700.0), "doctor.clock", "300 s behind"),
    ("services", lambda case: change(case, start={"after": [], "needs": [ETCD]}), "doctor.service-away",
     "http://127.0.0.1:1"),
    ("proxies", lambda case: change(case, environment={"http_proxy": "http://proxy:3128"}), "doctor.proxy",
     "127.0.0.1"),
    ("proxies", lambda case: change(case, start={"after": [], "needs": [{**ETCD, "urls": ["tcp://etcd-1:2379"]}]},
                                    environment={"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "127.0.0.1"}),
     "doctor.proxy", "etcd-1"),
    ("servers", lambda case: case.row.update(differences=[{"kind": "file mode", "text": "it has mode 0644"}]),
     "doctor.server-differs", "mode 0644"),
    ("restarts", starts, "doctor.restart-loop", "status 1"),
    ("logs", logged("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.81 GiB."), "doctor.log",
     "ran out of memory"),
    ("sampling", top_p, "doctor.sampling", "generation_config.json"),
    ("sampling", lambda case: change(case, arguments={"override-generation-config": '{"top_p": 0.95}'}),
     "doctor.sampling", "0.95"),
]  # fmt: skip


def checked(name, case):
    return findings(name, functools.partial(CHECKS[name], case))


@pytest.mark.parametrize(("check", "make", "code", "words"), FAULTS)
def test_a_fault_is_named(case, check, make, code, words):
    assert checked(check, case)[0]["ok"] is not False
    make(case)
    (found,) = checked(check, case)
    assert (found["ok"], found["code"]) == (False, code)
    assert found["page"] == "docs/using/errors.md#" + code.replace(".", "")
    assert words in found["cause"]
    assert found["remedy"]
    assert found["server"] == ("server-0" if check in OF_SERVERS else None)


@pytest.mark.parametrize("free", [{"f_bavail": 10, "f_frsize": 4096}, {"f_favail": 7}])
def test_a_full_disk_is_named(case, monkeypatch, free):
    found = {"f_bavail": 9000, "f_blocks": 10000, "f_frsize": 4 << 20, "f_files": 100000, "f_favail": 90000, **free}
    assert checked("disk", case)[0]["ok"] is True
    monkeypatch.setattr(checks.os, "statvfs", lambda path: types.SimpleNamespace(**found))
    assert {one["code"] for one in checked("disk", case)} == {"doctor.disk-full"}


def test_a_slow_disk_is_named(case, monkeypatch):
    assert checked("read-rate", case)[0]["ok"] is True
    monkeypatch.setattr(checks, "read_rate", lambda path: 4.0)
    (found,) = checked("read-rate", case)
    assert found["code"] == "doctor.disk-slow"


@pytest.mark.parametrize("said", ["exit 1", "echo"])
def test_a_log_of_the_kernel_that_cannot_be_read(case, said):
    case.tree.program("journalctl", "#!/bin/sh\n%s\n" % said)
    assert [one["ok"] for one in checked("kernel", case)] == [None]


@pytest.mark.parametrize("platform", ["neuron", "ascend"])
def test_lines_of_drivers(case, platform):
    """Each line that is a fault is found, and none of those that are known as harmless."""
    kernel(case, "NVRM: Xid (PCI:0000:8f:00): 43, pid=1, Ch 00000010")  # of a process that has ended
    assert [one["ok"] for one in checked("kernel", case)] == [True]
    case.platform = PLATFORMS[platform]
    for kind, code in (("faults", "doctor.hardware-error"), ("harmless", None)):
        lines = (FIXTURES / platform / ("kernel-%s.txt" % kind)).read_text(encoding="utf-8").splitlines()
        for line in lines:
            kernel(case, line)
            assert [one["code"] for one in checked("kernel", case)] == [code], line


def test_a_check_that_fails_is_a_finding():
    def broken():
        yield FleetError("test.first", "It is bad.\nCorrect it.")
        raise KeyError("x")

    def impossible():
        raise NotChecked("no such thing here")

    found = findings("one", broken)
    assert (found[0]["code"], found[0]["cause"]) == ("test.first", "It is bad")
    assert found[1]["code"] == "doctor.check-failed"
    assert findings("two", impossible) == [row("two", None, "no such thing here")]
    details = {"problems": [{"check": "ports", "message": "It is bad. Stop it."}]}
    (found,) = findings("node_preflight", lambda: [FleetError("test.problems", "Two.", details=details)])
    assert (found["check"], found["cause"], found["remedy"]) == ("node_preflight: ports", "It is bad", "Stop it.")


@pytest.fixture
def operations():
    """operations.run() with operations that return or raise operations.results."""
    results = {}
    answers = answering(results)

    def found(name):
        return Operation({}, None) if name == "engine_servers" else answers(name)

    def run(folder, looks, entries=(), **params):
        given = {"looks": [{"step": "prepare", "operation": name, "arguments": {}} for name in looks],
                 "root": str(folder), "servers": packed(list(entries)), "verify": None, "now": time.time(),
                 "bundle": False, "sysroot": "", **params}  # fmt: skip
        serve = {"root": str(folder), "manager": "supervisord", "toolkit": None, "only": None, "secrets": None}
        answer = doctor.doctor(given, True, found, lambda operation, arguments: {**serve, **arguments})
        return {one["check"]: one for one in answer["findings"]}

    return types.SimpleNamespace(results=results, run=run)


def test_no_operation_ends_the_others(operations, tmp_path):
    hangs = TimedOut("test.timeout", "'docker' did not end")
    operations.results.update(
        one=FleetError("test.bad", "It is bad."), two={"changed": True, "message": "would install it"},
        three={"changed": False}, four=hangs, five={"changed": False},
    )  # fmt: skip
    found = operations.run(tmp_path, ("one", "two", "unknown", "three", "four", "five"))
    ok = {name: found[name]["ok"] for name in ("one", "two", "unknown", "three", "four", "five")}
    assert ok == {"one": False, "two": False, "unknown": None, "three": True, "four": False, "five": None}
    assert (found["one"]["code"], found["two"]["code"]) == ("test.bad", "doctor.step-differs")
    assert found["servers"]["ok"] is None  # no planned server


def test_a_failed_probe_has_its_cause(operations, tmp_path, monkeypatch):
    cause = "fewer workers are registered than planned, although /health is 200: see the missing workers' logs"
    probes = [{"name": "census", "ok": False, "cause": cause}, {"name": "model-id", "ok": None, "cause": None}]
    operations.results["endpoint_verify"] = {"verdicts": [{"server": "server-0", "probes": probes}]}
    row = {"name": "server-0", "state": "running", "ready": True, "reason": None, "differences": []}
    monkeypatch.setattr(doctor.Case, "rows", [row])
    entry = plan_entry(8000)
    found = operations.run(tmp_path, (), [entry], verify={"servers": [entry]})["verification"]
    assert (found["code"], found["server"]) == ("doctor.probe-failed", "server-0")
    assert "probe census because fewer workers" in found["cause"]
    assert "see the missing workers' logs" in found["remedy"]


def test_a_bundle_has_no_secret(case):
    """Not in another encoding either, nor in pieces."""
    token, password = "hf_AbCdEfGhIjKlMnOpQrStUv", "pr0xy/w0rd"
    deployed, logged = "sk-Dp4Wn8Xc2Vb6Jm0Lq5Tz", "Lg7-t3apot-9Vx"  # in a file, in an address of a log
    change(case, environment={"HTTPS_PROXY": "http://me:%s@proxy:3128" % password, "MY_TOKEN": token})
    case.secrets = lambda name: {"VLLM_API_KEY": deployed}
    write(case.paths.secret("server-0"), {"VLLM_API_KEY": deployed})
    hidden = [KEY, token, password, KEY[:12], token[5:19], deployed[4:18], "http://me:%s@etcd:2379" % logged, logged]
    for secret in (KEY, token, deployed):
        for before in ("", "u", "us", "user:"):
            hidden.append(base64.b64encode((before + secret).encode()).decode())
    case.log += ["a line with %s in it" % one for one in hidden] + ["Authorization: Bearer abcdefgh12345", "hello"]
    write(case.paths.entry("server-0"), case.entries["server-0"])
    found = checks.bundle(case, list(case.entries.values()), [])
    assert {"findings.json", "plan.json", "deployed/server-0.json", "logs/server-0.log", "logs/kernel.log",
            "versions.json"} <= set(found)  # fmt: skip
    assert found["logs/server-0.log"].endswith("hello")
    text = "\n".join(found.values())
    encoded = [base64.b64encode(("xyz"[:before] + one).encode()).decode()[4:-4] for one in (KEY, token, deployed)
               for before in range(3)]  # fmt: skip
    for secret in (KEY, token, password, deployed, logged, "abcdefgh12345", *encoded):
        pieces = [secret[at : at + 10] for at in range(max(1, len(secret) - 9))]
        assert [piece for piece in pieces if piece in text] == []


def test_a_bundle_follows_no_link_and_takes_files_with_anything_in_them(case, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "MOST", 1000)
    private = tmp_path / "shadow"
    private.write_text("root:private")
    for name in ("server-0", "server-1"):
        write(case.paths.entry(name), {"config": 5, "environment": [1]})
    write(case.paths.venvs + "/mine/.inference-fleet.json", [1])
    os.symlink(private, case.paths.server_state("server-0"))
    with open(case.paths.server_state("server-1"), "wb") as stream:
        stream.truncate(1 << 40)  # sparse
        stream.seek(0, os.SEEK_END)
        stream.write(b"end")
    found = checks.bundle(case, [], [])
    assert "root:private" not in "".join(found.values())
    assert found["records/server-1.json"].endswith("end") and len(found["records/server-1.json"]) == checks.MOST


def test_the_page_names_every_check():
    page = (CLONE / "docs" / "using" / "doctor.md").read_text(encoding="utf-8")
    before = page.partition("## Troubleshooting sections of the guides")[0]
    assert set(re.findall(r"(?m)^\| `([a-z-]+)` \|", before)) == {*CHECKS, "verification", "plan"}
