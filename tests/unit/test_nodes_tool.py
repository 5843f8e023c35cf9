# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/nodes.py where there is nothing to start nodes with; tests/nodes uses it for real."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.tools import engine_venv

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "nodes.py"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("nodes_of_this_test", TOOL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(module, "KEY", tmp_path / "cache" / "id_ed25519")
    monkeypatch.setattr(module, "DAEMON", tmp_path / "dockerd.json")
    monkeypatch.setattr(module, "SOCKET", tmp_path / "docker.sock")
    monkeypatch.setattr(module, "engine_runs", lambda: False)
    monkeypatch.setattr(module.os, "getuid", lambda: 1000)
    return module


@pytest.mark.parametrize(("ci", "status"), [("", 3), ("true", 1)])
def test_what_is_left_out_is_said_and_fails_in_ci(tool, monkeypatch, capsys, ci, status):
    monkeypatch.setenv("CI", ci)
    assert tool.status_of(tool.main, ["create", "one"]) == status
    assert capsys.readouterr().err == (
        "nodes: left out: no Docker engine runs, and only root can start one. Start Docker, or run this as root.\n"
    )
    assert tool.status_of(tool.main, ["destroy"]) == 0


def test_a_platform_without_nodes_is_told(tool, monkeypatch, capsys):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(tool, "platform_names", lambda: ["cpu", "slow"])
    assert tool.status_of(tool.main, ["create", "one", "--platform", "abacus"]) == 1
    assert capsys.readouterr().err == "nodes: there is no platform 'abacus' of nodes; there are: cpu, slow.\n"


def test_a_rootfs_must_not_replace_a_link_of_the_image(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "PLATFORMS", tmp_path)
    rootfs = tmp_path / "odd" / "rootfs"
    (rootfs / "lib").mkdir(parents=True)
    (tmp_path / "odd" / "platform.json").write_text('{"description": "x"}')
    with pytest.raises(RuntimeError) as caught:
        tool.read_platform("odd")
    assert str(caught.value) == "%s: /lib is a link to /usr/lib; put it there." % rootfs


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


def test_the_platforms_of_this_clone_are_right(tool):
    assert "cpu" in tool.platform_names()
    for name in tool.platform_names():
        assert tool.read_platform(name).groups, name


def test_a_share_that_is_wrong_is_told(tool, tmp_path):
    for name, words in (
        ("vemv", "there is no share 'vemv'; there are: controller-wheels, dynamo-packages, dynamo-venv, encodings, "
                 "neuron-packages, nvidia-packages, service-archives, "
                 "venv, wheels. Any folder: FOLDER:PLACE."),
        ("/nowhere/at/all:/opt", "--share /nowhere/at/all:/opt: FOLDER must exist here, and PLACE be absolute."),
        ("%s:opt" % tmp_path, "--share %s:opt: FOLDER must exist here, and PLACE be absolute." % tmp_path),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as caught:
            tool.shared([name])
        assert str(caught.value) == words
    assert tool.shared(["%s:/opt/x" % tmp_path]) == [(tmp_path, "/opt/x")]


@pytest.fixture
def scenarios(tool, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOL.parent))
    monkeypatch.setitem(sys.modules, "nodes", tool)
    monkeypatch.delitem(sys.modules, "scenarios", raising=False)
    yield importlib.import_module("scenarios")
    sys.modules.pop("scenarios")


def test_scenarios_are_left_out_aloud_and_fail_in_ci(scenarios, monkeypatch, capsys):
    monkeypatch.setattr(scenarios, "scenario_names", lambda soak=False: ["long"] if soak else ["default", "other"])
    for ci, status in (("", 0), ("true", 1)):
        monkeypatch.setenv("CI", ci)
        assert scenarios.main([]) == status
        assert capsys.readouterr().err == (
            "scenarios: left out: default, other: no Docker engine runs, and only root can start one. "
            "Start Docker, or run this as root.\n"
        )
    assert scenarios.main(["defualt"]) == 2
    assert capsys.readouterr().err == "scenarios: unknown: defualt; allowed: default, other, long.\n"


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


FAILED = """\
fatal: [node]: FAILED!
    It is rescued.
fatal: [node]: FAILED!
    Assertion failed
PLAY RECAP *****
CRITICAL Ansible return code was 2
"""


@pytest.mark.parametrize(
    ("screen", "shown"),
    [
        (FAILED, FAILED.splitlines()[2:] + FAILED.splitlines()[-1:]),
        ("WARNING  one > verify: Executed: Missing playbook\n", ["WARNING  one > verify: Executed: Missing playbook"]),
        ("molecule: killed\n", ["molecule: killed"]),
        ("", []),
    ],
)
def test_the_failure_of_a_scenario_is_repeated_at_the_end(scenarios, monkeypatch, tmp_path, capsys, screen, shown):
    monkeypatch.setattr(scenarios, "ROOT", tmp_path)
    monkeypatch.setattr(scenarios, "scenario_names", lambda soak=False: ["good", "one"])
    monkeypatch.setattr(scenarios.nodes, "build", lambda: None)
    monkeypatch.setattr(scenarios.nodes, "end_engine", lambda: None)
    program = tmp_path / ".venv" / "bin" / "molecule"
    program.parent.mkdir(parents=True)
    (tmp_path / "screen").write_text(screen)
    program.write_text('#!/bin/sh\n[ "$4" = good ] || { cat "%s/screen"; exit 1; }\n' % tmp_path)
    program.chmod(0o755)
    assert scenarios.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("scenarios: what failed first in one:")
    assert lines[at + 1 :] == shown
    assert [line.split()[1:3] for line in lines[at - 2 : at]] == [["good", "ok"], ["one", "failed"]]


def test_the_environment_that_another_clone_lends_is_told_where_it_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEET_TEST_VENV", str(tmp_path))
    with pytest.raises(RuntimeError) as caught:
        engine_venv.ensure()
    assert str(caught.value) == "FLEET_TEST_VENV: %s has no bin/python." % tmp_path
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert engine_venv.ensure() == tmp_path
    assert engine_venv.base_prefix(tmp_path) == pathlib.Path(sys.base_prefix)


def test_missing_programs_are_told_where_they_cannot_be_installed(tool):
    with pytest.raises(tool.Unavailable) as caught:
        tool.ensure_packages({"no-such-program": "docker.io", "sh": "dash", "nor-this-one": "debootstrap"})
    assert str(caught.value) == "debootstrap and docker.io missing. Install: debootstrap docker.io."


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_mirror_may_falter_once(tool, monkeypatch, failures):
    """The second try finds nothing of the first."""
    calls = []

    def call(argv, **others):
        calls.append(argv[0])
        if argv[0] == "debootstrap":
            (tool.CACHE / "rootfs").mkdir()
        elif argv[0] == "tar":
            (tool.CACHE / "rootfs.tar").write_text("")
        return subprocess.CompletedProcess(argv, int(calls.count("debootstrap") <= failures))

    tool.CACHE.mkdir()
    monkeypatch.setattr(tool, "docker", lambda *arguments: "")
    monkeypatch.setattr(tool, "ensure_packages", lambda programs: None)
    monkeypatch.setattr(tool.os, "getuid", lambda: 0)
    monkeypatch.setattr(tool.subprocess, "run", call)
    if failures < 2:
        assert tool.build_base().startswith("inference-fleet-node-base:")
        assert calls == ["debootstrap"] * (failures + 1) + ["tar"]
    else:
        with pytest.raises(tool.Unavailable) as caught:
            tool.build_base()
        assert str(caught.value) == "debootstrap failed; see %s." % (tool.CACHE / "debootstrap.log")
        assert calls == ["debootstrap"] * 2


def test_an_engine_that_is_not_ours_is_not_ended(tool, monkeypatch):
    """The record names a process that is gone, and its number belongs to another by now."""
    monkeypatch.delenv(tool.KEEP, raising=False)  # as in `make nodes`, not as one of the targets of `make test`
    monkeypatch.setattr(tool.os, "kill", lambda *unused: pytest.fail("it was ended"))
    tool.end_engine()
    tool.DAEMON.write_text('{"pid": %d, "ticks": 1, "clone": "/"}' % tool.os.getpid())
    tool.end_engine()
    assert not tool.DAEMON.exists()
