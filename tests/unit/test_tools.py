# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools of tools/: nodes.py where no node can be started, matrix.py, checks.py, hardware_check.py."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
import tomllib
import yaml
from ansible_collections.inference.fleet.tools import hardware_check, matrix
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def loaded(monkeypatch, name):
    """A tool, loaded for one test."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location(name + "_of_this_test", ROOT / "tools" / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


# -- nodes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tool(monkeypatch, tmp_path):
    module = loaded(monkeypatch, "nodes")
    for name, path in (("CACHE", "cache"), ("KEY", "cache/id_ed25519"), ("DAEMON", "dockerd.json"),
                       ("SOCKET", "docker.sock")):  # fmt: skip
        monkeypatch.setattr(module, name, tmp_path / path)
    monkeypatch.setattr(module, "engine_runs", lambda: False)
    monkeypatch.setattr(module.os, "getuid", lambda: 1000)
    return module


@pytest.mark.parametrize(("ci", "status"), [("", 3), ("true", 1)])
def test_what_is_left_out_is_said_and_fails_in_ci(tool, monkeypatch, capsys, ci, status):
    monkeypatch.setenv("CI", ci)
    assert tool.status_of(tool.main, ["create", "one"]) == status
    assert capsys.readouterr().err.startswith("nodes: left out: no Docker engine runs")
    assert tool.status_of(tool.main, ["destroy"]) == 0


def test_an_image_is_made_again_when_its_rootfs_or_that_of_a_layer_changes(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "PLATFORMS", tmp_path)
    rootfs = tmp_path / "one" / "rootfs"
    rootfs.mkdir(parents=True)
    (tmp_path / "upper").mkdir()
    (tmp_path / "one" / "platform.json").write_text('{"description": "x"}')
    (tmp_path / "upper" / "platform.json").write_text('{"description": "x", "layers": ["one"]}')
    seen = [tool.read_platform("upper").content()]
    for change in (
        lambda: (rootfs / "file").write_text("a"),
        lambda: (rootfs / "file").write_text("b"),
        lambda: (rootfs / "file").chmod(0o755),
        lambda: (rootfs / "link").symlink_to("file"),
        lambda: (tmp_path / "one" / "platform.json").write_text('{"description": "x", "links": {"a": "file"}}'),
    ):
        change()
        seen.append(tool.read_platform("upper").content())
    assert all(one != other for index, one in enumerate(seen) for other in seen[:index])


@pytest.fixture
def scenarios(tool, monkeypatch):
    monkeypatch.setitem(sys.modules, "nodes", tool)
    monkeypatch.delitem(sys.modules, "scenarios", raising=False)
    yield importlib.import_module("scenarios")
    sys.modules.pop("scenarios")


def test_scenarios_are_left_out_aloud_and_fail_in_ci(scenarios, monkeypatch, capsys):
    monkeypatch.setattr(scenarios, "scenario_names", lambda soak=False: ["long"] if soak else ["default", "other"])
    for ci, status in (("", 0), ("true", 1)):
        monkeypatch.setenv("CI", ci)
        assert scenarios.main([]) == status
        assert capsys.readouterr().err.startswith("scenarios: left out: default, other: no Docker engine runs")
    assert scenarios.main(["defualt"]) == 2


@pytest.mark.parametrize(
    ("words", "status", "passed"),
    [("fine", 0, True), ("fine", 1, False), ("WARNING default > verify: Executed: Missing playbook", 0, False)],
)
def test_a_scenario_with_a_missing_step_has_not_passed(
    scenarios, monkeypatch, tmp_path, capsys, words, status, passed
):  # fmt: skip
    monkeypatch.setattr(scenarios, "ROOT", tmp_path)
    program = tmp_path / ".venv" / "bin" / "molecule"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "%s"; echo "$@" >&2; exit %d\n' % (words, status))
    program.chmod(0o755)
    lines = [words, "test --no-command-borders -s default"]
    assert scenarios.molecule("default", {}) == (passed, lines)
    assert capsys.readouterr().out.splitlines() == lines


def test_an_engine_that_is_not_ours_is_not_ended(tool, monkeypatch):
    """The record names a process that is gone, and its number belongs to another by now."""
    monkeypatch.delenv(tool.KEEP, raising=False)  # as in `make nodes`, not as one of the targets of `make test`
    monkeypatch.setattr(tool.os, "kill", lambda *unused: pytest.fail("it was ended"))
    tool.end_engine()
    tool.DAEMON.write_text('{"pid": %d, "ticks": 1, "clone": "/"}' % tool.os.getpid())
    tool.end_engine()
    assert not tool.DAEMON.exists()


# -- matrix ------------------------------------------------------------------------------------------------------------

ALL = list(matrix.RELEASES)
PYTHONS = {(3, minor): Path("/usr/bin/python3.%d" % minor) for minor in range(9, 17)}


@pytest.mark.parametrize(
    ("minors", "chosen", "missing"),
    [
        ((11, 13), {"2.19": 11, "2.20": 13, "2.21": 13, "2.22": 13}, []),
        ((14, 15), {"2.20": 14, "2.21": 14, "2.22": 14}, ["2.19"]),
        ((9, 10, 16), {}, ["2.19", "2.20", "2.21", "2.22"]),
    ],
)
def test_each_release_gets_the_oldest_python_that_it_takes(minors, chosen, missing):
    available = {(3, minor): PYTHONS[3, minor] for minor in minors}
    found, left_out = matrix.choose(ALL, available)
    assert found == {release: PYTHONS[3, minor] for release, minor in chosen.items()}
    assert list(left_out) == missing


def test_the_one_of_make_test_is_another_than_that_of_the_clone():
    for chosen, own, one in ((["2.19", "2.22"], "2.22", "2.19"), (["2.19"], "2.19", "2.19")):
        assert matrix.other(dict.fromkeys(chosen), own) == one


@pytest.mark.parametrize(
    ("status", "printed", "fails"),
    [
        (0, "PLAY RECAP", None),
        (0, "[DEPRECATION WARNING]: old. This feature will be removed from ansible-core version 2.23.",
         "plan.yml under ansible-core 2.21: [DEPRECATION WARNING]"),
        (2, "fatal", "plan.yml under ansible-core 2.21: exit status 2"),
    ],
)  # fmt: skip
def test_a_deprecation_is_a_failure(tmp_path, status, printed, fails):
    program = tmp_path / "bin" / "ansible-playbook"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '%s'\nexit %d\n" % (printed, status))
    os.chmod(program, 0o755)
    one = matrix.Controller("2.21", tmp_path)
    one.port = 24000
    if fails is None:
        assert one.play("plan.yml", "inventories/trn3") == printed + "\n"
        return
    with pytest.raises(matrix.Failed) as caught:
        one.play("plan.yml", "inventories/trn3")
    assert str(caught.value) == printed + "\n\n" + fails


def test_the_page_has_the_same_releases():
    rows = re.findall(
        r"^\| (2\.\d+) \| ([\d., ]+) \|", (ROOT / "docs" / "using" / "support.md").read_text(), re.MULTILINE
    )
    assert {release: pythons.split(", ") for release, pythons in rows} == {
        release: ["3.%d" % minor for minor in range(oldest[1], newest[1] + 1)]
        for release, (oldest, newest) in matrix.RELEASES.items()
    }


def test_the_collection_asks_for_the_oldest_release():
    asked = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["requires_ansible"]
    assert asked == ">=%s.0" % ALL[0]


@pytest.mark.parametrize("minor", range(11, 16))
def test_the_clone_is_developed_on_a_supported_release_for_each_python(minor):
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (one,) = [
        requirement
        for requirement in map(Requirement, wanted)
        if requirement.name == "ansible-core" and requirement.marker.evaluate({"python_version": "3.%d" % minor})
    ]
    possible = [
        release for release, (oldest, newest) in matrix.RELEASES.items()
        if oldest <= (3, minor) <= newest and one.specifier.contains(release + ".1")
    ]  # fmt: skip
    newest = [release for release, (oldest, last) in matrix.RELEASES.items() if oldest <= (3, minor) <= last][-1]
    assert possible[-1] == newest  # the newest that this Python runs, once it is out
    assert not one.specifier.contains("2.23.0")


# -- checks and hardware_check -----------------------------------------------------------------------------------------

STEP = "import sys; print('at ' + ' '.join(sys.argv[1:])); raise SystemExit(3 if sys.argv[1] == 'bad' else 0)"


@pytest.fixture
def checks(monkeypatch):
    module = loaded(monkeypatch, "checks")
    monkeypatch.setattr(module.nodes, "end_engine", lambda: None)
    return module


def run(checks, capsys, *arguments):
    status = checks.main(arguments, make=(sys.executable, "-c", STEP))
    shown = re.sub(r" +", " ", capsys.readouterr().out)
    return status, re.sub(r" \d+ s, \d+ s of CPU ", " N s ", shown).splitlines()


def test_a_failure_fails_the_run_and_stops_no_other_target(checks, capsys):
    assert run(checks, capsys, "a", "b/part")[0] == 0
    status, lines = run(checks, capsys, "bad", "b/part", "c")
    assert status == 1
    assert lines[-5:] == [
        "checks: bad N s FAILED, exit status 3",
        "checks: part N s ok",
        "checks: c N s ok",
        "checks: the end of bad:",
        "at bad",
    ]
    assert {"[c] at c", "[part] at b SCENARIO=part"} < set(lines)


def test_a_star_is_every_scenario_of_make_test(checks):
    names = [step.arguments for step in checks.parse(["molecule/*"])]
    assert ["molecule", "SCENARIO=default"] in names
    assert not [name for name in names if "soak" in name[1]]


UUID = "8f4d2a3c-1b2e-4c5d-9e8f-0123456789ab"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("GPU 0: NVIDIA B200 (UUID: GPU-%s)" % UUID, "GPU 0: NVIDIA B200 (UUID: GPU-UUID)"),
        ("<serial>165</serial><board_id>0x1b00</board_id>", "<serial>SERIAL</serial><board_id>SERIAL</board_id>"),
        ("Serial Number : 2102C", "Serial Number : SERIAL"),
        ("<pdi>0x1234</pdi> GPU PDI : 0x1234", "<pdi>SERIAL</pdi> GPU PDI : SERIAL"),
        ("instance-id: i-0123456789abcdef0", "instance-id: INSTANCE"),
        ("link/ether 0a:1b:2c:3d:4e:5f brd", "link/ether MAC brd"),
        ("http://10.1.2.3:8000/v1", "http://ADDRESS:8000/v1"),
        ("http://127.0.0.1:8000, driver 580.105.08, aws-neuronx-dkms 2.31.7.0, 0.24.0.1.1.0", None),
        ("ok: [node-1] node-12 my.node-1 node-1.example", "ok: [host-1] node-12 my.node-1 host-2"),
    ],
)
def test_identifiers(given, expected):
    hosts = {"node-1": "host-1", "node-1.example": "host-2"}
    assert hardware_check.scrub(given, hosts) == (given if expected is None else expected)
