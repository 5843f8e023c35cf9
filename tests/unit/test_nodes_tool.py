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
