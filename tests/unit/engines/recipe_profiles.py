# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shipped recipes planned for the benchmark of their guides."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines import plans

NAMES = [one for one in plans.OWN if "embedding" not in one]  # which nothing measures


def hardware_of(recipe):
    """Half a node of an Atlas A3, and two cores; for other recipes a node of the first kind that they are for."""
    kind = recipe["needs"]["accelerators"][0]
    count = {"ascend-a3": 8, "cpu": 2}.get(kind, plans.COUNTS.get(kind, 8))
    return parse_hardware({"accelerator": kind, "count": count}, "x")


def planned(name, overlay=None, layers=()):
    """(plan entries, the recipe as resolved)."""
    clustered = name == "gb200-dynamo-disagg" or overlay in ("frontend", "prefill", "decode")
    overlays = [one for one in ("etcd" if clustered and name == "cpu-dynamo" else None, overlay) if one]
    recipe = recipes.resolve_recipe(recipes.find_recipe(name, []), list(layers), overlays)
    site = plan.Site(endpoints=(("etcd", "http://192.0.2.1:2379"),), clustered=clustered)
    return plan.plan_host("node-1", recipe, hardware_of(recipe), site), plan.deployment(recipe, site, "node-1")
