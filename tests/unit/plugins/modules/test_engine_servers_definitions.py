# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entries, definitions and links on a node that are not as this run has them: kept, or restarted once and said so."""

from __future__ import annotations

import os
import pathlib
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python as host_python
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from ansible_collections.inference.fleet.tests.unit.engines.small_node import SmallNode
from ansible_collections.inference.fleet.tests.unit.plugins.modules.engine_servers_calls import pids, row


def test_a_changed_service_definition_restarts_nothing(node):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    definition = supervisord.Supervisord(node.paths, sys.prefix).definition_path("server-0")
    for path in (definition, node.paths.etc + "/supervisord.conf"):
        text = pathlib.Path(path).read_text()
        pathlib.Path(path).write_text(text.replace("maxbytes=", "maxbytes=1"))
    result = node.servers([entry], check=True)
    assert row(result, "server-0")["reason"].startswith("would redefine: its service definition differs")
    assert "%s/supervisord.conf: differs from this" % node.paths.etc in result["diff"]["before"]
    result = node.servers([entry])
    assert (result["changed"], pids(result)) == (True, first)
    assert node.servers([entry])["changed"] is False
    second = pids(node.servers([entry], state="restarted"))
    assert second != first
    assert node.servers([entry])["changed"] is False


def test_another_python_of_the_node_changes_a_link_alone(node, tmp_path):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    link = host_python.link(node.paths)
    chosen = os.readlink(link)
    host_python.put(node.paths, str(tmp_path / "gone"))
    result = node.servers([entry], check=True)
    assert result["diff"] == {"before": link + ": to another Python\n", "after": "%s: to %s\n" % (link, chosen)}
    result = node.servers([entry])
    assert (result["changed"], pids(result), os.readlink(link)) == (True, first, chosen)
    assert node.servers([entry])["changed"] is False


def test_a_root_whose_path_is_too_long_for_a_socket(tmp_path):
    node = SmallNode(tmp_path / ("a-long-name-" * 8))
    try:
        entry = node.entry("server-0")
        node.servers([entry])
        manager = supervisord.Supervisord(node.paths, sys.prefix)
        assert len(manager.socket) < 100
        assert oct(os.stat(manager.socket_folder).st_mode & 0o777) == "0o700"
        assert node.servers([entry])["changed"] is False
        node.servers([entry], state="absent")
        assert not os.path.exists(manager.socket_folder)
    finally:
        node.end()
