# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time at a destination, of whichever process, also while transfers of a failed run still write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import signal
import threading
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import lock as weight_lock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.lock import Busy, WeightLock
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.progress import Progress
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.run import Run
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import (
    Listing,
    SourceProblem,
    Wanted,
)
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until

SHARD = "model-00003-of-00014.safetensors"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(weight_lock, "POLL_S", 0.001)


@pytest.fixture
def destination(tmp_path):
    return str(tmp_path / "models" / "small")


@pytest.fixture
def held(tmp_path, destination):
    """A process that holds the lock until the file `go` is there, or it is killed: its pid."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    child = os.fork()
    if not child:
        try:
            with WeightLock(destination):
                begun.touch()
                wait_until(go.exists)
        finally:
            os._exit(0)
    wait_until(begun.exists)
    yield child
    go.touch()


def hidden(destination):
    """What lies beside the destination and is no weights."""
    folder = os.path.dirname(destination)
    return [name for name in os.listdir(folder) if name.startswith(".")] if os.path.isdir(folder) else []


class TestLock:
    def test_held_by_another_process(self, held, destination, tmp_path):
        with pytest.raises(Busy) as refused, WeightLock(destination, patience_s=0):
            pass
        assert refused.value.code == "weights.locked" and "process %d," % held in refused.value.message
        (tmp_path / "go").touch()
        with WeightLock(destination):
            assert hidden(destination) == [".small.inference-fleet-lock"]
        assert hidden(destination) == []

    def test_a_link_in_its_place_is_not_followed(self, destination, tmp_path):
        """Who can write to a share must not have root write elsewhere."""
        precious = tmp_path / "precious"
        precious.write_text("a")
        path = Path(weight_manifest.lock_of(destination))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(precious)
        for plant in (path.symlink_to, path.hardlink_to):
            path.unlink(missing_ok=True)
            plant(precious)
            with WeightLock(destination) as lock:
                assert len(lock.warnings) == 1
        assert precious.read_text() == "a"

    def test_whoever_waits_says_for_whom(self, held, destination, tmp_path):
        progress = Progress()
        lock = WeightLock(destination, progress)
        thread = threading.Thread(target=lock.take)
        thread.start()
        told = wait_until(lambda: progress.phase.startswith("waiting") and progress.snapshot())
        assert told["phase"].startswith("waiting for %s (process %d, since 2" % (os.uname().nodename, held))
        assert (told["bytes_done"], told["bytes_total"]) == (0, 0)
        (tmp_path / "go").touch()
        thread.join(60)
        assert lock.waited
        lock.release()

    def test_the_lock_of_a_killed_process_is_free(self, held, destination):
        os.kill(held, signal.SIGKILL)
        os.waitpid(held, 0)
        assert hidden(destination) == [".small.inference-fleet-lock"]
        with WeightLock(destination, patience_s=0) as lock:
            assert not lock.waited
        assert hidden(destination) == []

    def test_a_file_that_another_run_took_away_is_no_lock(self, destination, monkeypatch):
        """Opened while the other held it, locked when that had removed it: a third would lock a new file."""
        real, path = fcntl.flock, weight_manifest.lock_of(destination)
        gone = []

        def too_late(stream, how):
            if not gone:
                gone.append(os.unlink(path))
            real(stream, how)

        monkeypatch.setattr(fcntl, "flock", too_late)
        with WeightLock(destination), pytest.raises(Busy), WeightLock(destination, patience_s=0):
            pass
        assert gone and hidden(destination) == []

    def test_many_processes(self, destination, tmp_path):
        """Whoever is in makes a folder; nobody finds it there."""
        children = []
        for _number in range(6):
            children.append(os.fork())
            if not children[-1]:
                status = 1
                try:
                    for _turn in range(20):
                        with WeightLock(destination):
                            os.mkdir(tmp_path / "alone")
                            os.rmdir(tmp_path / "alone")
                    status = 0
                finally:
                    os._exit(status)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        assert hidden(destination) == []

    def test_a_file_system_without_locks(self, destination, monkeypatch):
        def refuse(*_given):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", refuse)
        with WeightLock(destination) as lock:
            assert len(lock.warnings) == 1
            assert hidden(destination) == []

    def test_where_nothing_can_be_written_nothing_is_locked(self, destination, monkeypatch):
        def refuse(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(weight_lock, "make_directory", refuse)
        with WeightLock(destination) as lock:
            assert not (lock.waited or lock.warnings)

    def test_who_may_not_open_it_does_not_go_on(self, destination, monkeypatch):
        os.makedirs(os.path.dirname(destination))
        os.mkdir(weight_manifest.lock_of(destination))  # no file that root could open either
        with pytest.raises(IsADirectoryError), WeightLock(destination):
            pass

    def test_a_mount_has_it_inside(self, destination, monkeypatch, tmp_path):
        os.makedirs(destination)
        mounts = tmp_path / "mounts"
        mounts.write_text("1 2 0:1 / %s rw - ext4 /dev/x rw\n" % destination)
        monkeypatch.setattr(files, "MOUNTS", str(mounts))
        with WeightLock(destination):
            assert os.listdir(destination) == [".inference-fleet-lock"]
            assert weight_manifest.own_manifest(destination, "a/b", "path") is None
        assert os.listdir(destination) == []


class Client:
    """Of a hub that gives what it lists, where a test does not hold it."""

    def __init__(self, files):
        self.files = files

    def listing(self):
        records = {
            path: {"size": content.size, "sha256": content.sha256, "oid": None} for path, content in self.files.items()
        }
        return Listing("c" * 40, "c" * 40, records)

    def read(self, listing, path, start, end):
        yield self.files[path].bytes()[start:end]


@pytest.fixture
def client():
    files = gpt_oss("made-up/small", 3000, seed=3).files
    return Client({path: files[path] for path in files if "/" not in path})


@pytest.fixture
def run(client, destination):
    wanted = Wanted("huggingface", "made-up/small", "main", destination, endpoint="https://hub", retries=0, workers=32)
    return lambda: Run(wanted, lambda _wanted: client)


def test_what_still_writes_after_a_failure_keeps_the_lock(run, client, destination):
    real, asked, go = client.read, threading.Event(), threading.Event()

    def read(listing, path, start, end):
        if path == SHARD:
            asked.set()
            go.wait(60)
        elif path.endswith(".safetensors"):
            asked.wait(60)
            raise SourceProblem("other", "broken")
        yield from real(listing, path, start, end)

    client.read = read
    with pytest.raises(FleetError):
        run().run()
    with pytest.raises(Busy), WeightLock(destination, patience_s=0):
        pass
    go.set()

    def free():
        gc.collect()
        with contextlib.suppress(Busy), WeightLock(destination, patience_s=0):
            return True

    wait_until(free)
