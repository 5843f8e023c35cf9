# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the devices of a node are those that the inventory declares and the recipe needs."""

from __future__ import annotations

from ...node.cpu_list import format_cpu_list
from ..whole_devices import used
from .kinds import DRIVER, RUNTIME, mismatch, version_numbers


def shortfalls(found, hardware, needs, installs=()):
    """Chips, LNC, logical cores, memory and driver against what is declared and needed."""
    messages = []
    devices = used(found, hardware)
    declared, count, counted = hardware.get("count"), len(devices), "fleet_hardware.count"
    if declared and hardware.get("exclude"):
        declared, counted = declared - len(set(hardware["exclude"])), "fleet_hardware.count without exclude"
    notes = "".join(" " + warning for warning in found.warnings)
    if declared and count < declared:
        messages.append(
            "The inventory declares %d devices (%s), this node has %d (%s).%s %s"
            % (declared, counted, count, found.model, notes, _advice(devices, hardware))
        )
    lnc = hardware.get("lnc") or needs.get("lnc")
    if lnc and found.lnc and found.lnc != lnc:
        messages.append(
            "%s LNC %d (%s), this node runs at LNC %d. Run the node at LNC %d (NEURON_LOGICAL_NC_CONFIG), or plan "
            "for LNC %d: fleet_hardware.lnc, and needs.lnc and what else the recipe says of it; see "
            "docs/using/trainium.md."
            % (*(("The inventory declares", lnc, "fleet_hardware.lnc") if hardware.get("lnc")
                 else ("The recipe needs", lnc, "needs.lnc")), found.lnc, lnc, found.lnc)
        )  # fmt: skip
    elif declared and count >= declared and hardware.get("cores") and lnc and found.lnc:
        cores = sum(device.cores for device in devices[:declared])
        planned = declared * hardware["cores"] // lnc
        if cores < planned:
            messages.append(
                "The inventory declares %d logical cores (fleet_hardware: count %d × cores %d / lnc %d), these %d "
                "devices have %d. Set fleet_hardware.cores to what a device has."
                % (planned, declared, hardware["cores"], lnc, declared, cores)
            )
    least = [device.memory_mib for device in devices if device.memory_mib is not None]
    for amount, who, key in (
        (hardware.get("memory_gib"), "inventory declares", "fleet_hardware.memory_gib"),
        (needs.get("device_memory_gib"), "recipe needs", "needs.device_memory_gib"),
    ):
        if amount and least and min(least) < amount * 1024 * 0.99:
            messages.append(
                "The %s %g GiB of memory for a device (%s), this node has %.1f GiB. Correct the inventory, or take "
                "another node or recipe." % (who, amount, key, min(least) / 1024)
            )
    driver = None if DRIVER in installs else needs.get("driver")
    if driver and version_numbers(found.driver) < version_numbers(driver):
        messages.append(
            "The recipe needs driver %s or later (needs.driver), this node has %s. Update aws-neuronx-dkms."
            % (driver, found.driver or "none")
        )
    unfit = None if {DRIVER, RUNTIME} <= set(installs) else mismatch(found.driver, found.runtime)
    if unfit:
        messages.append(unfit)
    if needs.get("compute_capability"):
        messages.append(
            "The recipe needs compute_capability (needs.compute_capability), which Trainium does not have. Take a "
            "recipe for this platform."
        )
    return messages


def unchecked(found, hardware, needs):
    """What shortfalls() could not hold against the node, since the node does not tell it."""
    messages = []
    if (hardware.get("lnc") or needs.get("lnc")) and found.lnc is None:
        messages.append("LNC and logical cores (fleet_hardware.lnc and cores, needs.lnc)")
    if (hardware.get("memory_gib") or needs.get("device_memory_gib")) and any(
        device.memory_mib is None for device in used(found, hardware)
    ):
        messages.append("the memory of each device (fleet_hardware.memory_gib, needs.device_memory_gib)")
    return ["Not checked: %s; this node does not tell. Install aws-neuronx-tools." % one for one in messages]


def missing_cores(entries, found):
    """Cores that plan entries are given and the node does not have, as messages: a chip may be missing between others.

    Nothing where a device does not tell its cores.
    """
    if not all(device.core_ids for device in found.devices):
        return
    there = {core for device in found.devices for core in device.core_ids}
    for entry in entries:
        missing = set(entry["devices"]) - there
        if missing:
            yield (
                "%s is given core%s %s, which this node does not have: its devices %s have cores %s. Repair the node, "
                "or list the device that is missing in fleet_hardware.exclude."
                % (
                    entry["name"],
                    "" if len(missing) == 1 else "s",
                    format_cpu_list(missing),
                    format_cpu_list(device.id for device in found.devices),
                    format_cpu_list(there),
                )
            )


def _advice(devices, hardware):
    """What to do where devices are missing. A lower count helps only where the last ones are."""
    ids = {device.id for device in devices}
    lacking = set(range(hardware["count"])) - ids - set(hardware.get("exclude") or ())
    last = max(ids, default=-1)
    if not lacking or min(lacking) > last:
        return "Set fleet_hardware.count to %d, or repair the node." % (last + 1)
    words = "device %s is missing; or list it" if len(lacking) == 1 else "devices %s are missing; or list them"
    return "Repair the node: %s in fleet_hardware.exclude." % words % format_cpu_list(lacking)
