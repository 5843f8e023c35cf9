# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that a server's account can write and root reads."""

from __future__ import annotations

import itertools
import json
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import read_entry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise.state import (
    read_record,
    read_secrets,
    weight_records,
)

TRUE = {"hash": "ab", "pid": 7, "ticks": 9, "phase": "running", "since": 1.5,
        "started": 1.5, "starts": [1.5], "count": 1, "reason": None, "artifact": None,
        "weights": {"/w": None}}  # fmt: skip
NO_JSON = [b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 100_000, b'{"pid": ' + b"9" * 100_000 + b"}", b"\0"]
OTHER_TYPES = [b"[]", b"1", b'"text"', b"null", b"true", b"[[]]"]
WRONG = {
    "pid": [0.5, "7", -1, True, None, [7], 10**30], "ticks": ["9", -1, 1.5], "phase": [1, None, []],
    "starts": [None, "x", {}, ["x"], [float("nan")], [-1], [1e300], [10**20], [1] * 10_000],
    "since": ["x", float("inf"), -5, 10**18], "started": [[], "x"], "count": [1.5, -2, "1"],
    "weights": [[], {"/w": 1}, "x"], "reason": [1, ["x"]], "hash": [1, {}],
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".inference-fleet-manifest.json"


def manifest(path):
    return weight_records(os.path.dirname(path))


READERS = (read_record, read_entry, read_secrets, files.readable_json, manifest)


@pytest.mark.parametrize(("read", "content"), [
    *itertools.product(READERS, NO_JSON + OTHER_TYPES), (manifest, b'{"files": []}'), (manifest, b'{"files": {"a": 1}}')
])  # fmt: skip
def test_what_is_no_state_is_none(path, read, content):
    path.write_bytes(content)
    found = read(str(path))
    assert not found or (read is files.readable_json and found in (1, "text", True, [[]]))


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_record_of_other_types_is_none(path, key, value):
    path.write_text(json.dumps(dict(TRUE)))
    assert read_record(str(path)) == TRUE
    path.write_text(json.dumps({**TRUE, key: value}))
    assert read_record(str(path)) == {}


@pytest.mark.parametrize("kind", ["link", "fifo", "device", "large", "dangling link"])
@pytest.mark.parametrize("read", [read_record, read_entry, read_secrets])
def test_nothing_but_a_small_plain_file_is_read(tmp_path, path, read, kind, monkeypatch):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        monkeypatch.setattr(files, "MAX_JSON", 10)
        path.write_text(json.dumps({"name": "server-0"}))
    else:
        (tmp_path / "other").write_text(json.dumps({"name": "server-0"}))
        path.symlink_to({"link": tmp_path / "other", "device": "/dev/zero", "dangling link": "/gone"}[kind])
    assert not read(str(path))
    if kind in ("fifo", "device"):  # nothing waits
        assert [files.read_text(str(path)), files.read_bytes(str(path))] == [None, None]
        assert not files.is_locked(str(path))


def test_a_file_in_a_folder_of_others_gets_its_rights_by_its_handle(tmp_path, monkeypatch):
    """Whoever owns the folder could put a link in the place of a name."""
    for name in ("chmod", "chown"):
        monkeypatch.setattr(os, name, None)
    files.write_atomic(str(tmp_path / "x"), "text", 0o600, (os.getuid(), os.getgid()))
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_another_account_keeps_locked_is_waited_for_and_not_for_ever(tmp_path):
    with files.folder_lock(str(tmp_path)):
        with pytest.raises(TimeoutError):
            files.folder_lock(str(tmp_path), wait_s=0).__enter__()
        with files.folder_lock(str(tmp_path), wait_s=0, needed=False):
            pass
    with files.folder_lock(str(tmp_path), wait_s=0):
        pass
