# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""engine_servers replaces servers that were started by hand on planned ports, one after another."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.tests.unit.engines.small_node import ENGINE, SmallNode, rehash, watched
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until as wait
from ansible_collections.inference.fleet.tests.unit.operating import operate


@pytest.fixture
def node(tmp_path):
    with watched(tmp_path):
        one = SmallNode(tmp_path / "root")
        yield one
        one.end()


@pytest.fixture
def by_hand(tmp_path, node):
    """(entries of two planned servers, processes of engines on their ports)."""
    (tmp_path / "vllm").symlink_to(ENGINE)
    entries = [node.entry("server-%d" % number) for number in range(2)]
    argv = [sys.executable, "-S", str(tmp_path / "vllm"), "serve", "m", "--port"]
    processes = [subprocess.Popen([*argv, str(entry["port"])]) for entry in entries]
    try:
        wait(lambda: len(operate("foreign_servers", servers=entries, root=node.root)["found"]) == 2)
        yield entries, processes
    finally:
        for one in processes:
            one.kill()
            one.wait()


def test_servers_that_were_started_by_hand_are_replaced_in_turns(node, by_hand):
    entries, (first, second) = by_hand

    def wave(name, servers=entries, **options):
        return node.module("engine_servers", servers, changes="wave", only=[name], **options)

    assert wave("server-0")["code"] == "servers.port-held"
    planned = node.servers(entries, changes="one_by_one", adopt=True)
    assert planned["waves"] == [["server-0"], ["server-1"]]
    unready = [rehash(entries[0], weights=["/none"]), entries[1]]
    assert wave("server-0", unready, adopt=True)["code"] == "servers.not-prepared"
    assert (first.poll(), second.poll(), node.running("server-0")) == (None, None, [])

    assert not wave("server-0", adopt=True).get("failed")
    assert (first.wait(10) in (0, -15), second.poll()) == (True, None)
    assert not wave("server-1", adopt=True).get("failed")
    node.ready(entries)
    assert second.wait(10) in (0, -15)
