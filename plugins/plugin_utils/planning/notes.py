# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines and platforms have to say on servers that are planned well: warnings beside those of their capacity."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import group_name


def with_notes(found, entries, deployment, hardware):
    """capacity.check's result with the notes of each server's engine and platform among its warnings.

    deployment: the resolved recipe. hardware: Hardware.
    """
    entries = {entry["name"]: entry for entry in entries}
    result = []
    for item in found:
        entry = entries[item["server"]]
        base = entry["name"].rpartition("-")[0]
        group = next((one for one in deployment["servers"] if group_name(one) == base), {})
        recipe = plan.for_group(deployment, group)
        own = (deployment.get("instances") or {}).get(entry["name"]) or {}
        container = {**(recipe.get("container") or {}), **(own.get("container") or {})} if entry["container"] else None
        engine = ENGINES[entry["engine"]].running(recipe.get("backend"))
        notes = engine.notes(entry, engine.version({**recipe, "container": container}), hardware)
        notes = [*notes, *PLATFORMS[entry["platform"]].notes(entry)]
        result.append({**item, "warnings": [*item["warnings"], *notes]})
    return result
