# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the node have a limit of time, and nothing of them is left behind; jobs outlive their call."""

from __future__ import annotations

import ast
import fcntl
import itertools
import os
import pathlib
import signal
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import commands, processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import jobs as detached_jobs
from ansible_collections.inference.fleet.tests.unit.engines import plans, small_node

PLUGINS = pathlib.Path(commands.__file__).parents[3]
CALLS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen",
         "posix_spawn", "posix_spawnp"}  # fmt: skip


def test_a_program_that_ends():
    done = commands.run(["/bin/sh", "-c", "cat; echo words >&2; exit 3"], text="é")
    assert (done.returncode, done.stdout, done.stderr) == (3, "é", "words\n")
    assert commands.run(["/bin/sh", "-c", "echo a; echo b >&2"], merged=True).stdout == "a\nb\n"
    with pytest.raises(FileNotFoundError):
        commands.run(["/nonexistent/program"])


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


# ---- jobs


class Job(detached_jobs.DetachedJob):
    def begin(self, script):
        with self.judging():
            return self.launch(["/bin/sh", "-c", script], {}, {})

    def belongs_to(self, pid):
        """As if the system had given the group's number to this process."""
        pathlib.Path(self.path("pid")).write_text("%d\n" % pid)


@pytest.fixture
def job(tmp_path):
    """A job that is not started yet; what it started is killed at the end."""
    one = Job(str(tmp_path / "jobs" / "one"))
    os.makedirs(one.folder)
    yield one
    if one.alive():
        one.stop()


def test_two_who_look_at_once_do_not_take_each_other_for_the_job_and_what_it_left_is_ended(job):
    job.begin("exit 0").wait()
    with open(job.path("lock"), "rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not job.alive()
    job.begin("sleep 900 & exit 0").wait()
    assert job.alive()
    job.stop()
    assert not job.alive()


def test_one_that_ignores_the_first_signal_is_killed(job, monkeypatch):
    monkeypatch.setattr(detached_jobs, "TERM_S", 0.1)
    process = job.begin("trap '' TERM; touch %s.ready; sleep 900; sleep 900" % job.folder)
    small_node.wait_until(lambda: os.path.exists(job.folder + ".ready"))
    job.stop()
    assert process.wait(60) == -signal.SIGKILL


def test_a_group_of_somebody_else_is_not_ended(job, monkeypatch):
    with subprocess.Popen(["sleep", "900"], start_new_session=True) as stranger:
        job.begin("exit 0").wait()
        job.belongs_to(stranger.pid)
        job.stop()
        monkeypatch.setattr(detached_jobs, "TERM_S", 0.1)
        monkeypatch.setattr(detached_jobs, "KILL_S", 0.1)
        first = job.begin("sleep 900")
        job.belongs_to(stranger.pid)
        error = plans.error(job.stop)
        assert (error.code, error.values[0]) == ("jobs.cannot-end", str(stranger.pid))
        assert small_node.alive(stranger.pid)
        job.belongs_to(first.pid)
        stranger.kill()
