# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang from the recipe to the verdict: planned, started and verified, with an engine that has SGLang's parser."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines import small_node
from ansible_collections.inference.fleet.tests.unit.engines.small_node import SmallNode, free_port, watched

ENGINE = str(Path(small_node.__file__).with_name("sglang_engine.py"))
RECIPE = """schema: 1
name: small
extends: sglang
platform: cpu
launcher: process
container: null
needs: {accelerators: [cpu]}
model: {source: path, path: %s, id: small}
servers: {server: {count: 1, port: %d}}
command: [%s, -I, -S, %s, serve]
arguments: {tensor-parallel-size: null}
start: {health_path: /health_generate, budget_s: 60, poll_s: 1}
"""


def test_a_planned_server_starts_answers_and_is_verified(tmp_path):
    (tmp_path / "model").mkdir()
    path = tmp_path / "small.yml"
    path.write_text(RECIPE % (tmp_path / "model", free_port(), sys.executable, ENGINE))
    hardware = parse_hardware({"accelerator": "cpu", "count": 1, "cores": 1}, "h")
    site = plan.Site(root=str(tmp_path / "root"))
    entries = plan.plan_host("localhost", recipes.resolve_recipe(str(path), []), hardware, site)
    with watched(tmp_path):
        node = SmallNode(tmp_path / "root")
        try:
            assert node.servers(entries)["changed"] and node.ready(entries)
            result = node.module("endpoint_verify", entries, mode="full", timeout=60, responses_api=False)
            assert result["ok"] is True, [one for one in result["verdicts"][0]["probes"] if one["ok"] is False]
            assert not node.servers(entries)["changed"]
        finally:
            node.end()
