# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of an operation on a node."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import called
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.discover import Operation
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.modules import node

ROOT = {"root": {"type": "str", "default": ""}}


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [(ROOT, {}, {"root": "/fleet"}), (ROOT, {"root": "/own"}, {"root": "/own"}), ({}, {}, {})],
)
def test_the_root_of_the_host_is_the_default(monkeypatch, spec, given, expected):
    operation = Operation(spec, lambda params, _check_mode: {"params": params})
    monkeypatch.setattr(called, "operation_of", lambda name: operation)
    result, _warnings = called.run("one", given, True, node.validate, set().update, root="/fleet")
    assert result == {"params": expected}


def test_an_error_of_the_disk_is_an_error_with_a_code(monkeypatch):
    operation = Operation({}, lambda _params, _check_mode: os.listdir("/proc/self/stat"))
    monkeypatch.setattr(called, "operation_of", lambda name: operation)
    with pytest.raises(FleetError) as raised:
        called.run("one", {}, True, node.validate, set().update)
    assert (raised.value.code, raised.value.details["errno"]) == ("node.os-error", "ENOTDIR")
