# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation check on the control node: what it asks, keeps for the run and says, and no secret."""

from __future__ import annotations

import json
import types
from unittest import mock

import pytest
from ansible import constants as C
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.plugins.action import node as action_node
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import check as node_check
from ansible_collections.inference.fleet.plugins.modules import node
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import check, servers, verdicts
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.run_look import LATER
from ansible_collections.inference.fleet.tests.unit.engines.plans import Lazy
from ansible_collections.inference.fleet.tests.unit.operating import Operation, operate
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import verdict

SERVERS = {"servers": [], "secrets": {"key": "s3cret-of-a-server"}, "reports_dir": "/x"}
WELL = {"steps": [{"step": step, "differs": False, "reason": None} for step in run_look.STEPS], "first": None}


def call(step, operation, arguments, **later):
    """A call of a plan. later: {argument: the variable that it is filled in from}."""
    places = {name: {LATER: {"variable": variable}} for name, variable in later.items()}
    return {"step": step, "operation": operation, "arguments": {**arguments, **places}}


@pytest.fixture(autouse=True)
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))


@pytest.fixture
def act(monkeypatch):
    """act(steps of the plan or an error, what the node answers): (result, what the node was asked)."""
    monkeypatch.setattr(check, "say", mock.Mock())

    def act(steps, answer=None, tags=("all",), operation="check", **variables):
        def plans_of(hosts, _others, deploys):
            if isinstance(steps, Exception):
                raise steps
            return {hosts[0]: {"servers": ["planned"], "deployment": {"name": "r"}, "steps": steps}}

        monkeypatch.setattr(check.run_plan, "plans_of", plans_of)
        task = mock.Mock(args={"operation": operation}, action="inference.fleet.node", async_val=0, check_mode=False)
        task._uuid = "u-1"
        action = action_node.ActionModule(task, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())
        action.call = mock.Mock(return_value=json.loads(json.dumps(answer or WELL)))
        given = {"inventory_hostname": "n1", "ansible_run_tags": list(tags), "ansible_skip_tags": [],
                 "hostvars": {"n1": Lazy(variables)}}  # fmt: skip
        result = action.run(task_vars=given)
        called = action.call.call_args
        return result, called and called.args[1]

    return act


SERVE = [call("serve", "engine_servers", SERVERS)]


def test_a_node_is_asked_what_the_steps_would_ask(act):
    download = call("weights", "model_weights", {"source": "huggingface", "token": None}, token="fleet_hf_token")
    _result, asked = act([download, *SERVE], fleet_hf_token="t0ken-of-a-hub")
    assert [one["operation"] for one in asked["looks"]] == ["model_weights", "engine_servers"]
    # as the modules' own actions send it
    sent = {"source": "huggingface", "token": "t0ken-of-a-hub", "caller": "u"}
    assert asked["looks"][0]["arguments"] == sent
    assert set(asked["looks"][1]["arguments"]) == {"servers", "secrets"}


def test_the_plans_servers_are_sent_once(act):
    steps = [call("serve", "engine_servers", {**SERVERS, "servers": {LATER: {"plan": ["servers"]}}})]
    asked = act([*steps, *steps])[1]
    assert [one["arguments"]["servers"] for one in asked["looks"]] == [node_check.PLANNED] * 2
    assert asked["servers"] == node_check.packed(["planned"])


def unlooked(reason, step="weights"):
    return {"step": step, "reason": reason, "changed": False}


@pytest.mark.parametrize(("step", "reason"), [
    (unlooked("roles/model_weights is mine"), "roles/model_weights is mine"),
    (call("weights", "model_weights", {}, token="locked"),
     "it cannot be looked at: variable locked cannot be worked out for the plan: a vault"),
])  # fmt: skip
def test_a_step_that_cannot_be_looked_at_differs_and_ends_the_look(act, step, reason):
    steps = [call("preflight", "node_preflight", {}), step, *SERVE]
    result, asked = act(steps, {"steps": WELL["steps"][:1], "first": None}, locked=RuntimeError("a vault"))
    assert [one["step"] for one in asked["looks"]] == ["preflight"]
    assert result["first"] == "weights"
    assert result["steps"][-1]["reason"].startswith(reason)
    assert result["look_line"].startswith("n1: weights: " + reason)
    assert [run_look.due(["n1"], step) for step in ("prepare", "weights")] == [[], ["n1"]]


def test_a_changed_playbook_counts_whatever_the_tags(act):
    changed = {**unlooked("playbooks/steps/prepare.yml is mine", "prepare"), "changed": True}
    steps = [call("preflight", "node_preflight", {}), changed, unlooked("roles/x is mine"), *SERVE]
    result, asked = act(steps, {"steps": WELL["steps"][:1], "first": None}, tags=["serve"])
    assert ([one["step"] for one in asked["looks"]], result["first"]) == (["preflight"], "prepare")
    assert act(steps, tags=["verify"])[1] is None


VERIFY = call("verify", "endpoint_verify", {"servers": [], "mode": "auto", "deployment": {"name": "r"}, "problem": ""})


@pytest.fixture
def settled(monkeypatch):
    """settled(mode): what the mode auto means by the last report."""
    return lambda mode: monkeypatch.setattr(servers.report, "settle_auto", lambda *_given: mode)


def test_a_quick_verification_is_part_of_the_look(act, settled):
    settled("quick")
    answer = {**WELL, "verified": {"ok": True, "verdicts": []}}
    result, asked = act([*SERVE, VERIFY], answer, fleet_reports_dir="/x")
    assert asked["verify"] == {"servers": [], "mode": "quick", "servers_changed": False}
    kept = run_look.verdicts()["n1"]
    assert (kept["ok"], kept["verdicts"]) == (True, [])
    assert "verified" not in result


@pytest.mark.parametrize("steps", [[*SERVE, VERIFY], [VERIFY], [*SERVE, unlooked("mine", "verify")]])
def test_any_other_verification_and_of_servers_that_are_to_be_changed_is_not(act, settled, steps):
    settled("full" if len(steps) == 2 else "quick")
    _result, asked = act(steps, fleet_reports_dir="/x")
    assert asked is None or asked["verify"] is None
    settled("quick")
    steps = [{"step": "serve", "differs": True, "reason": "server-1: unit was edited"}]
    _result, asked = act([*SERVE, VERIFY], {"steps": steps, "first": "serve"}, fleet_reports_dir="/x")
    assert asked["verify"] and run_look.verdicts() == {}


@pytest.mark.parametrize(("answer", "keys"), [
    ({"failed": True, "msg": "no python"}, {"warnings"}),
    # each step would wait for the same program
    ({"failed": True, "hangs": True, "msg": "docker does not answer"}, {"failed", "msg"}),
    ({"unreachable": True, "msg": "down"}, {"unreachable"}),
], ids=["no look", "a program that hangs", "unreachable"])  # fmt: skip
def test_a_node_that_cannot_be_looked_at(act, answer, keys):
    result, _asked = act(SERVE, answer)
    assert keys <= set(result) and ("failed" in result) is ("failed" in keys)
    assert run_look.due(["n1"], "preflight") == run_look.due(["n1"], "serve") == ["n1"]


@pytest.mark.parametrize(("steps", "tags", "first"), [
    (FleetError("plan.made-up", "no such thing"), "all", ("preflight", "it cannot be looked at: no such thing")),
    (SERVE, "verify", (None, None)),  # no step is part of the run
    ([call("weights", "compiled_artifact", {"servers": []})], "all", (None, None)),  # artifacts without a source
])  # fmt: skip
def test_a_host_that_cannot_be_planned_or_has_no_step_is_not_asked(act, steps, tags, first):
    result, asked = act(steps, tags=[tags])
    reason = result["steps"][-1]["reason"] if result["steps"] else None
    assert (asked, (result["first"], reason), run_look.unchanged("n1")) == (None, first, False)


VERIFIES = {"servers": [], "mode": "quick", "servers_changed": False}


def test_a_node_verifies_where_nothing_differs():
    def answer(looks, verify, **more):
        return operate("check", looks=looks, verify=verify, **more)

    found = answer([], VERIFIES)
    assert (found["first"], found["verified"]["ok"], found["verified"]["mode"]) == (None, None, "quick")
    assert answer([], {**VERIFIES, "servers": node_check.PLANNED}, servers=node_check.packed([])) == found
    assert "verified" not in answer([], None)
    assert "verified" not in answer([], {**VERIFIES, "mode": "abacus"})  # the step itself says what is wrong
    assert "verified" not in answer([call("prepare", "container_engine", {"engine": "abacus"})], VERIFIES)


def test_the_module_shows_no_secret_and_takes_what_is_invalid_for_a_difference(monkeypatch, capsys):
    logged, arguments = [], {"engine": "abacus", "proxy_env": {"HTTPS_PROXY": "http://me:pr0xyword@p:1"}}
    monkeypatch.setattr(node.Module, "log", lambda self, msg, **_more: logged.append(msg))
    looks = [call("prepare", "container_engine", arguments),
             call("weights", "shared_libraries", {"libraries": [], "token": "t0ken-of-a-hub"})]  # fmt: skip
    with patch_module_args({"looks": looks}), pytest.raises(SystemExit):
        Operation("check").main()
    said = capsys.readouterr().out
    found = json.loads(said)
    assert found["first"] == "prepare"
    assert "value of engine must be one of: docker, podman, got: abacus" in found["steps"][0]["reason"]
    assert [secret for secret in ("t0ken-of-a-hub", "pr0xyword") if secret in said + logged[0]] == []
    assert logged == ["check of None"]
    assert found.get("invocation") in (None, {"module_args": {}})


def test_doctor_sends_all_operations_and_reports_what_a_run_would_install(act):
    """A step that cannot be checked is no fault, and does not end the list as in a check."""
    steps = [
        unlooked("the role is modified", "preflight"),
        call("prepare", "node_layout", {"root": {LATER: {"prepared": "installs", "unprepared": ""}}}),
        *SERVE,
    ]
    found = {"findings": [{"check": "clock", "ok": True}], "healthy": True}
    result, asked = act(steps, found, operation="doctor")
    assert [one["operation"] for one in asked["looks"]] == ["node_layout", "engine_servers"]
    assert asked["looks"][0]["arguments"] == {"root": ""}
    assert (result["healthy"], [one["ok"] for one in result["findings"]]) == (True, [True, None])
    assert result["findings"][1]["cause"] == "the role is modified"

    unplanned, _asked = act(FleetError("plan.bad", "It does not fit."), found, operation="doctor")
    assert (unplanned["healthy"], unplanned["findings"][1]["ok"]) == (False, False)


HOSTS = ["n1", "n2", "n3"]


def note(host, folder, ok=True):
    run_look.note(host, list(run_look.STEPS), None)
    verified = [verdict(ok=ok, mode="quick")]
    run_look.note_verdict(host, {"ok": ok, "mode": "quick", "verdicts": verified, "folder": folder, "what": None})


def report(check_mode=False):
    action = types.SimpleNamespace(_task=types.SimpleNamespace(check_mode=check_mode))
    return verdicts.converged(action, {}, {"groups": {"all": HOSTS}})


def test_good_verdicts_are_written_and_their_hosts_omitted_afterwards(tmp_path):
    folder = str(tmp_path / "reports")
    note("n1", folder)
    note("n2", folder)
    note("n3", folder, ok=False)
    result = report()
    assert result["hosts"] == ["n1", "n2"]
    assert run_look.due(HOSTS, "verify") == ["n3"]
    fleet = json.loads((tmp_path / "reports" / "verdict.json").read_text())
    assert sorted(host for host, one in fleet["hosts"].items() if one["ok"]) == ["n1", "n2"]
    assert sorted(result["ansible_stats"]["data"]["fleet_verdict"]) == ["n1", "n2"]
    assert [one["rows"][0][0] for one in result["fleet_report"]] == ["n1", "n2"]


@pytest.mark.parametrize(("check_mode", "due"), [(True, ["n2", "n3"]), (False, HOSTS)])
def test_check_mode_writes_nothing_and_reports_that_cannot_be_written_are_left_to_the_play(tmp_path, check_mode, due):
    folder = tmp_path / "file" if not check_mode else tmp_path / "reports"
    (tmp_path / "file").write_text("")
    note("n1", str(folder))
    result = report(check_mode)
    assert (result["hosts"], len(result.get("warnings", []))) == ((["n1"], 0) if check_mode else ([], 1))
    assert not folder.is_dir() and run_look.due(HOSTS, "verify") == due
