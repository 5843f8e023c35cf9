# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a destination; waiting, killed runs, mounts and planted links are in tests of the operation."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest, staging
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.staging import Busy, WeightLock


@pytest.fixture
def destination(tmp_path):
    (tmp_path / "models").mkdir()
    return str(tmp_path / "models" / "small")


@pytest.fixture
def hidden(tmp_path):
    """The hidden files next to the destination."""
    return lambda: [path.name for path in (tmp_path / "models").glob(".*")]


def busy(destination):
    """Whether another run holds the lock."""
    try:
        with WeightLock(destination, patience_s=0):
            return False
    except Busy:
        return True


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
    monkeypatch.setattr(staging, "POLL_S", 0.001)
    with WeightLock(destination):
        assert busy(destination) and os.stat(path).st_mode & 0o777 == 0o600
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
