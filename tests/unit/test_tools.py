# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools of tools/: nodes.py where no node can be started, matrix.py, checks.py, hardware_check.py."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tools import hardware_check, matrix

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


@pytest.mark.parametrize(("words", "status", "passed"), [
    ("fine", 0, True), ("fine", 1, False), ("WARNING default > verify: Executed: Missing playbook", 0, False),
])  # fmt: skip
def test_a_scenario_with_a_missing_step_has_not_passed(scenarios, monkeypatch, tmp_path, words, status, passed):
    monkeypatch.setattr(scenarios, "ROOT", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script(tmp_path / ".venv" / "bin" / "molecule", 'echo "%s"; echo "$@" >&2; exit %d\n' % (words, status))
    assert scenarios.molecule("default", {}) == (passed, [words, "test --no-command-borders -s default"])


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


def test_each_release_gets_the_oldest_python_that_it_takes():
    found, left_out = matrix.choose(ALL, {(3, minor): Path("python3.%d" % minor) for minor in (10, 14, 15)})
    assert found == dict.fromkeys(["2.20", "2.21", "2.22"], Path("python3.14"))
    assert list(left_out) == ["2.19"]


@pytest.mark.parametrize(("status", "printed", "fails"), [
    (0, "PLAY RECAP", False), (2, "fatal", True),
    (0, "[DEPRECATION WARNING]: old. This feature will be removed from ansible-core version 2.23.", True),
])  # fmt: skip
def test_a_deprecation_is_a_failure(tmp_path, status, printed, fails):
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "ansible-playbook", "echo '%s'\nexit %d\n" % (printed, status))
    one = matrix.Controller("2.21", tmp_path)
    one.port = 24000
    with pytest.raises(matrix.Failed) if fails else contextlib.nullcontext():
        assert one.play("plan.yml", "inventories/trn3") == printed + "\n"


def test_the_page_and_the_collection_have_the_same_releases():
    page = (ROOT / "docs" / "using" / "support.md").read_text()
    rows = re.findall(r"^\| (2\.\d+) \| ([\d., ]+) \|", page, re.MULTILINE)
    assert {release: pythons.split(", ") for release, pythons in rows} == {
        release: ["3.%d" % minor for minor in range(oldest[1], newest[1] + 1)]
        for release, (oldest, newest) in matrix.RELEASES.items()
    }
    asked = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["requires_ansible"]
    assert asked == ">=%s.0" % ALL[0]


# -- checks and hardware_check -----------------------------------------------------------------------------------------

STEP = "import sys; print('at ' + ' '.join(sys.argv[1:])); raise SystemExit(3 if sys.argv[1] == 'bad' else 0)"


def test_a_failure_fails_the_run_and_stops_no_other_target(monkeypatch, capsys):
    checks = loaded(monkeypatch, "checks")
    monkeypatch.setattr(checks.nodes, "end_engine", lambda: None)
    make = (sys.executable, "-c", STEP)
    assert checks.main(["a"], make=make) == 0
    assert checks.main(["bad", "b/part", "c"], make=make) == 1
    shown = [re.sub(r" +", " ", line) for line in capsys.readouterr().out.splitlines()]
    assert shown[-2:] == ["checks: the end of bad:", "at bad"]
    assert {"[c] at c", "[part] at b SCENARIO=part"} < set(shown)


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
