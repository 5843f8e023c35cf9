# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which servers are no longer what they were when a measurement began."""

from __future__ import annotations

import dataclasses
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import starts
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed

NODE = types.SimpleNamespace(paths=None, manager=None)
RECORD = {"hash": "h", "pid": 7, "ticks": 70, "started": 1.5}
BEGAN = Observed("server-0", state=RECORD, fresh=True)


def container(name, running=True):
    return types.SimpleNamespace(id=name, running=running)


def seen(monkeypatch, observed):
    monkeypatch.setattr(starts, "observe", lambda *given: {"server-0": observed} if observed else {})
    return starts.starts_of(NODE, {"server-0": {}})


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({}, []),
        ({"state": {**RECORD, "phase": "running"}}, []),
        ({"fresh": False}, ["server-0"]),  # killed a moment ago; its record is the old one until it is started again
        ({"state": {**RECORD, "ticks": 71}}, ["server-0"]),
        ({"state": {**RECORD, "hash": "other"}}, ["server-0"]),
        ({"state": None}, ["server-0"]),
        ({"containers": [container("b")]}, ["server-0"]),
        ({"containers": [container("b", running=False)]}, []),
    ],
)
def test_what_is_another_start(monkeypatch, change, changed):
    before = seen(monkeypatch, BEGAN)
    assert starts.changed(before, seen(monkeypatch, dataclasses.replace(BEGAN, **change))) == changed


def test_one_that_is_gone_is_changed(monkeypatch):
    assert starts.changed(seen(monkeypatch, BEGAN), seen(monkeypatch, None)) == ["server-0"]
