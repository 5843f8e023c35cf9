# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang from the recipe to the verdict: planned, started and verified, with an engine that has SGLang's parser."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.sglang import ENGINE as NODE_ENGINE
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


@pytest.fixture
def planned(tmp_path):
    """A node, and a function of changes that returns the entry of its server."""
    (tmp_path / "model").mkdir()
    path = tmp_path / "small.yml"
    path.write_text(RECIPE % (tmp_path / "model", free_port(), sys.executable, ENGINE))
    hardware = parse_hardware({"accelerator": "cpu", "count": 1, "cores": 1}, "h")

    def entry(**change):
        recipe = recipes.resolve_recipe(str(path), [("fleet_override", change)] if change else [])
        (one,) = plan.plan_host("localhost", recipe, hardware, plan.Site(root=str(tmp_path / "root")))
        return one

    with watched(tmp_path):
        node = SmallNode(tmp_path / "root")
        try:
            yield node, entry
        finally:
            node.end()


def test_a_planned_server_starts_answers_and_is_verified(planned):
    node, entry = planned
    one = entry()
    assert node.servers([one])["changed"] and node.ready([one])
    result = node.module("endpoint_verify", [one], mode="full", timeout=60, responses_api=False)
    assert result["ok"] is True, [probe for probe in result["verdicts"][0]["probes"] if probe["ok"] is False]
    assert not node.servers([one])["changed"]


@pytest.fixture
def unchecked(monkeypatch):
    """The plan lets options through that the release rejects."""
    monkeypatch.setattr(plan.ENGINES["sglang"].__class__, "check_options", lambda *unused: None)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"mem-fraction-static": 0.05}, "raise mem-fraction-static"),
        ({"enable-double-sparsity": True}, "refuses its arguments"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_the_log_of_a_failed_start_has_its_cause(planned, change, cause):
    command = planned[1](arguments=change)["command"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode
    log = ended.stdout + ended.stderr
    assert cause in next(words for pattern, words in NODE_ENGINE.logs if re.search(pattern, log))
