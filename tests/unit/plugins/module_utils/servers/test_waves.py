# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which turns decide() has servers changed that run."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.decide import decide
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import DesiredServer
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry, running

NEW = {"environment": {"A": "new"}}


def entry(name, *devices, **changes):
    """An entry with these devices; its port follows from its name."""
    port = changes.pop("port", 8000 + sum(map(ord, name)))
    return plan_entry(port, name, **{"devices": list(devices), **changes})


def failed(one):
    return running(one, state={"phase": "failed", "reason": "x"}, fresh=False, pids=[], service=Status("failed"))


def decided(planned, observed, changes="one_by_one", **options):
    """(what is done now, the waves)."""
    desired = {one["name"]: DesiredServer(one, definition="d") for one in planned}
    observed = {one.name: one for one in observed}
    found = decide(desired, observed, options.pop("state", "started"), changes=changes, **options)
    assert {one.name for one in found.postponed} <= {name for wave in found.waves for name in wave}
    return [(one.name, one.kind) for one in found.actions], found.waves


def worker(name, role="prefill", **changes):
    arguments = {"block-size": 16, **changes.pop("arguments", {})}
    return entry(name, role=role, engine="dynamo", port=None, arguments=arguments, **changes)


A, B, C = (entry(name, number) for number, name in enumerate("abc"))
A1, B1, C1 = (entry(name, number, **NEW) for number, name in enumerate("abc"))
# of a deployment of Dynamo, with the port of A and the device of B
FRONTEND = entry("f", 0, role="frontend", engine="dynamo", port=A["port"])
DECODE = entry("q", 1, role="decode", engine="dynamo", port=None)
FOLLOWS = {"after": ["a"], "restart_with_leader": True}
HUNG = ["it hangs"]


@pytest.mark.parametrize(("planned", "observed", "expected"), [
    # each by itself; what runs as planned is left alone, what does not run is started now
    ([A1, B1, C], [running(A), running(B), running(C)], ([], [["a"], ["b"]])),
    ([A1, B1, C1], [running(A), failed(B)], ([("b", "change"), ("c", "create")], [["a"]])),
    # a bare node, and one on which nothing serves
    ([A, B, C], [], ([("a", "create"), ("b", "create"), ("c", "create")], [])),
    ([A1, B1], [failed(A), failed(B)], ([("a", "change"), ("b", "change")], [])),
    # who starts after another one is changed after it, and restarts with it in its turn
    ([entry("a", 0, start={"after": ["b"]}, **NEW), B1], [running(A), running(B)], ([], [["b"], ["a"]])),
    ([A1, entry("b", 1, start=FOLLOWS)], [running(A), running(entry("b", 1, start=FOLLOWS))], ([], [["a", "b"]])),
    # fewer and larger servers, more and smaller ones: who holds the devices goes with who needs them
    ([entry("a", 0, 1), entry("b", 2, 3)],
     [running(entry("a", 0)), running(entry("b", 1)), running(entry("c", 2)), running(entry("d", 3))],
     ([], [["a", "b", "c", "d"]])),
    ([entry("a", 0), entry("b", 1), entry("c", 2), entry("d", 3)],
     [running(entry("a", 0, 1)), running(entry("b", 2, 3))], ([], [["a", "b", "c", "d"]])),
    ([entry("a", 0, 1), entry("b", 2)], [running(A), running(entry("x", 1)), running(entry("b", 2, **NEW))],
     ([], [["a", "x"], ["b"]])),
    # a port that another one has
    ([entry("a", 0, port=1), entry("b", 1, port=2)],
     [running(entry("a", 0, port=2)), running(entry("b", 1, port=1))], ([], [["a", "b"]])),
    # devices that servers share in the plan keep nobody from his own turn
    ([entry("a", 0, **NEW), entry("b", 0, **NEW)], [running(entry("a", 0)), running(entry("b", 0))],
     ([], [["a"], ["b"]])),
    # what the plan no longer has: at once where nothing is changed, else it serves to the end
    ([A], [running(A), running(B)], ([("b", "remove")], [])),
    ([A1], [running(A), running(B), running(C)], ([], [["a"], ["b", "c"]])),
    ([A1], [running(A), failed(B)], ([("b", "remove")], [["a"]])),
    # repairs first, each by itself
    ([A1, B, C], [running(A), running(B, faults=HUNG), running(C, faults=HUNG)], ([], [["b"], ["c"], ["a"]])),
    # a unit is rewritten now
    ([A, B1], [running(A, definition="x"), running(B)], ([("a", "redefine")], [["b"]])),
    # what the KV cache depends on changes together; what it does not, one by one
    ([worker("p", arguments={"block-size": 32}), worker("q", "decode", arguments={"block-size": 32}),
      entry("f", role="frontend", engine="dynamo", **NEW)],
     [running(worker("p")), running(worker("q", "decode")), running(entry("f", role="frontend", engine="dynamo"))],
     ([], [["p", "q"], ["f"]])),
    ([worker("p", **NEW), worker("q", "decode", **NEW)], [running(worker("p")), running(worker("q", "decode"))],
     ([], [["p"], ["q"]])),
    # a new deployment replaces servers at once, and more workers of one that serves start now
    ([FRONTEND, worker("p"), DECODE], [running(A), running(B)], ([], [["f", "p", "q", "a", "b"]])),
    ([FRONTEND, worker("p"), DECODE, worker("r")], [running(FRONTEND), running(worker("p")), running(DECODE)],
     ([("r", "create")], [])),
])  # fmt: skip
def test_turns(planned, observed, expected):
    assert decided(planned, observed) == expected


def test_together_is_one_turn_but_for_repairs_and_what_only_ends():
    planned, observed = [A1, B1, C], [running(A), running(B), running(C, faults=HUNG), running(entry("x", 5))]
    assert decided(planned, observed, "together") == ([], [["c"], ["a", "b"], ["x"]])


def test_a_call_for_one_wave_does_all_that_is_named():
    planned, observed = [A1, B1], [running(A, faults=HUNG), running(B, faults=HUNG), running(entry("x", 5))]
    assert decided(planned, observed, "wave", only=["b", "x"]) == ([("b", "change"), ("x", "remove")], [])
    assert decided([A, B], observed, "wave", only=["a", "b"]) == ([("a", "restart"), ("b", "restart")], [])


def test_named_servers_that_are_restarted_have_turns_as_well():
    observed = [running(A), running(B), running(C)]
    assert decided([A, B, C], observed, state="restarted", only=["a", "c"]) == ([], [["a"], ["c"]])


def test_what_an_earlier_run_did_not_verify_has_a_turn_whatever_it_does():
    for one in (running(A1), failed(A1)):
        actions, waves = decided([A1, B1], [one, running(B)], unverified=["a"])
        assert (actions, waves) == ([], [["a"], ["b"]])
    assert decided([A1, B1], [running(A1), running(B1)], unverified=["a", "b"]) == ([], [["a", "b"]])
    assert decided([B], [running(B)], unverified=["a"]) == ([], [])  # the plan has it no more
    planned, observed = [FRONTEND, worker("p"), DECODE], [running(FRONTEND), running(worker("p")), running(B)]
    assert decided(planned, observed, unverified=["f", "p"]) == ([], [["f", "p", "q", "b"]])
