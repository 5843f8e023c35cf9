# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan of a host is held against: the recipe's needs, ports, and what Linux takes as argv and environment."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show

FIRST_PORT = 1024  # those below are the superuser's
MAX_WORD = 128 * 1024 - 64  # of an argv or environment: MAX_ARG_STRLEN, less the variable's name


def check_needs(recipe, hardware):
    """FleetError unless the declared hardware is of the kind that the recipe needs."""
    needs = recipe["needs"]
    if hardware.accelerator not in needs["accelerators"]:
        raise FleetError(
            "plan.accelerator-not-for-recipe",
            "fleet_hardware.accelerator is '%s'; recipe %s runs on: %s. Correct it, or choose another fleet_recipe.",
            (hardware.accelerator, recipe["name"], ", ".join(needs["accelerators"])),
        )
    if hardware.platform != recipe["platform"]:
        raise FleetError(
            "plan.platform-not-for-recipe",
            "recipe %s is for platform %s, but fleet_hardware.accelerator '%s' is of platform %s. Choose another "
            "fleet_recipe.",
            (recipe["name"], recipe["platform"], hardware.accelerator, hardware.platform),
        )
    if "lnc" in needs and hardware.lnc != needs["lnc"]:
        raise FleetError(
            "plan.lnc-not-for-recipe",
            "fleet_hardware.lnc is %d; recipe %s needs %d. Set that where the node has it.",
            (hardware.lnc, recipe["name"], needs["lnc"]),
        )
    if hardware.memory_gib and hardware.memory_gib < needs.get("device_memory_gib", 0):
        raise FleetError(
            "plan.device-memory-too-small",
            "fleet_hardware.memory_gib is %g; recipe %s needs %g for each device. Correct it, or choose another "
            "fleet_recipe.",
            (hardware.memory_gib, recipe["name"], needs["device_memory_gib"]),
        )


def check_ports(entries, recipe, mistakes):
    """All ports of a host are ones that its servers may have, and none is taken twice."""
    taken = {}
    for entry in entries:
        first = 1 if entry["launcher"] == "container" or entry["user"] == "root" else FIRST_PORT
        own = (recipe.get("instances") or {}).get(entry["name"]) or {}
        group = "servers.%s" % entry["name"].rpartition("-")[0]
        ports = [("instances.%s.port" % entry["name"] if own.get("port") else group + ".port", entry["port"])]
        ports += [("%s.ports.%s" % (group, kind), port) for kind, port in entry["ports"].items()]
        for key, port in ports:
            if port is None:
                continue
            text = "%s gives '%s' the port %d" % (key, entry["name"], port)
            if not first <= port <= 65535:
                why = "; those below are for root alone" if 0 < port < first else ""
                mistakes.add(
                    "plan.port-invalid", "%s; allowed: %d to 65535%s. Set another first port.", (text, first, why)
                )
            if port in taken:
                mistakes.add(
                    "plan.port-twice",
                    "%s, which is also that of %s. Set another first port for one of them.",
                    (text, taken[port]),
                )
            taken.setdefault(port, "%s ('%s')" % (key, entry["name"]))


def check_bytes(where, words):
    """argv and environment end at a NUL byte; one inside would cut what the engine sees. words: {key: its words}."""
    for key, values in words.items():
        for value in values:
            if "\0" in value:
                raise FleetError(
                    "plan.nul",
                    "%s: %s has %s with a NUL character, which no argv or environment can hold. Remove it.",
                    (where, key, show(value)),
                )
            if len(value.encode("utf-8", "surrogatepass")) >= MAX_WORD:
                raise FleetError(
                    "plan.word-too-long",
                    "%s: %s has a word of %d KiB; allowed: less than %d KiB, as Linux takes no longer one. Shorten it.",
                    (where, key, len(value) // 1024, MAX_WORD // 1024),
                )
