# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that outlive their call: who lives, and whose group is ended."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import jobs as detached_jobs
from ansible_collections.inference.fleet.tests.unit.engines import plans, small_node


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


@pytest.fixture
def stranger():
    """A process of somebody else, in a group of its own."""
    one = subprocess.Popen(["sleep", "900"], start_new_session=True)
    yield one.pid
    one.kill()
    one.wait()


def test_two_who_look_at_once_do_not_take_each_other_for_the_job(job):
    job.begin("exit 0").wait()
    with open(job.path("lock"), "rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not job.alive()
    job.begin("sleep 900")
    assert job.alive()
    job.stop()
    assert not job.alive()


def test_what_the_first_process_left_behind_is_ended(job):
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


def test_a_group_of_somebody_else_is_not_ended(job, stranger, monkeypatch):
    job.begin("exit 0").wait()
    job.belongs_to(stranger)
    job.stop()
    monkeypatch.setattr(detached_jobs, "TERM_S", 0.1)
    monkeypatch.setattr(detached_jobs, "KILL_S", 0.1)
    first = job.begin("sleep 900")
    job.belongs_to(stranger)
    error = plans.error(job.stop)
    assert (error.code, error.values[0]) == ("jobs.cannot-end", str(stranger))
    assert small_node.alive(stranger)
    job.belongs_to(first.pid)
