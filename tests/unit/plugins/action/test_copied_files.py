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
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifacts
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron.artifact_archives import (
    export,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import weights
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries


@pytest.fixture
def run(monkeypatch):
    """run(operation, arguments, answers): (the result, what the node was asked each time, what was copied)."""

    def run(operation, arguments, answers, transport="ssh", become=False, check_mode=False, fetch_file=None):
        asked, sent, answers = [], [], [dict(one) for one in answers]

        def call(_self, _name, given, task_vars):
            asked.append(dict(given))
            return answers.pop(0)

        monkeypatch.setattr(action.ActionModule, "call", call)
        monkeypatch.setattr(action.ActionModule, "_fixup_perms2", lambda _self, paths: None)
        monkeypatch.setattr(action.ActionModule, "_transfer_file", lambda _self, *pair: sent.append(pair))
        monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        task = SimpleNamespace(args={"operation": operation, "arguments": arguments}, async_val=0,
                               check_mode=check_mode, action="inference.fleet.node", _uuid="run-1")  # fmt: skip
        shell = SimpleNamespace(tmpdir="/tmp/node", join_path=os.path.join)
        connection = SimpleNamespace(_shell=shell, transport=transport, fetch_file=fetch_file)
        context = SimpleNamespace(become=become)
        one = action.ActionModule(task, connection, context, mock.Mock(), mock.Mock(), None)
        return one.run(task_vars={}), asked, sent

    return run


ARCHIVE = {"source": "standin", "archive": "/c/standin.zip"}


@pytest.mark.parametrize(("given", "path"), [(ARCHIVE, "/c/standin.zip"), ({"source": "standin"}, weights.ARCHIVE)])
def test_the_archive_is_copied_to_a_node_that_needs_it(run, given, path):
    result, asked, sent = run("model_weights", given, [{"changed": False, "message": "up to date"}])
    assert (result, sent) == ({"changed": False, "message": "up to date"}, [])
    assert asked == [{"source": "standin", "caller": "run"}]
    result, asked, sent = run("model_weights", given, [{"changed": False, "archive_needed": True}, {"changed": True}])
    assert (result, sent) == ({"changed": True}, [(path, "/tmp/node/archive")])
    assert asked[1] == {"source": "standin", "caller": "run", "archive": "/tmp/node/archive"}


@pytest.mark.parametrize("become", [False, True])
def test_this_machine_reads_it_unless_it_is_another_user(run, become):
    result, asked, _sent = run("model_weights", ARCHIVE, [{"changed": True}], "local", become=become)
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
    given = {"sources": sources}
    has_them, asked, sent = run("tiktoken_encodings", given, [{"changed": False}], transport, become=True)
    assert (has_them, len(asked), sent) == ({"changed": False}, 1, [])
    result, asked, sent = run("tiktoken_encodings", given, [NEEDED, {"changed": True}], transport, become=True)
    file, there = folder + "/o200k_base.tiktoken", "/tmp/node/encodings-1-o200k_base"
    assert (result, sent) == ({"changed": True}, [(file, there)])
    assert [one["sources"] for one in asked] == [sources, [sources[0], {**sources[1], "copied": {"o200k_base": there}}]]


def test_this_machine_reads_them_where_they_are(run, folder, monkeypatch):
    monkeypatch.setenv("HOME", folder)
    file = folder + "/o200k_base.tiktoken"
    sources = [{"type": "controller", "path": "~/o200k_base.tiktoken"}, {"type": "controller", "path": ""}]
    _result, asked, sent = run("tiktoken_encodings", {"sources": sources}, [NEEDED, {}], "local")
    copied = {**sources[0], "copied": dict.fromkeys(NEEDED["controller_needed"], file)}
    assert (asked[1]["sources"], sent) == ([copied, sources[1]], [])


KEY = "0123456789abcdef"
TAR = KEY + ".tar"


def servers(folder):
    """The entries of two servers that share an artifact."""
    path = str(folder / KEY)
    more = {"platform": "neuron", "environment": {artifacts.VARIABLE: path}, "directories": {"artifact": path},
            "hooks": plan_entries.compile_cache(KEY)}  # fmt: skip
    return [plan_entries.plan_entry(8000, name, **more) for name in ("server-0", "server-1")]


@pytest.fixture
def exported(tmp_path):
    """What a node answers that has exported its artifact; the archive is in the folder `node`."""
    (tmp_path / "one" / KEY).mkdir(parents=True)
    (tmp_path / "one" / KEY / "model.pt").write_text("graph")
    plan_entries.complete_artifact(tmp_path / "one" / KEY, KEY)
    return export(servers(tmp_path / "one"), str(tmp_path / "node"))


def test_an_archive_is_fetched_once(run, exported, tmp_path, monkeypatch):
    """A relative folder is below the working directory: the playbook's folder may be the installed collection."""
    monkeypatch.chdir(tmp_path)
    given = {"servers": servers(tmp_path / "one"), "state": "exported", "destination": "archives"}
    result, asked, _sent = run("compiled_artifact", given, [exported], fetch_file=shutil.copy)
    assert (result["changed"], result["message"], asked[0]["destination"]) == (True, "exported " + KEY, "/tmp/node")
    assert result["archives"][0]["path"] == str(tmp_path / "archives" / TAR)
    assert os.listdir(tmp_path / "archives") == [TAR]
    given["destination"] = str(tmp_path / "archives")
    result, asked, _sent = run("compiled_artifact", given, [])
    assert (result["changed"], asked) == (False, [])


def test_export_in_check_mode_brings_nothing_and_a_cut_transfer_leaves_nothing(run, exported, tmp_path):
    given = {"servers": servers(tmp_path / "one"), "state": "exported", "destination": str(tmp_path / "more")}
    result, _asked, _sent = run("compiled_artifact", given, [exported], check_mode=True)
    assert result["message"] == "would export " + KEY and not (tmp_path / "more").exists()
    with pytest.raises(AnsibleActionFail, match=r"4 of \d+ bytes"):
        run("compiled_artifact", given, [exported], fetch_file=lambda _path, to: pathlib.Path(to).write_bytes(b"half"))
    assert os.listdir(tmp_path / "more") == []


NEEDS = {"changed": True, "needed": [KEY], "message": "would import"}


def test_a_node_is_brought_what_it_lacks(run, exported, tmp_path):
    given = {"servers": servers(tmp_path / "two"), "source": str(tmp_path / "node")}
    result, asked, sent = run("compiled_artifact", given, [NEEDS, {"changed": True, "message": "imported"}])
    assert (result["message"], sent) == ("imported", [(str(tmp_path / "node" / TAR), "/tmp/node/" + TAR)])
    assert [one.get("source") for one in asked] == [None, "/tmp/node"]


def test_what_is_sent_nowhere(run, exported, tmp_path):
    """No source, no need, check mode, a folder of the node; and a missing archive is an error before."""
    given = {"servers": servers(tmp_path / "two")}
    result, asked, _sent = run("compiled_artifact", given, [])
    assert (result["changed"], result["artifacts"], result["needed"], asked) == (False, [], [], [])
    given["source"] = str(tmp_path / "node")
    nothing = {"changed": False, "needed": []}
    assert run("compiled_artifact", given, [nothing])[0] == nothing
    assert run("compiled_artifact", given, [NEEDS], check_mode=True)[::2] == (NEEDS, [])
    _result, asked, sent = run("compiled_artifact", {**given, "remote_source": True}, [{"changed": True}])
    assert (asked[0]["source"], sent) == (given["source"], [])
    (tmp_path / "none").mkdir()
    with pytest.raises(AnsibleActionFail, match="has no archive " + TAR):
        run("compiled_artifact", {**given, "source": str(tmp_path / "none")}, [NEEDS])
