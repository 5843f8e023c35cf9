# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the node have a limit of time, and nothing of them is left behind."""

from __future__ import annotations

import ast
import itertools
import os
import pathlib
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import commands, processes
from ansible_collections.inference.fleet.tests.unit.engines import small_node

PLUGINS = pathlib.Path(commands.__file__).parents[3]
CALLS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen",
         "posix_spawn", "posix_spawnp"}  # fmt: skip


def test_a_program_that_ends():
    done = commands.run(["/bin/sh", "-c", "cat; echo words >&2; exit 3"], text="é")
    assert (done.returncode, done.stdout, done.stderr) == (3, "é", "words\n")
    assert commands.run(["/bin/sh", "-c", "echo a; echo b >&2"], merged=True).stdout == "a\nb\n"


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"limit_s": 0.5}, "did not end"), ({"idle_s": 0.5}, "used no processor time")],
)
def test_what_hangs_is_named_and_ended_with_its_children(tmp_path, limits, words):
    """A child that holds the output open would keep the caller waiting after the program itself was killed."""
    script = "sleep 600 & echo $! > %s/child; exec sleep 600" % tmp_path
    with pytest.raises(commands.TimedOut) as caught:
        commands.run(["/bin/sh", "-c", script], **limits)
    assert caught.value.code == "node.command-timeout"
    assert (caught.value.values[0][:10], caught.value.values[1]) == ("/bin/sh -c", words)
    assert commands.hangs(caught.value)
    child = int((tmp_path / "child").read_text())
    small_node.wait_until(lambda: getattr(processes.process(child), "state", "Z") == "Z")


def test_what_makes_progress_has_time(tmp_path, monkeypatch):
    ticks = itertools.count()

    def working(_session):
        number = next(ticks)
        if number == 20:
            (tmp_path / "go").touch()
        return number

    monkeypatch.setattr(commands, "_processor_ticks", working)
    script = "while ! test -e %s/go; do sleep 0.01; done; echo through" % tmp_path
    assert commands.run(["/bin/sh", "-c", script], idle_s=0.01).stdout == "through\n"
    assert next(ticks) > 20


@pytest.mark.parametrize("number", sorted(commands.SCARCE))
def test_a_node_that_can_start_nothing_is_no_missing_program(monkeypatch, number):
    def refused(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(FleetError) as caught:
        commands.run(["nvidia-smi", "-q"])
    assert (caught.value.code, caught.value.values[0]) == ("node.no-process", "nvidia-smi -q")
    assert not commands.hangs(caught.value)


def test_a_program_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        commands.run(["/nonexistent/program"])


def test_a_command_line_in_a_message_has_no_login_and_an_end():
    assert commands.shown(["uv", "--index", "https://me:secret@host/a b"]) == "uv --index 'https://********@host/a b'"
    assert len(commands.shown(["x" * 1000])) == commands.SHOWN + 1


def test_nothing_on_nodes_is_started_any_other_way():
    found = set()
    for path in [*PLUGINS.glob("module_utils/**/*.py"), *PLUGINS.glob("modules/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            function = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            owner, _dot, name = function.rpartition(".")
            if (owner in ("subprocess", "os") and name in CALLS) or function == "module.run_command":
                found.add((path.name, name))
    assert found == {("commands.py", "Popen")}
