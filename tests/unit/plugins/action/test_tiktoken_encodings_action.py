# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encodings of the controller are copied to a node that asks for them, and to no other."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action import node

NEEDED = {"changed": False, "controller_needed": ["o200k_base", "cl100k_base"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "o200k_base.tiktoken").write_text("o")
    return str(tmp_path)


@pytest.fixture
def run(monkeypatch):
    """run(sources, answers): (the result, what the module was asked each time, what was copied)."""

    def run(sources, answers, transport="ssh", become=False):
        asked, sent, answers = [], [], [dict(one) for one in answers]
        action = node.ActionModule
        monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        monkeypatch.setattr(
            action,
            "call",
            lambda _self, _name, module_args, task_vars: asked.append(module_args["sources"]) or answers.pop(0),
        )
        monkeypatch.setattr(action, "_transfer_file", lambda _self, *pair: sent.append(pair))
        monkeypatch.setattr(action, "_fixup_perms2", lambda _self, paths: None)
        shell = SimpleNamespace(tmpdir="/tmp/node", join_path=os.path.join)
        given = {"operation": "tiktoken_encodings", "arguments": {"sources": sources}}
        task = SimpleNamespace(args=given, async_val=0, action="inference.fleet.node")
        connection = SimpleNamespace(transport=transport, _shell=shell)
        one = action(task, connection, SimpleNamespace(become=become, check_mode=False), None, mock.Mock(), None)
        return one.run(task_vars={}), asked, sent

    return run


def test_a_node_that_has_them_is_asked_once(run, folder):
    result, asked, sent = run([{"type": "controller", "path": folder}], [{"changed": False}])
    assert (result, len(asked), sent) == ({"changed": False}, 1, [])


@pytest.mark.parametrize(("transport", "become"), [("ssh", True), ("local", True)])
def test_a_node_that_needs_them_gets_those_that_are_there(run, folder, transport, become):
    sources = [{"type": "url", "base": "http://u"}, {"type": "controller", "path": folder}]
    result, asked, sent = run(sources, [NEEDED, {"changed": True}], transport, become)
    file, there = folder + "/o200k_base.tiktoken", "/tmp/node/encodings-1-o200k_base"
    assert (result, sent) == ({"changed": True}, [(file, there)])
    assert asked == [sources, [sources[0], {**sources[1], "copied": {"o200k_base": there}}]]


def test_this_machine_reads_them_where_they_are(run, folder, monkeypatch):
    monkeypatch.setenv("HOME", folder)
    file = folder + "/o200k_base.tiktoken"
    sources = [{"type": "controller", "path": "~/o200k_base.tiktoken"}, {"type": "controller", "path": ""}]
    _result, asked, sent = run(sources, [NEEDED, {}], "local")
    assert asked[1] == [{**sources[0], "copied": {"o200k_base": file, "cl100k_base": file}}, sources[1]]
    assert sent == []
