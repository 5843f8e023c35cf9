# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a node is called, and what is copied to it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action import node as action_node
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import weights


class Node:
    """An action on a node that answers as given; what it was asked and sent is recorded."""

    def __init__(self, monkeypatch, arguments, answers, transport="ssh", become=False):
        self.asked, self.sent, self.fixed = [], [], []
        shell = SimpleNamespace(tmpdir=None, join_path=os.path.join)
        connection = SimpleNamespace(transport=transport, _shell=shell)
        task = SimpleNamespace(args=arguments, async_val=0, action="inference.fleet.model_weights", _uuid="run-1")
        monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        monkeypatch.setattr(action_node.ActionModule, "call", self.execute)
        monkeypatch.setattr(action_node.ActionModule, "_transfer_file", lambda _self, *pair: self.sent.append(pair))
        monkeypatch.setattr(action_node.ActionModule, "_fixup_perms2", lambda _self, paths: self.fixed.append(paths))
        monkeypatch.setattr(action_node.ActionModule, "_make_tmp_path", lambda _self: "/tmp/node")
        self.answers = list(answers)
        play_context = SimpleNamespace(become=become, check_mode=False)
        self.action = action_node.ActionModule(task, connection, play_context, None, mock.Mock(), None)

    def execute(self, _operation, module_args, task_vars):
        self.asked.append(dict(module_args))
        return self.answers.pop(0)

    def run(self):
        return self.action.run(task_vars={})


ARCHIVE = {"source": "standin", "archive": "/c/standin.tgz"}


def test_a_node_that_has_the_stand_in_is_called_once(monkeypatch):
    node = Node(monkeypatch, ARCHIVE, [{"changed": False, "message": "up to date"}])
    assert node.run() == {"changed": False, "message": "up to date"}
    assert node.asked == [{"source": "standin", "caller": "run"}]
    assert node.sent == []


@pytest.mark.parametrize(("given", "path"), [(ARCHIVE, "/c/standin.tgz"), ({"source": "standin"}, weights.ARCHIVE)])
def test_the_archive_is_copied_to_a_node_that_needs_it(monkeypatch, given, path):
    node = Node(monkeypatch, given, [{"changed": False, "archive_needed": True}, {"changed": True}])
    assert node.run() == {"changed": True}
    assert node.asked[1] == {"source": "standin", "caller": "run", "archive": "/tmp/node/archive"}
    assert node.sent == [(path, "/tmp/node/archive")]


@pytest.mark.parametrize("become", [False, True])
def test_this_machine_reads_it_unless_it_is_another_user(monkeypatch, become):
    node = Node(monkeypatch, ARCHIVE, [{"changed": True}], transport="local", become=become)
    assert node.run() == {"changed": True}
    assert ("archive" in node.asked[0]) is not become


def test_a_list_of_checksums_of_the_control_node(monkeypatch, tmp_path):
    (tmp_path / "SUMS").write_text("sums")
    node = Node(monkeypatch, {"source": "path", "sha256sums": str(tmp_path / "SUMS")}, [{"changed": False}])
    node.run()
    assert node.asked[0]["sums"] == "sums"
