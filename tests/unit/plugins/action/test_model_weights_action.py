# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a node is asked, and what is brought to it."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action import node as action_node
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import weights

FILES = {"config.json": {"size": 2, "sha256": "ab"}}


@pytest.fixture
def packed(tmp_path):
    folder = tmp_path / "packed"
    (folder / "more").mkdir(parents=True)
    (folder / "standin.json").write_text(json.dumps({"files": FILES}))
    (folder / "weights.safetensors").write_text("w")
    return str(folder)


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


def test_a_node_that_has_the_stand_in_is_asked_once(monkeypatch, packed):
    node = Node(monkeypatch, {"source": "standin", "packed": packed}, [{"changed": False, "message": "up to date"}])
    assert node.run() == {"changed": False, "message": "up to date"}
    assert node.asked == [{"source": "standin", "expected": FILES}]
    assert node.sent == []


def test_a_node_that_needs_it_is_brought_the_files(monkeypatch, packed):
    node = Node(
        monkeypatch,
        {"source": "standin", "packed": packed, "repo": "r"},
        [{"changed": False, "packed_needed": True}, {"changed": True}],
    )
    assert node.run() == {"changed": True}
    assert node.asked[1] == {"source": "standin", "repo": "r", "expected": FILES, "packed": "/tmp/node"}
    assert node.sent == [
        (packed + "/standin.json", "/tmp/node/standin.json"),
        (packed + "/weights.safetensors", "/tmp/node/weights.safetensors"),
    ]
    assert node.fixed == [["/tmp/node", "/tmp/node/standin.json", "/tmp/node/weights.safetensors"]]


def test_this_machine_reads_the_files_where_they_are(monkeypatch, packed):
    node = Node(monkeypatch, {"source": "standin", "packed": packed}, [{"changed": True}], transport="local")
    assert node.run() == {"changed": True}
    assert node.asked == [{"source": "standin", "expected": FILES, "packed": packed}]


def test_another_user_of_this_machine_may_not_read_them(monkeypatch, packed):
    node = Node(monkeypatch, {"source": "standin", "packed": packed}, [{}], transport="local", become=True)
    node.run()
    assert node.asked == [{"source": "standin", "expected": FILES}]


def test_other_sources_have_nothing_packed_and_are_told_the_run(monkeypatch):
    node = Node(monkeypatch, {"source": "path", "packed": "/nowhere", "path": "/m"}, [{"changed": False}])
    assert node.run() == {"changed": False}
    assert node.asked == [{"source": "path", "path": "/m", "caller": "run"}]


def test_the_collections_own_stand_in_is_the_default(monkeypatch, packed):
    monkeypatch.setattr(weights, "PACKED", packed)
    node = Node(monkeypatch, {"source": "standin"}, [{}])
    node.run()
    assert node.asked == [{"source": "standin", "expected": FILES}]


def test_a_packed_folder_that_is_not_there(monkeypatch, tmp_path):
    node = Node(monkeypatch, {"source": "standin", "packed": str(tmp_path / "absent")}, [])
    with pytest.raises(AnsibleActionFail) as error:
        node.run()
    assert str(error.value) == (
        "The packed stand-in in {0} on the controller cannot be read. Set packed to the directory that holds it, or "
        "install the collection again: [Errno 2] No such file or directory: '{0}/standin.json'"
    ).format(tmp_path / "absent")
