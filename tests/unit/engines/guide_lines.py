# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server is started with, line by line, as pages set it beside a vendor's guide."""

from __future__ import annotations

import json

from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes

GPUS = {"gb200": 4, "gb300": 4, "trainium3": 16, "ascend-a3": 16}  # of a node; 8 of the others


def planned(name, overlays=(), layer=None, hardware=None, site=None):
    """(servers, the recipe as resolved, the hardware) of a recipe on a node of its own accelerators.

    layer: fleet_override; hardware: what is another of fleet_hardware.
    """
    layers = [("fleet_override", layer)] if layer else []
    resolved = recipes.resolve_recipe(recipes.find_recipe(name, []), layers, overlays)
    given = {"accelerator": resolved["needs"]["accelerators"][0], **(hardware or {})}
    parsed = parse_hardware({"count": GPUS.get(given["accelerator"], 8), **given}, "x")
    return plan.plan_host("node-1", resolved, parsed, site or plan.Site()), resolved, parsed


def by_key(words, content, program):
    """flags_and_keys() and, as "", the words of the program; `program` counts them."""
    return {"": " ".join(words[:program]), **flags_and_keys(words[program:], content)}


def variables(values):
    """{name: NAME=value}."""
    return {name: "%s=%s" % (name, value) for name, value in values.items()}


def flags_and_keys(words, content):
    """{flag, or key of the YAML: its line} of the words of a command and of its configuration."""
    found = {}
    for number, word in enumerate(words):
        if word.startswith("--"):
            value = words[number + 1] if number + 1 < len(words) and not words[number + 1].startswith("--") else None
            if value and value.startswith("{"):
                value = json.dumps(json.loads(value), separators=(",", ":"))
            found[word] = word if value is None else "%s %s" % (word, value)
    for key, value in content.items():
        for inner, item in value.items() if isinstance(value, dict) else [("", value)]:
            name = "%s.%s" % (key, inner) if inner else key
            found[name] = "%s: %s" % (name, json.dumps(item).strip('"'))
    return found
