# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record that is written again says what the engine does with a compiled artifact."""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.server_spec import ARTIFACT_RECORD
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import lost_record
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import compile_cache, plan_entry


@pytest.mark.parametrize(("owner", "expected"), [("this", "compiles"), ("another", "loads"), (None, "loads")])
def test_a_server_with_a_compiled_artifact_compiles_or_loads_it(tmp_path, owner, expected):
    pid, ticks = os.getpid(), processes.process(os.getpid()).ticks
    variable = "NEURON_COMPILED_ARTIFACTS"
    entry = plan_entry(8000, hooks=compile_cache("0" * 16), directories={"artifact": str(tmp_path)},
                       environment={variable: str(tmp_path)})  # fmt: skip
    if owner:
        record = {"pid": pid, "ticks": ticks if owner == "this" else ticks - 1}
        (tmp_path / ARTIFACT_RECORD).write_text(json.dumps(record))
    paths = NodePaths(str(tmp_path / "r"))
    assert lost_record._rebuilt(paths, "server-0", entry, pid, ticks)["artifact"] == expected
    assert lost_record._rebuilt(paths, "server-0", plan_entry(8000), pid, ticks)["artifact"] is None
