# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations whose action copies files of the control node: weights and encodings."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action import node as action_node
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import weights


@pytest.fixture
def run(monkeypatch):
    """run(operation, arguments, answers): (the result, what the node was asked each time, what was copied)."""

    def run(operation, arguments, answers, transport="ssh", become=False):
        asked, sent, answers = [], [], [dict(one) for one in answers]
        action = action_node.ActionModule
        monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        monkeypatch.setattr(action, "call", lambda _self, _name, given, task_vars: asked.append(dict(given)) or
                            answers.pop(0))  # fmt: skip
        monkeypatch.setattr(action, "_transfer_file", lambda _self, *pair: sent.append(pair))
        monkeypatch.setattr(action, "_fixup_perms2", lambda _self, paths: None)
        shell = SimpleNamespace(tmpdir="/tmp/node", join_path=os.path.join)
        given = {"operation": operation, "arguments": arguments}
        task = SimpleNamespace(args=given, async_val=0, action="inference.fleet.node", _uuid="run-1")
        connection = SimpleNamespace(transport=transport, _shell=shell)
        one = action(task, connection, SimpleNamespace(become=become, check_mode=False), None, mock.Mock(), None)
        return one.run(task_vars={}), asked, sent

    return run


ARCHIVE = {"source": "standin", "archive": "/c/standin.zip"}


def test_a_node_that_has_the_stand_in_is_called_once(run):
    result, asked, sent = run("model_weights", ARCHIVE, [{"changed": False, "message": "up to date"}])
    assert (result, sent) == ({"changed": False, "message": "up to date"}, [])
    assert asked == [{"source": "standin", "caller": "run"}]


@pytest.mark.parametrize(("given", "path"), [(ARCHIVE, "/c/standin.zip"), ({"source": "standin"}, weights.ARCHIVE)])
def test_the_archive_is_copied_to_a_node_that_needs_it(run, given, path):
    result, asked, sent = run("model_weights", given, [{"changed": False, "archive_needed": True}, {"changed": True}])
    assert (result, sent) == ({"changed": True}, [(path, "/tmp/node/archive")])
    assert asked[1] == {"source": "standin", "caller": "run", "archive": "/tmp/node/archive"}


@pytest.mark.parametrize("become", [False, True])
def test_this_machine_reads_it_unless_it_is_another_user(run, become):
    result, asked, _sent = run("model_weights", ARCHIVE, [{"changed": True}], "local", become)
    assert result == {"changed": True}
    assert ("archive" in asked[0]) is not become


def test_a_list_of_checksums_of_the_control_node(run, tmp_path):
    (tmp_path / "SUMS").write_text("sums")
    given = {"source": "path", "sha256sums": str(tmp_path / "SUMS")}
    assert run("model_weights", given, [{"changed": False}])[1][0]["sums"] == "sums"


NEEDED = {"changed": False, "controller_needed": ["o200k_base", "cl100k_base"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "o200k_base.tiktoken").write_text("o")
    return str(tmp_path)


def test_a_node_that_has_the_encodings_is_asked_once(run, folder):
    sources = [{"type": "controller", "path": folder}]
    result, asked, sent = run("tiktoken_encodings", {"sources": sources}, [{"changed": False}])
    assert (result, len(asked), sent) == ({"changed": False}, 1, [])


@pytest.mark.parametrize("transport", ["ssh", "local"])
def test_a_node_that_needs_them_gets_those_that_are_there(run, folder, transport):
    sources = [{"type": "url", "base": "http://u"}, {"type": "controller", "path": folder}]
    result, asked, sent = run("tiktoken_encodings", {"sources": sources}, [NEEDED, {"changed": True}], transport, True)
    file, there = folder + "/o200k_base.tiktoken", "/tmp/node/encodings-1-o200k_base"
    assert (result, sent) == ({"changed": True}, [(file, there)])
    assert [one["sources"] for one in asked] == [sources, [sources[0], {**sources[1], "copied": {"o200k_base": there}}]]


def test_this_machine_reads_them_where_they_are(run, folder, monkeypatch):
    monkeypatch.setenv("HOME", folder)
    file = folder + "/o200k_base.tiktoken"
    sources = [{"type": "controller", "path": "~/o200k_base.tiktoken"}, {"type": "controller", "path": ""}]
    _result, asked, sent = run("tiktoken_encodings", {"sources": sources}, [NEEDED, {}], "local")
    assert asked[1]["sources"] == [{**sources[0], "copied": {"o200k_base": file, "cl100k_base": file}}, sources[1]]
    assert sent == []
