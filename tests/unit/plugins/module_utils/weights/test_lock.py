# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time at a destination, of whichever process, also while transfers of a failed run still write.

Waiting, killed runs and planted links: model_weights_hub/test_jobs.py, test_weights_security.py.
"""

from __future__ import annotations

import errno
import fcntl
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest, staging
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.staging import Busy, WeightLock
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until

SHARD = "model-00003-of-00014.safetensors"
LOCK = ".small.inference-fleet-lock"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(staging, "POLL_S", 0.001)


@pytest.fixture
def destination(tmp_path):
    (tmp_path / "models").mkdir()
    return str(tmp_path / "models" / "small")


@pytest.fixture
def hidden(tmp_path):
    """The hidden files next to the destination."""
    return lambda: [path.name for path in (tmp_path / "models").glob(".*")]


@pytest.fixture
def held(tmp_path, destination):
    """A process that holds the lock until the file `go` is there: its pid."""
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


def busy(destination):
    """Whether another run holds the lock."""
    try:
        with WeightLock(destination, patience_s=0):
            return False
    except Busy:
        return True


def test_a_run_waits_for_that_of_another_process(held, destination, hidden, tmp_path):
    with pytest.raises(Busy) as refused, WeightLock(destination, patience_s=0):
        pass
    assert refused.value.code == "weights.locked" and "process %d," % held in refused.value.message
    assert hidden() == [LOCK] and os.stat(tmp_path / "models" / LOCK).st_mode & 0o777 == 0o600
    (tmp_path / "go").touch()
    with WeightLock(destination):
        assert busy(destination)
    assert hidden() == []


@pytest.mark.parametrize("put", [lambda path: None, os.mkfifo])
def test_a_file_that_another_run_removed_is_no_lock(destination, hidden, monkeypatch, put):
    """Opened while the other held it, locked when that had removed it: a third would lock a new file. Whoever may
    write to the folder could put something else there, which is not waited for."""
    real, path, gone = fcntl.flock, manifest.lock_of(destination), []

    def too_late(stream, how):
        if not gone:
            gone.append(os.unlink(path))
            put(path)
        real(stream, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with WeightLock(destination):
        assert busy(destination)
    assert gone and hidden() == []


@pytest.mark.parametrize(
    ("owner", "name", "number", "warnings"),
    [(fcntl, "flock", errno.ENOLCK, 1), (staging, "make_directory", errno.EACCES, 0)],
)
def test_where_nothing_can_be_locked_a_run_goes_on(destination, hidden, monkeypatch, owner, name, number, warnings):
    def refuse(place, *_more):
        raise OSError(number, os.strerror(number), str(place))

    os.rmdir(os.path.dirname(destination))
    monkeypatch.setattr(owner, name, refuse)
    with WeightLock(destination) as lock:
        assert (lock.waited, len(lock.warnings), hidden()) == (False, warnings, [])


def test_who_may_not_open_it_does_not_go_on(destination):
    os.mkdir(manifest.lock_of(destination))  # no file that root could open either
    with pytest.raises(IsADirectoryError), WeightLock(destination):
        pass


def test_a_mount_has_it_inside(destination, monkeypatch, tmp_path):
    os.makedirs(destination)
    (tmp_path / "mounts").write_text("1 2 0:1 / %s rw - ext4 /dev/x rw\n" % destination)
    monkeypatch.setattr(files, "MOUNTS", str(tmp_path / "mounts"))
    with WeightLock(destination):
        assert os.listdir(destination) == [".inference-fleet-lock"]
        assert manifest.own_manifest(destination, "a/b", "path") is None
    assert os.listdir(destination) == []
