# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of node_state: what it asks the node, what it keeps for the run, what it says, and no secret."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.plugins.action import node_state
from ansible_collections.inference.fleet.plugins.modules import node_state as module
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look

SERVERS = {"servers": [], "secrets": {"key": "s3cret-of-a-server"}, "deployment": {"name": "r"}, "reports_dir": "/x"}
WEIGHTS = {"source": "huggingface", "repo": "a/b", "destination": "/w", "token": "t0ken-of-a-hub"}
IMAGE = {"image": "a/b:1", "auth": {"registry": {"username": "somebody", "password": "l0gin-of-a-registry"}}}
SECRETS = ("s3cret-of-a-server", "t0ken-of-a-hub", "l0gin-of-a-registry", "pr0xyword")
WELL = {"steps": [{"step": step, "differs": False, "reason": None} for step in run_look.STEPS], "first": None}


@pytest.fixture
def act(tmp_path, monkeypatch):
    """act({step: [(module, arguments)] or an error}, what the node answers): (result, what the node was asked)."""
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(node_state, "load_extra_vars", lambda _loader: {})
    monkeypatch.setattr(node_state, "say", mock.Mock())

    def act(tasks, answer=None):
        answer = answer or WELL

        def of(step):
            if isinstance(tasks.get(step), Exception):
                raise tasks[step]
            return tasks.get(step, [])

        monkeypatch.setattr(node_state, "StepTasks", lambda *_arguments: mock.Mock(of=of))
        task = mock.Mock(args={}, async_val=0, check_mode=False, _uuid="u-1")
        action = node_state.ActionModule(task, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())
        action._execute_module = mock.Mock(return_value=json.loads(json.dumps(answer)))
        variables = {"inventory_hostname": "n1", "ansible_run_tags": ["all"], "ansible_skip_tags": []}
        result = action.run(task_vars=variables)
        called = action._execute_module.call_args
        return result, called and called.kwargs["module_args"]

    return act


def test_secrets_go_in_an_argument_of_their_own(act):
    tasks = {
        "prepare": [("inference.fleet.container_image", IMAGE)],
        "weights": [("inference.fleet.model_weights", WEIGHTS)],
        "serve": [("inference.fleet.engine_servers", SERVERS)],
    }
    _result, asked = act(tasks)
    assert asked["secrets"] == {
        "0": {"auth": IMAGE["auth"]}, "1": {"token": WEIGHTS["token"]}, "2": {"secrets": SERVERS["secrets"]}
    }  # fmt: skip
    assert [secret for secret in SECRETS if secret in json.dumps(asked["looks"])] == []
    # as the modules' own actions send it
    assert asked["looks"][1]["arguments"]["caller"] == "u"
    assert set(asked["looks"][2]["arguments"]) == {"servers", "deployer"}
    assert asked["looks"][2]["arguments"]["deployer"]["recipe"] == "r"


def test_a_node_that_is_as_it_is_to_be(act):
    result, _asked = act({"serve": [("inference.fleet.engine_servers", SERVERS)]})
    assert (result["first"], result["changed"], "look_line" in result) == (None, False, False)
    assert run_look.due(["n1"], "serve") == []
    assert run_look.unchanged("n1")


def test_what_differs_is_said_and_kept(act):
    steps = [{"step": "serve", "differs": True, "reason": "server-1: unit was edited"}]
    result, _asked = act({"serve": [("inference.fleet.engine_servers", SERVERS)]}, {"steps": steps, "first": "serve"})
    assert result["look_line"] == "n1: serve: server-1: unit was edited"
    node_state.say.assert_called_once_with(result["look_line"])
    assert [run_look.due(["n1"], step) for step in ("weights", "serve")] == [[], ["n1"]]


def test_a_step_that_cannot_be_looked_at_differs_and_ends_the_look(act):
    tasks = {"preflight": [("inference.fleet.node_preflight", {})], "weights": AnsibleError("no such thing")}
    result, asked = act(tasks, {"steps": WELL["steps"][:1], "first": None})
    assert [one["step"] for one in asked["looks"]] == ["preflight"]
    assert result["first"] == "weights"
    assert result["steps"][-1]["reason"] == "it cannot be looked at: no such thing"
    assert [run_look.due(["n1"], step) for step in ("prepare", "weights")] == [[], ["n1"]]


def test_without_a_look_every_step_is_run(act):
    result, _asked = act({"serve": [("inference.fleet.engine_servers", SERVERS)]}, {"failed": True, "msg": "no python"})
    assert ("failed" in result, result["warnings"]) == (
        False, ["n1 could not be looked at, so every step is run: no python"]
    )  # fmt: skip
    assert run_look.due(["n1"], "preflight") == ["n1"]


def test_a_node_that_cannot_be_reached_is_unreachable(act):
    result, _asked = act({"serve": [("inference.fleet.engine_servers", SERVERS)]}, {"unreachable": True, "msg": "down"})
    assert (result["unreachable"], run_look.due(["n1"], "serve")) == (True, ["n1"])


def test_where_no_step_is_part_of_the_run_no_node_is_asked(act):
    result, asked = act({})
    assert (asked, result["first"], run_look.unchanged("n1")) == (None, None, False)


def test_artifacts_without_a_source_are_no_look(act):
    _result, asked = act({"weights": [("inference.fleet.compiled_artifact", {"servers": []})]})
    assert asked is None


@pytest.mark.parametrize("arguments", [{"engine": "abacus", "proxy_env": {"HTTPS_PROXY": "http://me:pr0xyword@p:1"}}])
def test_the_module_shows_no_secret_and_takes_what_is_invalid_for_a_difference(monkeypatch, capsys, arguments):
    logged = []
    monkeypatch.setattr(module.Module, "log", lambda self, msg, **_more: logged.append(msg))
    looks = [
        {"step": "prepare", "module": "shared_libraries", "arguments": {"libraries": []}},
        {"step": "prepare", "module": "container_engine", "arguments": arguments},
    ]
    secrets = {"0": {"token": "t0ken-of-a-hub"}}
    with patch_module_args({"looks": looks[1:], "secrets": {}}), pytest.raises(SystemExit):
        module.main()
    said = capsys.readouterr().out
    found = json.loads(said)
    assert found["first"] == "prepare"
    assert "value of engine must be one of: docker, podman, got: abacus" in found["steps"][0]["reason"]
    with patch_module_args({"looks": looks, "secrets": secrets}), pytest.raises(SystemExit):
        module.main()
    said += capsys.readouterr().out + "".join(logged)
    assert [secret for secret in SECRETS if secret in said] == []
    assert "shared_libraries, container_engine" in logged
    assert "invocation" not in found or found["invocation"] == {"module_args": {}}
