# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What travels between controller and node, and when nothing does."""

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
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries

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
        self.folder, self.asked, self.sent, self.fetched = folder, [], [], []
        self.tmp = folder / "tmp"
        self.tmp.mkdir(parents=True, exist_ok=True)
        shell = SimpleNamespace(tmpdir=str(self.tmp), join_path=os.path.join)
        connection = SimpleNamespace(transport="ssh", _shell=shell, fetch_file=self.fetch)
        given = {"operation": "compiled_artifact", "arguments": arguments}
        task = SimpleNamespace(args=given, async_val=0, check_mode=check_mode, action="inference.fleet.node")
        loader = SimpleNamespace(path_dwim=lambda path: os.path.join("/playbooks", path))
        monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        monkeypatch.setattr(action.ActionModule, "call", self.execute)
        monkeypatch.setattr(action.ActionModule, "_transfer_file", lambda _self, *pair: self.transfer(*pair))
        monkeypatch.setattr(action.ActionModule, "_fixup_perms2", lambda _self, paths: None)
        self.check_mode = check_mode
        self.action = action.ActionModule(task, connection, None, loader, mock.Mock(), None)

    def execute(self, _operation, module_args, task_vars):
        self.asked.append({key: value for key, value in module_args.items() if key != "servers"})
        args = module_args
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
    artifacts.complete(str(path), {"name": "server-0", "environment": {}, "hooks": plan_entries.compile_cache(KEY)})
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


def test_export_in_check_mode_brings_nothing(make, tmp_path, archives):
    node = make("one", True, state="exported", destination=str(tmp_path / "more"))
    assert node.run()["message"] == "would export " + KEY
    assert node.fetched == [] and not (tmp_path / "more").exists()


def test_a_cut_transfer_leaves_nothing(make, tmp_path, archives):
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


def test_check_mode_says_what_would_come(make, archives):
    node = make("two", True, source=str(archives))
    assert (node.run()["message"], node.sent) == ("would import " + KEY, [])


def test_a_folder_of_the_node_is_the_nodes_business(make, archives):
    node = make("two", source=str(archives), remote_source=True)
    assert (node.run()["changed"], node.sent) == (True, [])


def test_a_missing_archive_is_an_error_before_anything_travels(make, tmp_path):
    (tmp_path / "none").mkdir()
    node = make("two", source=str(tmp_path / "none"))
    with pytest.raises(AnsibleActionFail, match="has no archive %s.tar" % KEY):
        node.run()
    assert node.sent == []
