# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a server's starts."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import subprocess
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.tests.unit.engines import small_node


def test_the_state_of_another_server_or_a_broken_one_is_not_believed(place):
    entry = small_node.rehash(place.node.entry("server-0"), command=["true"])
    path = pathlib.Path(place.node.paths.server_state("server-0"))
    path.parent.mkdir(parents=True)
    for text in ('{"name": "server-1", "starts": [1, 2], "count": 9}', "{", "[]"):
        path.write_text(text, encoding="utf-8")
        assert place.run(entry).returncode == 0
        assert place.state(entry)["count"] == 1
    future = {"name": "server-0", "starts": [time.time() + 4000] * 5, "count": 5}
    path.write_text(json.dumps(future), encoding="utf-8")
    assert place.run(entry).returncode == 0  # the clock was set back; that is no start limit


def test_a_record_that_cannot_be_written_keeps_no_server_from_starting(place):
    """A full /run, or one that is read-only: the log says why neither status nor the start limit know."""
    (place.folder / "file").write_text("")
    entry = small_node.rehash(place.node.entry("server-0"), command=small_node.python_command("-c", "print('engine')"))
    place.write(entry)
    command = place.command(entry)
    record = str(place.folder / "file" / "servers" / "server-0.json")
    command[command.index("--state") + 1] = record
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line.partition(" guard: ")[2] or line for line in done.stdout.splitlines()]
    assert (done.returncode, lines[-1]) == (0, "engine")
    assert (
        "its record %s cannot be written (Not a directory), so neither status nor the start limit know of this: running"
        % record
    ) in lines


@pytest.mark.parametrize("name", ["ENOSPC", "EROFS", "EDQUOT", "EIO"])
def test_a_record_that_fails_half_way_leaves_no_file_behind(tmp_path, monkeypatch, name):
    path = tmp_path / "state.json"
    files.write_json(str(path), {"old": 1})

    def fail(*unused):
        raise OSError(getattr(errno, name), "no")

    monkeypatch.setattr(files.os, "rename", fail)
    with pytest.raises(OSError, match="no"):
        files.write_json(str(path), {"new": 1})
    assert os.listdir(tmp_path) == ["state.json"]
    assert files.readable_json(str(path)) == {"old": 1}
