# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksums are taken by who writes a file; it is read again only where something else wrote of it."""

from __future__ import annotations

import hashlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.hub import (
    Desired,
    digest,
    huggingface,
    modelscope,
)
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Content, Repository

CLIENTS = {"huggingface": huggingface, "modelscope": modelscope}
CONTENT = bytes(range(256)) * 20_000


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


@pytest.fixture
def unread(monkeypatch):
    """No file is read again."""
    monkeypatch.setattr(digest.files, "sha256_file", lambda *_given, **_named: pytest.fail("read again"))


def write(one, path, mode, *pieces):
    with one.open(path, mode) as stream:
        for piece in pieces:
            stream.write(piece)


def test_it_is_kept_over_attempts(path, unread):
    one = digest.Digest()
    write(one, path, "ab", b"a" * 1000, b"b")
    write(one, path, "ab", b"c")
    assert one.of(path) == sha256(b"a" * 1000 + b"bc")


def test_what_another_process_began_is_read_once(path, unread):
    with open(path, "wb") as stream:
        stream.write(b"begun")
    one = digest.Digest()
    write(one, path, "ab", b" and", b" ended")
    assert one.of(path) == sha256(b"begun and ended")


def test_a_file_that_is_begun_anew(path, unread):
    one = digest.Digest()
    write(one, path, "ab", b"wrong")
    with one.open(path, "ab") as stream:
        stream.write(b"more of it")
        stream.seek(0)
        stream.truncate()
        stream.write(b"right")
    assert one.of(path) == sha256(b"right")
    write(one, path, "wb", b"again")
    assert one.of(path) == sha256(b"again")


def test_a_file_that_was_written_by_others_is_read(path):
    one = digest.Digest()
    write(one, path, "ab", b"of this run")
    with open(path, "ab") as stream:
        stream.write(b", and more")
    assert one.of(path) == sha256(b"of this run, and more")


@pytest.mark.parametrize("source", sorted(CLIENTS))
@pytest.mark.parametrize("begun", [0, 2_000_000])
def test_the_clients_write_through_it(source, tmp_path, unread, begun, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Hub([Repository("a/b", {"file": Content(CONTENT)})]) as hub:
        client = CLIENTS[source].Client(Desired(source, "a/b", "main", "/models/b", hub.endpoint, timeout_s=60), None)
        listing = client.listing()
        if begun:
            (tmp_path / "file.incomplete").write_bytes(CONTENT[:begun])
        one = digest.Digest()
        client.fetch(listing, "file", str(tmp_path), one)
        assert hub.sent("a/b", "file") == len(CONTENT) - begun
    assert one.of(str(tmp_path / "file")) == sha256(CONTENT)
