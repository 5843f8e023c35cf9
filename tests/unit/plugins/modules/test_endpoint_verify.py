# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import observe
from ansible_collections.inference.fleet.tests.unit.engines.deployed import deployed
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine, free_port
from ansible_collections.inference.fleet.tests.unit.operating import operate


@pytest.fixture
def run(tmp_path):
    """run(check=False, **arguments): (whether the operation failed, its result)."""

    def call(check=False, **arguments):
        result = operate("endpoint_verify", check, **{"root": str(tmp_path), **arguments})
        return int(bool(result.get("failed"))), result

    return call


def test_neither_mode_changes_anything_and_auto_goes_by_what_changed(run, tmp_path):
    with ScriptedEngine() as engine, deployed(tmp_path, engine.port, plan_entry) as entry:
        for check, more, mode in ((True, {}, "full"), (False, {"servers_changed": False}, "quick")):
            status, result = run(check, servers=[entry], timeout=60, **more)
            assert (status, result["changed"], result["ok"], result["mode"]) == (0, False, True, mode)
            assert mode == "quick" or len(result["verdicts"][0]["probes"]) == 33


def test_who_passed_is_recorded_as_ready_and_nobody_else(run, tmp_path):
    paths = NodePaths(str(tmp_path))
    with ScriptedEngine() as engine, deployed(tmp_path, engine.port, plan_entry) as entry:
        state = read_json(paths.server_state(entry["name"]))
        other = plan_entry(entry["port"], model_id="gpt-oss-20b")
        for check, planned, ok in ((True, entry, True), (False, other, False)):
            _status, result = run(check, servers=[planned], mode="quick", quick_timeout=60)
            assert (result["ok"], observe.was_ready(paths, entry["name"], state)) == (ok, False)
        for _turn in range(2):
            _status, result = run(servers=[entry], mode="quick", quick_timeout=60)
            assert (result["ok"], result["changed"]) == (True, False)
            assert observe.was_ready(paths, entry["name"], state)
        assert not observe.was_ready(paths, entry["name"], {**state, "ticks": state["ticks"] + 1})


def keyed_entry(port):
    return plan_entry(port, secrets={"VLLM_API_KEY": "fleet_api_key"})


def key_file(root, content):
    """The file of secrets of server-0 with these bytes."""
    path = pathlib.Path(NodePaths(str(root)).secret("server-0"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_where_nothing_listens_a_bad_verdict_is_no_failure_of_the_module(run):
    """Nor does check mode need the key of a server that is not deployed."""
    for check, make, ok in ((False, plan_entry, False), (True, plan_entry, None), (True, keyed_entry, None)):
        status, result = run(check, servers=[make(free_port())], mode="quick")
        assert (status, result["ok"], result["changed"], result.get("failed")) == (0, ok, False, None)
    assert {probe["cause"] for probe in result["verdicts"][0]["probes"]} == {"not verified (check)"}


def test_the_key_is_read_on_the_node_and_masked(run, tmp_path):
    key_file(tmp_path, b'{"VLLM_API_KEY": "sk-first", "INFERENCE_FLEET_OTHER_API_KEYS": "sk-second"}')
    echo = {"/health": lambda: "Bearer sk-first"}
    with (
        ScriptedEngine(api_key="sk-first", pages=echo) as engine,
        deployed(tmp_path, engine.port, keyed_entry) as entry,
    ):
        status, result = run(servers=[entry], timeout=60)
    assert (status, result["ok"]) == (0, True)
    assert "api-key" in [probe["name"] for probe in result["verdicts"][0]["probes"]]
    assert "sk-first" not in json.dumps(result)


def test_options_reach_the_requests(run, tmp_path):
    probe = {"name": "who-are-you", "body": {"messages": [{"role": "user", "content": "Who are you?"}]},
             "expect": {"field": "choices.0.message.content"}}  # fmt: skip
    with ScriptedEngine(effort="chat_template_args") as engine, deployed(tmp_path, engine.port, plan_entry) as entry:
        status, result = run(
            servers=[entry], effort_parameter="chat_template_args", responses_api=False, timeout=60,
            servers_changed=True, reports_dir="/nowhere", probes=[probe],
        )  # fmt: skip
    assert (status, result["ok"]) == (0, True)
    names = [probe["name"] for probe in result["verdicts"][0]["probes"]]
    assert names[-1] == "who-are-you"
    assert engine.bodies("/v1/responses") == []
    efforts = [body.get("chat_template_args") for body in engine.bodies("/v1/chat/completions")]
    assert {"reasoning_effort": "low"} in efforts


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"servers": [dict(plan_entry(8000), port=8001)]}, "entry.invalid"),
        ({"servers": [], "timeout": 0}, "probes.invalid"),
        ({"servers": [], "probes": [{"name": "chat", "body": {}}]}, "probes.invalid"),
    ],
)
def test_bad_input_fails_with_a_code(run, arguments, code):
    status, result = run(**arguments)
    assert (status, result["failed"], result["code"]) == (1, True, code)
