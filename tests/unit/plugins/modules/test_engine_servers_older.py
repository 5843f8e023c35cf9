# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release of before left on a node: kept, or restarted once and said so."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import sys

from ansible_collections.inference.fleet.plugins.module_utils.node import files, processes
from ansible_collections.inference.fleet.plugins.module_utils.node import python as node_python
from ansible_collections.inference.fleet.plugins.module_utils.services import supervisord
from ansible_collections.inference.fleet.plugins.module_utils.supervise import archive
from ansible_collections.inference.fleet.tests.unit.engines.small_node import SmallNode, rehash, wait_until
from ansible_collections.inference.fleet.tests.unit.plugins.modules.engine_servers_calls import environment, pids, row


def test_an_older_entry_that_still_runs_is_restarted(node):
    entry = node.entry("server-0")
    node.servers([entry])
    newer = rehash(entry, environment={"OMP_NUM_THREADS": "2"})
    # a run that was cut off between writing and starting
    with open(node.paths.entry("server-0"), "w", encoding="utf-8") as stream:
        json.dump(newer, stream)
    assert row(node.module("engine_servers_info", [newer]), "server-0")["drift"] == (
        "changed: it runs an older entry than the deployed one"
    )
    result = node.servers([newer], check=True)
    assert row(result, "server-0")["reason"] == "would restart: it runs an older entry than the deployed one"
    pid = pids(node.servers([newer]))["server-0"]
    assert environment(pid)[b"OMP_NUM_THREADS"] == b"2"


def test_a_changed_service_definition_restarts_nothing(node):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    definition = supervisord.Supervisord(node.paths, sys.prefix).definition_path("server-0")
    for path in (definition, node.paths.etc + "/supervisord.conf"):
        text = pathlib.Path(path).read_text()
        pathlib.Path(path).write_text(text.replace("maxbytes=", "maxbytes=1"))
    result = node.servers([entry], check=True)
    assert row(result, "server-0")["reason"] == "would redefine: its service definition differs"
    assert result["diff"]["before"] == (
        "server-0:\n  state: running\n  service: another definition\n%s/supervisord.conf: another version\n"
        % node.paths.etc
    )
    result = node.servers([entry])
    assert (result["changed"], pids(result)) == (True, first)
    assert node.servers([entry])["changed"] is False
    second = pids(node.servers([entry], state="restarted"))
    assert second != first
    assert node.servers([entry])["changed"] is False


def test_a_node_with_the_guard_of_before_gets_todays_and_restarts_nothing(node):
    """Then two scripts lay there, one beside the other. While a guard of then waits, it may still read the second."""
    leader = node.entry("leader", "--wait-for", node.root + "/never")
    entries = [leader, node.entry("server-0", start={"after": ["leader"]})]
    node.servers(entries)
    state = node.paths.server_state("server-0")
    wait_until(lambda: (files.readable_json(state) or {}).get("phase") == "waiting for leader")
    old = pathlib.Path(node.paths.lib, "lib", "container_engine.py")
    for path in (old, pathlib.Path(archive.path(node.paths))):
        path.write_text("# of before\n")
    before = pids(node.servers(entries, check=True))
    result = node.servers(entries)
    assert (result["changed"], result["actions"], pids(result)) == (True, [], before)
    assert pathlib.Path(archive.path(node.paths)).read_bytes() == archive.content()
    assert old.exists()
    assert node.servers(entries)["changed"] is False
    alone = [node.entry("alone")]
    node.servers(alone)
    node.ready(alone)
    first = node.running("alone")
    check = node.servers(alone, check=True)
    assert "%s: removed\n" % old in check["diff"]["after"] and old.exists()
    assert node.servers(alone)["changed"] and not old.exists() and node.running("alone") == first
    assert node.servers(alone)["changed"] is False


def test_what_starts_with_the_python_of_a_controller_is_restarted_once_and_said_so(node, monkeypatch, tmp_path):
    """As 0.1.0 deployed it: the environment that Ansible ran in is in each program section. By now it is gone."""
    entry = node.entry("server-0")
    monkeypatch.setattr(node_python, "link", lambda paths: str(tmp_path / "clone" / "python"))
    (tmp_path / "clone").mkdir()
    first = pids(node.servers([entry]))
    reaper = wait_until(lambda: _reaper(node))
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "clone")
    result = node.servers([entry], check=True)
    assert row(result, "server-0")["reason"] == (
        "would restart: supervisord would start it again with another Python than the node's own"
    )
    link = node_python.link(node.paths)
    assert result["diff"]["after"].endswith("%s: to %s\n" % (link, node_python.choose(node.paths)))
    second = pids(node.servers([entry]))
    assert second != first
    assert wait_until(lambda: _reaper(node)) != reaper
    assert node.servers([entry])["changed"] is False
    os.kill(second["server-0"], signal.SIGKILL)
    wait_until(lambda: node.running("server-0") not in ([], [second["server-0"]]))
    node.ready([entry])


def test_another_python_of_the_node_changes_a_link_alone(node, tmp_path):
    entry = node.entry("server-0")
    first = pids(node.servers([entry]))
    link = node_python.link(node.paths)
    chosen = os.readlink(link)
    node_python.put(node.paths, str(tmp_path / "gone"))
    result = node.servers([entry], check=True)
    assert result["diff"] == {"before": link + ": to another Python\n", "after": "%s: to %s\n" % (link, chosen)}
    result = node.servers([entry])
    assert (result["changed"], pids(result), os.readlink(link)) == (True, first, chosen)
    assert node.servers([entry])["changed"] is False


def _reaper(node):
    found = [pid for pid in node.daemons() if "reap" in processes.argv(pid)]
    return found[0] if found else None


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
