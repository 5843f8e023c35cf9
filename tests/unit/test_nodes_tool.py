# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/nodes.py where there is nothing to start nodes with; tests/nodes uses it for real."""

from __future__ import annotations

import importlib.util
import pathlib
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
    assert tool.main(["create", "one"]) == status
    assert capsys.readouterr().err == (
        "nodes: left out: no Docker engine runs, and only root can start one. Start Docker, or run this as root.\n"
    )
    assert tool.main(["destroy"]) == 0


def test_a_platform_without_nodes_is_told(tool, monkeypatch, capsys):
    monkeypatch.delenv("CI", raising=False)
    assert tool.main(["create", "one", "--platform", "abacus"]) == 3
    assert capsys.readouterr().err == (
        "nodes: left out: there is no node of the platform 'abacus'; there are: cpu.\n"
    )  # fmt: skip


def test_missing_programs_are_told_where_they_cannot_be_installed(tool):
    with pytest.raises(tool.Unavailable) as caught:
        tool.ensure_packages({"no-such-program": "docker.io", "sh": "dash", "nor-this-one": "debootstrap"})
    assert str(caught.value) == "debootstrap and docker.io missing. Install: debootstrap docker.io."


def test_an_engine_that_is_not_ours_is_not_ended(tool, monkeypatch):
    """The record names a process that is gone, and its number belongs to another by now."""
    monkeypatch.setattr(tool.os, "kill", lambda *unused: pytest.fail("it was ended"))
    tool.end_engine()
    tool.DAEMON.write_text('{"pid": %d, "ticks": 1, "clone": "/"}' % tool.os.getpid())
    tool.end_engine()
    assert not tool.DAEMON.exists()
