# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on a node: their arguments, and the look at it: the steps in check mode, up to the first with work."""

from __future__ import annotations

import os
import types
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import called
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.discover import Operation
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.commands import TimedOut
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import check
from ansible_collections.inference.fleet.plugins.modules import node
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.operating import answering

ROOT = {"root": {"type": "str", "default": ""}}


@pytest.mark.parametrize(("spec", "given", "expected"), [
    (ROOT, {}, {"root": "/fleet"}), (ROOT, {"root": "/own"}, {"root": "/own"}), ({}, {}, {}),
])  # fmt: skip
def test_the_root_of_the_host_is_the_default(monkeypatch, spec, given, expected):
    operation = Operation(spec, lambda params, _check_mode: {"params": params})
    monkeypatch.setattr(called, "operation_of", lambda name: operation)
    result, _warnings = called.run("one", given, True, node.validate, set().update, root="/fleet")
    assert result == {"params": expected}


def test_an_error_of_the_disk_is_an_error_with_a_code():
    operation = Operation({}, lambda _params, _check_mode: os.listdir("/proc/self/stat"))
    with mock.patch.object(called, "operation_of", return_value=operation):
        raised = error(called.run, "one", {}, True, node.validate, set().update)
    assert (raised.code, raised.details["errno"]) == ("node.os-error", "ENOTDIR")


@pytest.fixture
def asked():
    """Names of the operations that were run, each with its parameters; `results` is what they answer."""
    calls, results = [], {}

    def look(*looks):
        looks = [{"step": step, "operation": module, "arguments": {"a": 1}} for step, module in looks]
        return check.look(looks, answering(results, calls), lambda _operation, arguments: arguments, "")

    return types.SimpleNamespace(calls=calls, results=results, look=look)


def test_a_program_that_hangs_ends_the_look(asked):
    """The step that would say it waits for the same program, once more as long."""
    problem = FleetError("test.engine-problem", "docker does not answer")
    problem.__cause__ = TimedOut("test.timeout", "docker")
    asked.results.update(one={"changed": False}, two=problem, three={"changed": False})
    assert error(asked.look, ("preflight", "one"), ("prepare", "two"), ("serve", "three")) is problem


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"changed": True, "message": "would install it"}, "would install it"),
        ({"changed": True}, "two"),
        (FleetError("test.bad", "It is bad.\nSee there."), "It is bad."),
        (FleetError("test.bad", "Found one:\n 1. It.", details={"problems": [{"message": "It."}]}), "It."),
        (FleetError("test.bad", "Found:\n 1. It.", details={"problems": [{"message": one} for one in ("It.", "And.")]}),
         "It. (and 1 more)"),
        (KeyError("servers"), "KeyError: 'servers'"),
        (None, "nothing is known about two before it runs"),
    ],
)  # fmt: skip
def test_it_ends_with_the_first_that_differs(asked, answer, reason):
    asked.results.update(one={"changed": False, "warnings": ["slow"]}, three={"changed": False})
    if answer is not None:
        asked.results["two"] = answer
    found = asked.look(("preflight", "one"), ("weights", "two"), ("serve", "three"))
    assert (found["first"], found["warnings"]) == ("weights", ["slow"])
    assert found["steps"] == [{"step": "preflight", "differs": False, "reason": None},
                              {"step": "weights", "differs": True, "reason": reason}]  # fmt: skip
    assert asked.calls == [(name, {"a": 1}, True) for name in ("one", "two") if name in asked.results]


SERVERS = {"changed": False, "actions": [], "pending": {}, "answering": True, "servers": [], "kept": True,
           "diff": {"after": ""}}  # fmt: skip
BOTH = ("server-1", "server-2")
EDITED = [{"name": "server-1", "kind": "change", "reason": "unit was edited"}]
DOWN = [{"name": "server-1", "state": "waiting", "reason": "starting"}, {"name": "server-2", "state": "running"}]


@pytest.mark.parametrize(
    ("operation", "result", "due"),
    [
        ("engine_servers", SERVERS, None),
        ("engine_servers", {**SERVERS, "kept": False}, "the plan is not kept yet for a rollback"),
        ("engine_servers", {**SERVERS, "changed": True, "actions": EDITED}, "server-1: unit was edited"),
        ("engine_servers", {**SERVERS, "changed": True, "diff": {"after": "/x: removed\n"}}, "/x: removed"),
        ("engine_servers", {**SERVERS, "pending": {"server-3": "it hangs"}}, "server-3: it hangs"),
        ("engine_servers", {**SERVERS, "actions": EDITED, "pending": dict.fromkeys(BOTH, "unit was edited")},
         "server-1, server-2: unit was edited"),
        ("engine_servers", {**SERVERS, "answering": False, "servers": DOWN}, "server-1: starting"),
        ("engine_servers", {**SERVERS, "answering": False, "servers": DOWN[1:]}, "not every server answers"),
        ("model_weights", {"changed": False, "message": "up to date"}, None),
        ("model_weights", {"changed": False, "finished": False, "message": "reading"}, "reading"),
        ("model_weights", {"changed": True, "finished": True, "message": "would bring"}, "would bring"),
        ("container_engine", {"changed": False, "due": "docker is not installed"}, "docker is not installed"),
        ("container_image", {"changed": False, "ended": 0}, None),
        ("container_image", {"changed": False, "ended": 1}, "files of an ended pull must be removed"),
        ("container_image", {"changed": True, "msg": "would pull a"}, "would pull a"),
    ],
)  # fmt: skip
def test_what_makes_a_step_run(operation, result, due):
    assert called.operation_of(operation).due(result) == due
