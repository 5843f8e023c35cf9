# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""logs.yml, status.yml, doctor.yml and site.yml against servers that print, answer and write down what would move a
cursor, forge lines of a run, or show the API key.

One deployment below a temporary root for all: servers of one small program under supervisord, whose answers, logs and
records each test writes.
"""

from __future__ import annotations

import json
import os
import tarfile
import unicodedata
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    ENGINE,
    NEEDS,
    SUPERVISED,
    SmallNode,
    free_port,
    host_variables,
    python_command,
    watched,
)
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import hosts_file

KEY = "sk-Zq7Xw2Vb9Nm4Lp8Rt6Ks3Hd5"
COUNT = 5  # servers
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters
PIECE = 5  # characters of it that nothing may show
FORGED = "PLAY RECAP *********\nn1 : ok=9 changed=0 unreachable=0 failed=0\nfatal: [n9]: FORGED"
RAW = (
    "\x1b[2J\x1b[1;1H\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x1b\\\x9b31m\x9d0;t\x9cnul\x00bell\x07back\x08\x08"
    "bidi\u202egnol\u2066x\u2069line\u2028para\u2029next\x85form\x0cvertical\x0bzero\u200bmark\ufefftag\U000e0041"
)
SAYS = "%s\r%s\n{{ 12345679 * 9 }} \x1b[8m%s\x1b[0m\nTASK [forged]\r\n" % (RAW, FORGED, KEY)


class Site:
    """n1 with five servers; answers, logs and records of each are a test's to write."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "root"
        self.node = SmallNode(self.root)
        self.reports = folder / "reports"
        (folder / "model").mkdir()
        override = {
            "servers": {"server": {"count": COUNT, "port": free_port()}}, "needs": NEEDS,
            "model": {"path": str(folder / "model")}, "command": python_command(ENGINE, "--answers", str(folder)),
        }  # fmt: skip
        self.host = host_variables(
            self.root, 8, fleet_api_key=KEY, fleet_reports_dir=str(self.reports), fleet_verify="quick",
            fleet_override=override, **SUPERVISED,
        )  # fmt: skip
        plan = folder / "plan.json"
        self.play("plan", "-e", "fleet_plan_file=%s" % plan).ok()
        self.entries = {entry["name"]: entry for entry in json.loads(plan.read_text())["n1"]}

    def deploy(self):
        entries = list(self.entries.values())
        self.node.servers(entries, secrets={"fleet_api_key": KEY})
        self.node.ready(entries, 300)

    def play(self, playbook, *arguments, **options):
        inventory = hosts_file(self.folder, {"n1": self.host})
        return play("playbooks/%s.yml" % playbook, inventory, *arguments, timeout=600, **options)

    def log(self, number):
        return Path(self.node.paths.log_file("server-%d" % number))

    def secrets(self, number):
        return Path(self.node.paths.secret("server-%d" % number))

    def record(self, number):
        return Path(self.node.paths.server_state("server-%d" % number))

    def link_record(self, number):
        """A link in the place of a record, to one of the same process; returns what it leads to."""
        record, other = self.record(number), self.folder / "other"
        said = {"phase": "failed", "reason": "of another server"}
        other.write_text(json.dumps({**json.loads(record.read_text()), **said}))
        record.unlink()
        record.symlink_to(other)
        return other

    def answers(self, number, **given):
        """given: words for a path → (status, body)."""
        paths = {"health": "/health", "models": "/v1/models", "chat": "/v1/chat/completions"}
        file = self.folder / ("%d.json" % self.entries["server-%d" % number]["port"])
        file.write_text(json.dumps({paths[word]: answer for word, answer in given.items()}))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with watched(folder):
        one = Site(folder)
        try:
            one.deploy()
            yield one
        finally:
            one.node.end()


@pytest.fixture
def site(deployed):
    """The deployment, whose servers are well again afterwards."""
    paths = [path for number in range(COUNT) for path in (deployed.record(number), deployed.secrets(number))]
    kept = {path: path.read_bytes() for path in paths}
    yield deployed
    for path, data in kept.items():
        if not path.is_symlink() and path.read_bytes() == data:
            continue  # when it was written counts too
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o600 if "secrets" in path.parts else 0o640)
    for number in range(COUNT):
        deployed.answers(number)
        deployed.log(number).unlink()
        deployed.log(number).write_text("")


def pieces(text):
    """Pieces of the key that a text shows."""
    return [KEY[at : at + PIECE] for at in range(len(KEY) - PIECE + 1) if KEY[at : at + PIECE] in text]


def strings(value):
    """All strings in a JSON value."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return [one for item in value for one in strings(item)] if isinstance(value, list) else [str(value)]


def clean(text):
    """A text that people see: nothing unseen in it, and nothing of the key."""
    assert sorted({one for one in text if unicodedata.category(one) in UNSEEN and one not in "\n\t"}) == []
    assert pieces(text) == []


def shown_well(run):
    """Nothing raw on the screen; Ansible's own lines are the only ones of their kind."""
    clean(run.output)
    assert "{{ 12345679 * 9 }}" in run.output
    assert "111111111" not in run.output
    lines = run.output.split("\n")
    assert len([line for line in lines if line.startswith("PLAY RECAP")]) == 1
    assert [line for line in lines if line.startswith(("n1 : ok=9", "fatal: [n9]", "TASK [forged]"))] == []


def cut_at(characters, most):
    """A text whose key has only its first `characters` where it is cut to `most` with an ellipsis."""
    return "y" * (most - 1 - characters) + KEY + "z" * 50


def block_of(run, server):
    """What logs.yml shows of a server, without blanks: lines may be folded."""
    heading = "- == %s (" % server
    assert run.output.count(heading) == 1
    block = run.output.partition(heading)[2].partition("- == server")[0].partition("PLAY RECAP")[0]
    return "".join(block.split()).replace("'", "")


def test_logs(site):
    """The second log is one line of a MiB; where its end begins that is read, seven characters are left of the key."""
    long = (KEY + "x" * 37).encode() * (1 << 14)
    end = b"e" * ((50 * 4000 - len(b"nd\n") + len(KEY) - 7) % 64) + b"nd\n"
    assert (long + end)[-50 * 4000 :].startswith(KEY[-7:].encode() + b"x")
    site.log(0).write_bytes(b"first\n" + SAYS.encode() + b"\xff\xfe\n== server-1 (running) ==\nlast\n")
    site.log(1).write_bytes(long + end)
    site.log(2).write_bytes(b"before\n" + long + b"\nafter\n")
    site.log(3).unlink()
    (site.folder / "other").write_text("of another server")
    site.log(3).symlink_to(site.folder / "other")
    site.log(4).unlink()
    os.mkfifo(site.log(4))
    site.secrets(0).write_text("{}")
    run = site.play("logs").ok()
    shown_well(run)
    assert len(run.output) < 20000
    assert "->==server-1(running)==" in block_of(run, "server-0")
    assert block_of(run, "server-0").endswith("-last")
    assert "\u2026" in block_of(run, "server-1") and block_of(run, "server-1").endswith("end")
    assert block_of(run, "server-2").endswith(")==-after")
    for number in (3, 4):
        assert block_of(run, "server-%d" % number).endswith("server-%d.logisnoplainfile,andisnotread." % number)


def test_status(site):
    says = "%s %s" % (SAYS, "w" * 200)
    site.answers(0, health=(500, cut_at(7, 200)))
    site.answers(1, models=(200, json.dumps({"data": [{"id": says}, {"id": KEY}]})))
    site.answers(2, models=(401, cut_at(8, 200)))
    site.secrets(2).write_text("{}")
    site.link_record(3)
    record = json.loads(site.record(4).read_text())
    site.record(4).write_text(json.dumps({**record, "phase": "p" * 95 + KEY, "reason": "r" * 1991 + KEY}))
    file = site.folder / "status.json"
    run = site.play("status", "-e", "fleet_status_file=%s" % file)
    shown_well(run)
    assert run.status == 2
    for server, words in (("server-0: ", "health: HTTP 500 yyy"), ("server-1: ", "models: 'gpt-oss-small' is not"),
                          ("server-2: changed: secrets; ", "set fleet_api_key to it: models: HTTP 401 yyy"),
                          ("server-3: ", "the record of its start is gone"), ("server-4: ", "ppp")):  # fmt: skip
        assert words in run.output.rpartition("\n    " + server)[2].partition("\n")[0]  # of the failure
    assert run.output.count("y***\u2026\n") == 4
    assert "of another server" not in run.output
    for word in strings(json.loads(file.read_text())):
        clean(word)


def test_doctor_and_its_bundle(site):
    """Secrets of the inventory, which the node does not know, are masked on the control node."""
    token, password, proxy = secrets = ("hf_Yw8Rt3Kp6Zn1Vc5Xb9Lm2Qs7", "wQ7-kettle-5Tz", "Pr0xy-6Hb2Vd9Jw4")
    site.log(0).write_text("\n".join([SAYS, *secrets, token[3:20], "http://me:%s@proxy" % password, "last"]) + "\n")
    site.answers(1, chat=(500, "CUDA out of memory " + KEY))
    site.link_record(3)
    site.host.update(fleet_hf_token=token, ansible_become_password=password,
                     fleet_proxy_env={"HTTPS_PROXY": "http://me:%s@proxy:3128" % proxy})  # fmt: skip
    bundle = site.folder / "made" / "bundle.tar.gz"
    run = site.play("doctor", "-e", "fleet_bundle=%s" % bundle)
    assert run.status == 2
    found = json.loads((site.reports / "doctor.json").read_text())
    wrong = {(one["server"], one["code"]) for one in found["hosts"]["n1"]["findings"] if one["ok"] is False}
    assert {("server-1", "doctor.server-differs"), ("server-1", "doctor.probe-failed")} <= wrong
    assert not {one for one in wrong if one[0] == "server-4"}
    with tarfile.open(bundle) as archive:
        files = {one.name: archive.extractfile(one).read().decode() for one in archive}
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert files["bundle/n1/logs/server-0.log"].endswith("last")
    assert {"deployed", "services"} <= {name.split("/")[2] for name in files if name.count("/") == 3}
    text = run.output + "".join(strings(found)) + "".join(files.values())
    assert pieces(text) == []
    assert [one[at : at + 10] for one in secrets for at in range(len(one) - 9) if one[at : at + 10] in text] == []


def test_a_failing_run_and_its_report(site):
    """What would be read of the first server's log waits for ever; the fourth gives the run something to do."""
    other = site.link_record(3)
    before = other.read_bytes()
    site.log(0).unlink()
    os.mkfifo(site.log(0))
    site.answers(0, models=(401, cut_at(7, 200)))
    site.log(1).write_bytes(SAYS.encode())
    site.answers(1, chat=(500, SAYS))
    run = site.play("site", "--tags", "serve,verify", "--skip-tags", "preflight")
    shown_well(run)
    run.failed("it refuses the API key that it was started with; restart it: models: HTTP 401 yyy")
    assert "completion: HTTP 500 \u241b[2J" in run.output
    assert "Last log lines: fatal: [n9]: FORGED | {{ 12345679 * 9 }} \u241b[8m***\u241b[0m | TASK [forged]." in (
        run.output
    )
    assert other.read_bytes() == before
    assert "server-3 runs as process" in run.output  # it restarts when the others answer
    assert "of another server" not in run.output
    page = (site.reports / "verdict.html").read_text()
    assert "\u241b[2J" in page
    assert "{{ 12345679 * 9 }}" in page
    files = [path for path in site.reports.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".html", ".json"}
    for path in files:
        text = path.read_text()
        clean(text)
        for word in strings(json.loads(text)) if path.suffix == ".json" else ():
            clean(word)
