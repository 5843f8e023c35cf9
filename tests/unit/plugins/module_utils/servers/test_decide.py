# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""decide() and describe(): pure functions of how servers should be and how they are."""

from __future__ import annotations

import json
import os
import pathlib
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import Container
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import entry_hash, start_order
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import decide as deciding
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import observe as observing
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.decide import describe
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import (
    STARTS,
    STATES,
    DesiredServer,
    Observed,
    condition,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from hypothesis import given
from hypothesis import strategies as st


def entry(name="server-0", port=8000, command=("engine", "--port", "8000"), **changes):
    words = {"command": list(command), "launch": list(command)}
    return plan_entries.plan_entry(port, name, **{"host": "h", "devices": [], "model_id": "m", **words, **changes})


def running(one=None, **changes):
    return plan_entries.running(one or entry(), **changes)


def stopped(one=None, **changes):
    return running(one, **{"state": {}, "fresh": False, "service": None, "pids": [], "definition": None, **changes})


def desired(*entries, **changes):
    return {one["name"]: DesiredServer(one, definition="d", **changes) for one in entries}


def decide(*arguments, **named):
    """The actions that are decided on."""
    return deciding.decide(*arguments, **named).actions


def kinds(actions):
    return {action.name: (action.kind, action.reason) for action in actions}


def found(observed, planned=None, state="started"):
    """(kind, reason) of the action on server-0, None without one."""
    return kinds(decide(desired(planned or entry()), {"server-0": observed}, state)).get("server-0")


@pytest.mark.parametrize(("observed", "expected"), [
    (running(), None),
    (running(state={**running().state, "phase": "waiting for server-1"}), None),
    (running(service=Status("restarting", None, "it ended with exit status 1"), pids=[]), None),
    (running(state={**running().state, "hash": "0" * 64}),
     ("restart", "it runs an older entry than the deployed one")),
    (Observed("server-0"), ("create", "it is not deployed")),
    (running(entry(port=1)), ("change", "changed: port")),
    (running(entry(environment={"A": "1"}, command=["other"])), ("change", "changed: command, environment")),
    (stopped(), ("start", "it is stopped")),
    (stopped(definition="d"), ("start", "it is stopped: its service manager does not run it")),
    (stopped(state={"phase": "failed", "reason": "start limit"}), ("start", "it has failed: start limit")),
    (running(service=Status("failed", None, "no such file"), fresh=False, pids=[], state={}),
     ("start", "it has failed: no such file")),
    (running(service=None), ("restart", "it runs without its service manager (process 7)")),
    (running(definition="other", service=Status("up", 7, enabled=False)),
     ("redefine", "its service definition differs ()")),
    (stopped(service=Status("down", enabled=False), definition="d"),
     ("start", "it is stopped: its service manager does not run it")),
    (running(faults=["it hangs"], definition="other"), ("restart", "it hangs")),
    (running(config="text"), ("change", "changed: config")),
])  # fmt: skip
def test_what_differs_is_repaired(observed, expected):
    assert found(observed) == expected


OLD = {key: value for key, value in entry(host="old-name").items() if key not in ("hash", "cpus")}
# each of its servers runs as process 7
MANAGER = types.SimpleNamespace(
    statuses=lambda: {"server-0": Status("up", 7)}, defined=list, masked=lambda _: False,
    definition_path=lambda _: None, log_files=lambda _: [],
)  # fmt: skip


@pytest.mark.parametrize("deployed", [
    entry(host="old-name"),
    dict(OLD, hash=entry_hash(OLD)),  # of a commit that did not know the key
    entry(arguments={"tp": 1}, engine="other"),  # of a commit that read arguments in another way
])  # fmt: skip
@pytest.mark.parametrize("contained", [False, True])
def test_what_no_process_depends_on_is_no_difference(tmp_path, deployed, contained, monkeypatch):
    paths = NodePaths(str(tmp_path))
    files = {paths.entry("server-0"): deployed, paths.server_state("server-0"): running(deployed).state}
    for path, value in files.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(path).write_text(json.dumps(value))
    containers = [Container("c" * 64, "n", True, "server-0", str(tmp_path), deployed["hash"])] if contained else []
    monkeypatch.setattr(observing, "our_containers", lambda root, entries: {"server-0": containers})
    seen = observing.observe(paths, MANAGER, {"server-0": entry()})["server-0"]
    seen.fresh, seen.pids, seen.definition = True, [7], "d"
    assert condition(seen).hash == entry()["hash"]
    assert found(seen) is None
    other = entry(port=1)
    seen = observing.observe(paths, MANAGER, {"server-0": other})["server-0"]
    assert found(seen, other) == ("change", "changed: port")


def test_the_hash_does_not_count_the_host_and_counts_all_else():
    one = entry()
    assert entry(host="other")["hash"] == one["hash"]
    for key in set(one) - {"hash", "host"}:
        assert entry_hash(dict(one, **{key: "other"})) != one["hash"]


def test_the_order_is_the_plans_and_orphaned_servers_come_last_unless_names_are_given():
    plan = desired(entry("b"), entry("a"))
    observed = {"z": running(entry("z")), "c": running(entry("c")), "gone": Observed("gone")}
    order = [("b", "create"), ("a", "create"), ("c", "remove"), ("z", "remove")]
    assert [(action.name, action.kind) for action in decide(plan, observed, "started")] == order
    assert [action.name for action in decide(plan, observed, "started", only=["a"])] == ["a"]
    assert [action.name for action in decide(plan, observed, "absent", only=["c"])] == ["c"]
    assert decide(plan, observed, "started", only=["c"]) == []


def test_conditions():
    starting = condition(running(fresh=False))
    assert (starting.state, starting.reason, starting.hash) == ("waiting", "starting", None)
    record = {"phase": "waiting for a", "reason": "a is not deployed on this node", "count": 3}
    now = condition(running(state=record))
    assert (now.state, now.reason, now.restarts) == ("waiting", "waiting for a: a is not deployed on this node", 2)
    failed = condition(running(state={"phase": "failed", "reason": "it cannot be executed", "count": 2}))
    assert (failed.state, failed.reason, failed.restarts) == ("failed", "it cannot be executed", 1)


def test_leaders_start_first_and_a_circle_is_an_error():
    chain = {name: entry(name, start={"after": after}) for name, after in (("c", ["b"]), ("b", ["a"]), ("a", []))}
    assert start_order(chain) == ["a", "b", "c"]
    assert start_order({"c": chain["c"], "edited": {"name": "edited"}}) == ["c", "edited"]
    chain["a"] = entry("a", start={"after": ["c"]})
    caught = error(start_order, chain)
    assert (caught.code, caught.values) == ("servers.start-order-cycle", ("c, b, a",))


# ---- properties

NAMES = ("a", "b", "c", "d")


@st.composite
def seen_servers(draw):
    """Any mixture of what can be observed of four servers."""
    servers = {}
    for name in draw(st.sets(st.sampled_from(NAMES))):
        one = draw(st.sampled_from([None, entry(name), entry(name, environment={"A": "1"})]))
        alive = draw(st.booleans())
        service = draw(st.sampled_from([None, Status("up", 7), Status("down"), Status("failed", None, "x"),
                                        Status("restarting", None, "y"), Status("up", 7, enabled=False)]))  # fmt: skip
        phase = draw(st.sampled_from([None, "running", "failed", "waiting for a"]))
        state = {} if phase is None else {"phase": phase, "hash": (one or {}).get("hash"), "pid": 7, "count": 1}
        servers[name] = Observed(
            name, entry=one, state=state, service=service, fresh=draw(st.booleans()), pids=[7] if alive else [],
            definition=draw(st.sampled_from([None, "d", "other"])), secrets=draw(st.sampled_from([{}, {"A": "x"}])),
            files=["f"] if one else draw(st.sampled_from([[], ["f"]])),
        )  # fmt: skip
    return servers


PLANS = st.sets(st.sampled_from(NAMES)).map(lambda names: desired(*(entry(name) for name in sorted(names))))
ONLY = st.one_of(st.none(), st.lists(st.sampled_from(NAMES), max_size=3))


@given(PLANS, seen_servers(), st.sampled_from(STATES), ONLY)
def test_nothing_is_done_twice_or_beyond_what_was_named(plan, observed, state, only):
    actions = decide(plan, observed, state, only)
    names = [action.name for action in actions]
    assert len(names) == len(set(names)) == describe(actions, observed)["after"].count("  state: ")
    if only is not None:
        assert set(names) <= set(only)
        assert not any(action.kind == "remove" for action in actions if state in ("started", "restarted"))
    else:
        orphans = {name for name, one in observed.items() if name not in plan and one.is_there}
        assert {action.name for action in actions if action.kind == "remove" and action.name not in plan} == orphans
    if state in ("started", "restarted"):
        assert not any(action.kind == "stop" for action in actions)
        assert {action.name for action in actions if action.kind in STARTS} <= set(plan)
    else:
        assert not any(action.kind in STARTS for action in actions)


def follows(leader, name="work", **start):
    return entry(name, port=8001, start={"after": [leader], "restart_with_leader": True, **start})


LEAD, WORK, LAST = entry("lead"), follows("lead"), follows("work", "last")
PORT, LED = ("change", "changed: port"), ("restart", "it restarts with lead")
DOWN = [running(WORK, service=Status(state), pids=[]) for state in ("down", "failed")]  # by hand, still defined


@pytest.mark.parametrize(("followers", "observed", "given", "expected"), [
    ([LAST, WORK], [running(WORK), running(LAST)], {},
     {"lead": PORT, "work": LED, "last": ("restart", "it restarts with work")}),
    # one that runs restarts though nobody named it, as the plan has it now; a stopped one stays stopped
    ([WORK, LAST], [running(WORK), stopped(LAST)], {"only": ["lead"]}, {"lead": PORT, "work": LED}),
    ([WORK], [running(follows("lead", environment={"A": "1"}))], {"only": ["lead"]},
     {"lead": PORT, "work": ("change", "changed: start")}),
    *(([WORK, LAST], [one, stopped(LAST)], {"only": ["lead"]}, {"lead": PORT}) for one in DOWN),
    ([WORK, LAST], [running(WORK), stopped(LAST)], {"state": "stopped", "only": ["lead"]},
     {"lead": ("stop", "state is stopped")}),
    ([follows("lead", restart_with_leader=False)], [running(follows("lead", restart_with_leader=False))], {},
     {"lead": PORT}),
])  # fmt: skip
def test_a_server_restarts_with_its_leader_where_the_recipe_says_so(followers, observed, given, expected):
    seen = {one.name: one for one in (running(entry("lead", port=1)), *observed)}
    found = kinds(decide(desired(*followers, LEAD), seen, **{"state": "started", **given}))
    assert found == expected


def test_followers_stay_where_their_leader_does():
    assert decide(desired(LAST, WORK, LEAD), {one["name"]: running(one) for one in (LEAD, WORK, LAST)}, "started") == []


def container(hash_):
    return Container("c" * 64, "inference-fleet-server-0", True, "server-0", "/", hash_)


def test_a_container_says_itself_what_runs():
    assert found(running(containers=[container(entry()["hash"])])) is None
    older = ("restart", "it runs an older entry than the deployed one")
    assert found(running(containers=[container("0" * 64)])) == older
    left = running(service=None, pids=[], state={}, containers=[container("1" * 64)])
    now, words = condition(left), "it runs without its service manager"
    assert (now.state, now.hash, now.managed, now.reason) == ("running", "1" * 64, False, words)
    assert [found(left, state=state)[0] for state in ("started", "stopped")] == ["restart", "stop"]
