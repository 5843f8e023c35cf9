# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of engine_servers ask of a node."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until

SECRET = "hf_a-secret-value"


def row(result, name):
    return next(server for server in result["servers"] if server["name"] == name)


def pids(result):
    return {server["name"]: server["pid"] for server in result["servers"]}


def environment(pid):
    """That of the engine, once the guard has become it."""
    return wait_until(lambda: _of_engine(processes.environment_of(pid)), what="the engine")


def _of_engine(found):
    return found if b"SPT_NOENV" in found else None


CALL = """
import sys, json
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.tests.unit.operating import Operation
with patch_module_args(json.loads(sys.argv[1])):
    Operation("engine_servers").main()
"""
