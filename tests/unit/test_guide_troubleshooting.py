# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults in NVIDIA's gpt-oss guide for Dynamo, section Troubleshooting, made in the recipe: the plan refuses them.

Other tests produce the rest: the log of a worker without GPU memory (test_trtllm_logs.py, test_engine_ready.py), a
service that is away (supervise/test_order.py), a port that is held, no toolkit and no space (test_preflight.py), an
answer without end (verify/test_probes.py). Molecule's soak_dynamo_trtllm has a GPU that another process holds.
"""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load

CACHE = "config.content.kv_cache_config"


def planned(**layers):
    recipe = load.resolve_recipe(load.find_recipe("b200-dynamo-disagg", []), [("fleet_override", layers)])
    hardware = parse_hardware({"accelerator": "b200", "count": 8}, "inventory")
    return plan.plan_host("h", recipe, hardware, plan.Site())


def decode(**layers):
    return {"servers": {"decode": layers}}


@pytest.mark.parametrize(
    ("layers", "code", "value"),
    [
        # "Verify CUDA_VISIBLE_DEVICES settings match your GPU configuration"
        (decode(environment={"CUDA_VISIBLE_DEVICES": "3,4,5,6"}), "plan.visible-devices", "4,5,6,7"),
        # "Ensure that batch sizes in manual commands match those in configuration files"
        (decode(config={"content": {"max_batch_size": 64}}), "plan.flags-conflict", "config.content.max_batch_size"),
        # what the workers must have in common to connect
        (decode(config={"content": {"kv_cache_config": {"tokens_per_block": 64}}}), "plan.dynamo-servers-differ",
         CACHE + ".tokens_per_block"),
        (decode(config={"content": {"cache_transceiver_config": {"backend": "NIXL"}}}), "plan.dynamo-servers-differ",
         "config.content.cache_transceiver_config.backend"),
        (decode(environment={"DYN_DISCOVERY_BACKEND": "etcd", "ETCD_ENDPOINTS": "http://127.0.0.1:2379"}),
         "plan.dynamo-servers-differ", "DYN_DISCOVERY_BACKEND"),
    ],
)  # fmt: skip
def test_a_fault_is_refused(layers, code, value):
    with pytest.raises(FleetError) as found:
        planned(**layers)
    assert {error.code for error in found.value.problems} == {code}
    assert value in found.value.problems[0].values
