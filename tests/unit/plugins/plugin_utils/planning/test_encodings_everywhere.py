# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every container of every recipe has the encodings: without them each chat is an error though /health says 200."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes

COUNTS = {"gb200": 4, "gb300": 4, "ascend-a3": 16}  # of a node; 8 of the others
ENDPOINTS = (("etcd", "http://etcd-1:2379"), ("nats", "nats://nats-1:4222"))
OWN = {name: recipes.load_recipe(recipes.find_recipe(name, [])) for name in recipes.available([recipes.OWN_RECIPES])}
EACH = [(name, overlay) for name, own in OWN.items()
        if own.get("container") and "family" not in own["model"] for overlay in ("", *own["overlays"])]  # fmt: skip


@pytest.mark.parametrize(("name", "overlay"), EACH)
def test_the_encodings_are_mounted_where_the_engine_looks(name, overlay):
    resolved = recipes.resolve_recipe(recipes.find_recipe(name, []), [], (overlay,) if overlay else ())
    kind = resolved["needs"]["accelerators"][0]
    hardware = parse_hardware({"accelerator": kind, "count": COUNTS.get(kind, 8)}, "h")
    site = plan.Site(clustered="ETCD_ENDPOINTS" in resolved["environment"], endpoints=ENDPOINTS)
    entries = [one for one in plan.plan_host("h", resolved, hardware, site) if one["container"]]
    assert entries or resolved["launcher"] == "process"
    for entry in entries:
        mount = {"source": "/var/lib/inference-fleet/encodings", "target": "/var/lib/inference-fleet/encodings",
                 "read_only": True}  # fmt: skip
        assert entry["environment"]["TIKTOKEN_ENCODINGS_BASE"] == mount["target"]
        assert mount in entry["container"]["mounts"]
        assert "--mount=type=bind,source=%s,target=%s,readonly" % (mount["source"], mount["target"]) in entry["launch"]


def test_no_platform_with_containers_is_left_out():
    assert {OWN[name]["platform"] for name, _overlay in EACH} == {
        name for name, platform in PLATFORMS.items() if platform.container
    }
