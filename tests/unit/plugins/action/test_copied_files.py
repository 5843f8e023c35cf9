# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations whose action copies files of the control node: weights and encodings."""

from __future__ import annotations

import os
import pathlib
import shutil
from types import SimpleNamespace
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action import node as action
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    artifact_archives as compiled_artifact,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifacts
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import weights
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries


def action_of(monkeypatch, operation, arguments, folder, call, transfer, **more):
    """The action for an operation, whose calls and transfers are these functions; more: of its connection and task."""
    patched = {"call": lambda _self, _name, given, task_vars: call(given), "_fixup_perms2": lambda _self, paths: None,
               "_transfer_file": lambda _self, *pair: transfer(*pair)}  # fmt: skip
    for name, function in patched.items():
        monkeypatch.setattr(action.ActionModule, name, function)
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    shell = SimpleNamespace(tmpdir=folder, join_path=os.path.join)
    given = {"operation": operation, "arguments": arguments}
    check_mode, become = more.pop("check_mode", False), more.pop("become", False)
    task = SimpleNamespace(args=given, async_val=0, check_mode=check_mode, action="inference.fleet.node", _uuid="run-1")
    connection = SimpleNamespace(_shell=shell, **{"transport": "ssh", **more})
    loader = SimpleNamespace(path_dwim=lambda path: os.path.join("/playbooks", path))
    context = SimpleNamespace(become=become, check_mode=False)
    return action.ActionModule(task, connection, context, loader, mock.Mock(), None)


@pytest.fixture
def run(monkeypatch):
    """run(operation, arguments, answers): (the result, what the node was asked each time, what was copied)."""

    def run(operation, arguments, answers, transport="ssh", become=False):
        asked, sent, answers = [], [], [dict(one) for one in answers]
        one = action_of(
            monkeypatch, operation, arguments, "/tmp/node", lambda given: asked.append(dict(given)) or answers.pop(0),
            lambda *pair: sent.append(pair), transport=transport, become=become,
        )  # fmt: skip
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


@pytest.mark.parametrize("transport", ["ssh", "local"])
def test_a_node_that_needs_them_gets_those_that_are_there(run, folder, transport):
    sources = [{"type": "url", "base": "http://u"}, {"type": "controller", "path": folder}]
    has_them, asked, sent = run("tiktoken_encodings", {"sources": sources}, [{"changed": False}], transport, True)
    assert (has_them, len(asked), sent) == ({"changed": False}, 1, [])
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


KEY = "0123456789abcdef"


def server(folder, name="server-0"):
    path = str(folder / KEY)
    return plan_entries.plan_entry(
        8000, name, platform="neuron", environment={artifacts.VARIABLE: path}, directories={"artifact": path},
        hooks=plan_entries.compile_cache(KEY),
    )  # fmt: skip


class Node:
    """A node that is a folder: the module runs on it for real, and a transfer is a copy."""

    def __init__(self, monkeypatch, folder, check_mode=False, **arguments):
        self.asked, self.sent, self.fetched, self.check_mode = [], [], [], check_mode
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self.action = action_of(
            monkeypatch, "compiled_artifact", arguments, str(folder / "tmp"), self.execute, self.transfer,
            check_mode=check_mode, fetch_file=self.fetch,
        )  # fmt: skip

    def execute(self, args):
        self.asked.append({key: value for key, value in args.items() if key != "servers"})
        if args.get("state") == "exported":
            return compiled_artifact.export(args["servers"], args["destination"], args.get("force"), self.check_mode)
        return compiled_artifact.take_over(args["servers"], args.get("source"), self.check_mode)

    def transfer(self, source, target):
        self.sent.append(os.path.basename(source))
        shutil.copy(source, target)

    def fetch(self, source, target):
        self.fetched.append(os.path.basename(source))
        shutil.copy(source, target)

    def run(self):
        return self.action.run(task_vars={})


@pytest.fixture
def make(monkeypatch, tmp_path):
    """make(folder, …): a Node of the folder with server-0."""

    def make(name, check_mode=False, **arguments):
        return Node(monkeypatch, tmp_path / name, check_mode, **{"servers": [server(tmp_path / name)], **arguments})

    return make


@pytest.fixture
def archives(make, tmp_path):
    """A folder of the controller with the archive that a node's export brought."""
    path = tmp_path / "one" / KEY
    path.mkdir(parents=True)
    (path / "model.pt").write_text("graph")
    plan_entries.complete_artifact(path, KEY)
    folder = tmp_path / "archives"
    node = make("one", state="exported", destination=str(folder))
    result = node.run()
    assert (result["changed"], result["message"], node.fetched) == (True, "exported " + KEY, [KEY + ".tar"])
    assert result["archives"][0]["path"] == str(folder / (KEY + ".tar"))
    assert os.listdir(folder) == [KEY + ".tar"]
    return folder


def test_an_archive_that_is_there_is_not_made_again(monkeypatch, make, tmp_path, archives):
    """A relative folder is below the working directory: the playbook's folder may be the installed collection."""
    monkeypatch.chdir(tmp_path)
    for destination in (str(archives), "archives"):
        node = make("three", state="exported", destination=destination)
        assert node.run()["changed"] is False
        assert node.asked == []


def test_export_in_check_mode_brings_nothing_and_a_cut_transfer_leaves_nothing(make, tmp_path, archives):
    node = make("one", True, state="exported", destination=str(tmp_path / "more"))
    assert node.run()["message"] == "would export " + KEY
    assert node.fetched == [] and not (tmp_path / "more").exists()
    node = make("one", state="exported", destination=str(tmp_path / "more"))
    node.action._connection.fetch_file = lambda source, target: pathlib.Path(target).write_bytes(b"half")
    with pytest.raises(AnsibleActionFail, match=r"4 of \d+ bytes"):
        node.run()
    assert os.listdir(tmp_path / "more") == []


def test_without_a_source_nothing_is_asked(make):
    node = make("two")
    result = node.run()
    assert (result["changed"], result["artifacts"], result["needed"], node.asked) == (False, [], [], [])


def test_a_node_is_brought_what_it_lacks_once(make, tmp_path, archives):
    servers = [server(tmp_path / "two"), server(tmp_path / "two", "server-1")]
    node = make("two", servers=servers, source=str(archives))
    result = node.run()
    assert (result["changed"], result["message"]) == (True, "imported " + KEY)
    assert (node.sent, [set(one) for one in node.asked]) == ([KEY + ".tar"], [set(), {"source"}])
    assert (tmp_path / "two" / KEY / "model.pt").read_text() == "graph"
    again = make("two", servers=servers, source=str(archives))
    assert again.run()["changed"] is False
    assert (again.sent, len(again.asked)) == ([], 1)


def test_what_is_sent_nowhere(make, archives, tmp_path):
    """Check mode; a missing archive, which is an error before; a folder of the node."""
    node = make("two", True, source=str(archives))
    assert (node.run()["message"], node.sent) == ("would import " + KEY, [])
    (tmp_path / "none").mkdir()
    node = make("two", source=str(tmp_path / "none"))
    with pytest.raises(AnsibleActionFail, match="has no archive %s.tar" % KEY):
        node.run()
    assert node.sent == []
    node = make("two", source=str(archives), remote_source=True)
    assert (node.run()["changed"], node.sent) == (True, [])
