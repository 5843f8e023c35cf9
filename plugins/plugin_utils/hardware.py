# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared hardware (fleet_hardware): which accelerators there are and what one server is given of them."""

from __future__ import annotations

import dataclasses

from ansible_collections.inference.fleet.plugins.module_utils.cpu_list import parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe_schema import show


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator. ``cores`` is physical cores of one device (0: servers are given whole devices)."""

    platform: str
    cores: int = 0
    lnc: int = 1
    lnc_allowed: tuple = (1,)
    memory_gib: float = 0.0


# Cores, LNC and memory: AWS Neuron architecture pages; memory of GPUs: nvidia-smi memory.total of the device;
# Ascend: 64 GiB HBM for one chip.
ACCELERATORS = {
    "cpu": Accelerator("cpu", cores=1),
    "trainium2": Accelerator("neuron", cores=8, lnc=2, lnc_allowed=(1, 2), memory_gib=96),
    "trainium3": Accelerator("neuron", cores=8, lnc=2, lnc_allowed=(1, 2), memory_gib=144),
    "h200": Accelerator("nvidia", memory_gib=140.4),
    "b200": Accelerator("nvidia", memory_gib=179.1),
    "gb200": Accelerator("nvidia", memory_gib=185.0),
    "ascend-a2": Accelerator("ascend", memory_gib=64),
    "ascend-a3": Accelerator("ascend", memory_gib=64),
}
KEYS = ("accelerator", "count", "cores", "lnc", "memory_gib", "cpu_affinity")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What the inventory declares of a node: ``count`` devices of ``cores`` physical cores each, at ``lnc``.

    cpu_affinity: (number of a device or logical core, CPUs near it as text) for each that is declared.
    """

    accelerator: str
    platform: str
    count: int
    cores: int
    lnc: int
    memory_gib: float
    cpu_affinity: tuple = ()

    @property
    def units(self):
        """How many pieces servers are made of: logical cores, or whole devices where there are no cores."""
        return self.count * self.cores // self.lnc if self.cores else self.count

    @property
    def chip(self):
        """How many of these pieces one device has."""
        return self.cores // self.lnc if self.cores else 1

    def fits_chips(self, size):
        """Whether a server of ``size`` pieces has whole devices or an equal part of one. Only Neuron cares."""
        return self.platform != "neuron" or size % self.chip == 0 or self.chip % size == 0

    @property
    def unit(self):
        """What a piece is called in messages."""
        return ("logical core" if self.platform == "neuron" else "core") if self.cores else "device"


def _number(where, key, value, kind):
    try:
        number = kind(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or number <= 0 or (kind is int and str(number) != str(value).strip()):
        raise FleetError(
            "%s: fleet_hardware.%s is %s; allowed: a %s above 0."
            % (where, key, show(value), "whole number" if kind is int else "number")
        )
    return number


def parse_hardware(declared, where):
    """Hardware from the variable fleet_hardware. ``where`` names the host in errors (FleetError)."""
    if not isinstance(declared, dict):
        raise FleetError(
            "%s: fleet_hardware is %s; allowed: a mapping with %s, for example {accelerator: trainium3, count: 16}."
            % (where, show(declared), ", ".join(KEYS))
        )
    unknown = sorted(set(declared) - set(KEYS))
    if unknown:
        raise FleetError(
            "%s: fleet_hardware has the unknown key '%s' (value %s); allowed: %s."
            % (where, unknown[0], show(declared[unknown[0]]), ", ".join(KEYS))
        )
    name = declared.get("accelerator")
    if name not in ACCELERATORS:
        raise FleetError(
            "%s: fleet_hardware.accelerator is %s; allowed: %s." % (where, show(name), ", ".join(ACCELERATORS))
        )
    kind = ACCELERATORS[name]
    if "count" not in declared:
        raise FleetError("%s: fleet_hardware lacks 'count', the number of %s devices." % (where, name))
    count = _number(where, "count", declared["count"], int)
    cores = _number(where, "cores", declared.get("cores", kind.cores), int) if kind.cores else 0
    if "cores" in declared and not kind.cores:
        raise FleetError("%s: fleet_hardware.cores has no meaning for %s; remove it." % (where, name))
    lnc = _number(where, "lnc", declared.get("lnc", kind.lnc), int)
    if lnc not in kind.lnc_allowed:
        raise FleetError(
            "%s: fleet_hardware.lnc is %d; allowed for %s: %s."
            % (where, lnc, name, ", ".join(str(item) for item in kind.lnc_allowed))
        )
    if cores and cores % lnc:
        raise FleetError(
            "%s: fleet_hardware: a device of %d cores does not divide into logical cores of %d (lnc)."
            % (where, cores, lnc)
        )
    memory = declared.get("memory_gib", kind.memory_gib)
    memory = _number(where, "memory_gib", memory, float) if memory else 0.0
    return Hardware(name, kind.platform, count, cores, lnc, memory, _affinity(where, declared.get("cpu_affinity")))


def _affinity(where, declared):
    """((device, CPUs as text), …) of {"0-3": "0-47,96-143"}: keys are devices, or ranges of them."""
    if declared is None:
        return ()
    found = {}
    try:
        for devices, cpus in declared.items():
            parse_cpu_list(str(cpus))
            for device in parse_cpu_list(str(devices)):
                if device in found:
                    raise FleetError("%s: fleet_hardware.cpu_affinity has the device %d twice." % (where, device))
                found[device] = str(cpus)
    except (AttributeError, ValueError):
        raise FleetError(
            "%s: fleet_hardware.cpu_affinity is %s; allowed: a mapping of devices to the CPUs near them, for example "
            '{"0-3": "0-47,96-143", "4-7": "48-95,144-191"}.' % (where, show(declared))
        ) from None
    return tuple(sorted(found.items()))
