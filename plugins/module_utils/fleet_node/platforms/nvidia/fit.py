# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs of a node are those that the inventory declares and the recipe needs."""

from __future__ import annotations

from ...node.cpu_list import format_cpu_list
from ..whole_devices import used
from . import kinds


def shortfalls(found, hardware, needs):
    """Number, memory, driver and compute capability against what is declared and needed."""
    messages = []
    devices = used(found, hardware)
    notes = "".join(" " + warning for warning in found.warnings)
    declared = hardware.get("count")
    if declared:
        there = {device.id for device in found.devices}
        missing = set(range(declared)) - there - set(hardware.get("exclude") or ())
        if missing:
            messages.append(
                "The inventory declares %d GPUs (fleet_hardware.count), nvidia-smi lists %d (%s): %s %s missing.%s "
                "GPUs are numbered in the order of the PCI bus, so behind one that is gone they move up. Repair the "
                "node and reboot it, or set fleet_hardware.count to %d."
                % (declared, len(there), format_cpu_list(there) or "none", format_cpu_list(missing),
                   "is" if len(missing) == 1 else "are", notes, len(there))
            )  # fmt: skip
    others = sorted(
        {str(device.product) for device in devices if device.kind != found.accelerator and not device.faults}
    )
    if others and found.accelerator != "unknown":
        messages.append(
            "This node also has %s beside %s. Exclude those in fleet_hardware.exclude: servers of one recipe need one "
            "kind of GPU." % (", ".join(others), found.model)
        )
    least = [device.memory_mib for device in devices if device.memory_mib is not None]
    usual = kinds.KINDS.get(found.accelerator, (None, 0, ""))[1] / 1024
    for amount, who, key in (
        (hardware.get("memory_gib") or usual, "The plan counts on", "fleet_hardware.memory_gib"),
        (needs.get("device_memory_gib"), "The recipe needs", "needs.device_memory_gib"),
    ):
        if amount and least and min(least) < amount * 1024 * (1 - kinds.SAME):
            messages.append(
                "%s %.4g GiB of memory for a GPU (%s), this node's %s have %.4g GiB. Set fleet_hardware.memory_gib to "
                "that, or take another node or recipe." % (who, amount, key, found.model, min(least) / 1024)
            )
            break
    messages += _driver(found, needs)
    wanted = [str(one) for one in needs.get("compute_capability") or ()]
    wrong = [device for device in devices if device.compute_capability and device.compute_capability not in wanted]
    if wanted and wrong:
        messages.append(
            "The recipe needs the compute capability %s (needs.compute_capability), this node's %s has %s (%s). Take a "
            "recipe for this GPU."
            % (" or ".join(wanted), wrong[0].product, wrong[0].compute_capability,
               kinds.ARCHITECTURES.get(wrong[0].compute_capability, "an architecture without a name here"))
        )  # fmt: skip
    if needs.get("lnc"):
        messages.append("The recipe needs lnc (needs.lnc), which a GPU does not have. Take a recipe for this platform.")
    return messages


def _driver(found, needs):
    least = needs.get("driver")
    if not least or not found.driver:
        return
    if kinds.version_numbers(found.driver) < kinds.version_numbers(str(least)):
        runs, wanted = kinds.cuda_of_driver(found.driver), kinds.cuda_of_driver(str(least))
        yield (
            "The recipe needs the NVIDIA driver %s or later (needs.driver)%s, this node has %s%s. Install a newer one "
            "(docs/using/nvidia.md has the commands) and reboot, or take an image that is built for this driver."
            % (least, ", for CUDA %s" % wanted if wanted else "", found.driver,
               ", which runs CUDA up to %s" % runs if runs else "")
        )  # fmt: skip


def unchecked(found, hardware, needs):
    """What shortfalls() could not hold against the node, since nvidia-smi does not tell it."""
    devices, messages = used(found, hardware), []
    if any(device.memory_mib is None for device in devices):
        messages.append("the memory of each GPU (fleet_hardware.memory_gib, needs.device_memory_gib)")
    if needs.get("compute_capability") and any(device.compute_capability is None for device in devices):
        messages.append("the compute capability of each GPU (needs.compute_capability)")
    if needs.get("driver") and not found.driver:
        messages.append("the driver (needs.driver)")
    return ["Not checked: %s; nvidia-smi does not tell." % one for one in messages]
