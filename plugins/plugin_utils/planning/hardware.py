# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared hardware (fleet_hardware): which accelerators there are and what one server is given of them."""

from __future__ import annotations

import dataclasses
import difflib

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.cpu_list import parse_cpu_list
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, check_number
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import odd_characters, show, visible
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS

ACCELERATORS = {
    name: (platform, kind) for platform in PLATFORMS.values() for name, kind in platform.accelerators.items()
}
KEYS = ("accelerator", "count", "cores", "lnc", "memory_gib", "cpu_affinity", "exclude")
MAX_COUNT, MAX_CORES, MAX_MEMORY = 1024, 8192, 65536  # of a node; of a device; GiB of a device


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What the inventory declares of a node: ``count`` devices of ``cores`` physical cores each, at ``lnc``.

    cpu_affinity: (number of a device or logical core, CPUs near it as text) for each that is declared. exclude: devices
    that servers are not given.
    """

    accelerator: str
    platform: str
    count: int
    cores: int
    lnc: int
    memory_gib: float
    cpu_affinity: tuple = ()
    exclude: tuple = ()

    @property
    def units(self):
        """How many pieces servers are made of: logical cores, or whole devices where there are no cores."""
        return self.count * self.cores // self.lnc if self.cores else self.count

    @property
    def chip(self):
        """How many of these pieces one device has."""
        return self.cores // self.lnc if self.cores else 1

    @property
    def excluded(self):
        """The pieces that servers are not given."""
        return frozenset(device * self.chip + piece for device in self.exclude for piece in range(self.chip))

    def fits_chips(self, size):
        """Whether a server of ``size`` pieces has whole devices or an equal part of one, where that matters."""
        return PLATFORMS[self.platform].fits_chips(self, size)

    @property
    def compute_capability(self):
        """Of the declared accelerator, such as "9.0"; "" where it has none."""
        return PLATFORMS[self.platform].accelerators[self.accelerator].compute_capability

    @property
    def unit(self):
        """What a piece is called in messages."""
        return PLATFORMS[self.platform].unit


def parse_hardware(declared, where):
    """Hardware from the variable fleet_hardware. ``where`` names the host in errors (FleetError, a line for each)."""
    if not isinstance(declared, dict):
        raise FleetError(
            "hardware.not-a-mapping",
            "%s: fleet_hardware is %s; allowed: a mapping with %s, for example {accelerator: %s, count: 1}.",
            (where, show(declared), ", ".join(KEYS), next(iter(ACCELERATORS))),
        )
    mistakes = Mistakes()
    for key in sorted(set(declared) - set(KEYS)):
        close = difflib.get_close_matches(key, KEYS, 1)
        mistakes.add(
            "hardware.key-unknown",
            "%s: fleet_hardware has the unknown key '%s'%s (value %s)%s; allowed: %s.",
            (
                where,
                visible(key),
                odd_characters(key),
                show(declared[key]),
                "; did you mean '%s'?" % close[0] if close else "",
                ", ".join(KEYS),
            ),
        )
    name = declared.get("accelerator")
    platform, kind = ACCELERATORS.get(name, (None, None)) if isinstance(name, str) else (None, None)
    if kind is None:
        mistakes.add(
            "hardware.accelerator-unknown",
            "%s: fleet_hardware.accelerator is %s; allowed: %s.",
            (where, show(name), ", ".join(ACCELERATORS)),
        )
    mistakes.raise_any()
    given = {key: value for key, value in declared.items() if value is not None}

    def read(key, default, high, whole=True):
        with mistakes.noted():
            return check_number("%s: fleet_hardware.%s" % (where, key), given.get(key, default), high, whole)
        return 0

    if "count" not in given:
        mistakes.add(
            "hardware.count-missing",
            "%s: fleet_hardware lacks 'count', the number of %s devices. Set it, for example {accelerator: %s, "
            "count: 1}.",
            (where, name, name),
        )
    count = read("count", 1, MAX_COUNT)
    cores = read("cores", kind.cores, MAX_CORES) if kind.cores else 0
    if "cores" in given and not kind.cores:
        mistakes.add(
            "hardware.cores-meaningless", "%s: fleet_hardware.cores has no meaning for %s; remove it.", (where, name)
        )
    lnc = read("lnc", kind.lnc, 64)
    if lnc not in kind.lnc_allowed and not mistakes.errors:
        mistakes.add(
            "hardware.lnc-invalid",
            "%s: fleet_hardware.lnc is %d; allowed for %s: %s.",
            (where, lnc, name, ", ".join(str(item) for item in kind.lnc_allowed)),
        )
    elif cores and lnc and cores % lnc:
        mistakes.add(
            "hardware.cores-do-not-divide",
            "%s: fleet_hardware.cores is %d, which does not divide into logical cores of %d (fleet_hardware.lnc). Set "
            "another number.",
            (where, cores, lnc),
        )
    memory = kind.memory_gib
    if "memory_gib" in given:
        memory = read("memory_gib", memory, MAX_MEMORY, whole=False)
    affinity = ()
    with mistakes.noted():
        affinity = _affinity(where, given.get("cpu_affinity"))
    exclude = given.get("exclude") or []
    if not isinstance(exclude, list) or any(
        not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < count for one in exclude
    ):
        mistakes.add(
            "hardware.exclude-invalid",
            "%s: fleet_hardware.exclude is %s; allowed: a list of device numbers from 0 to %d.",
            (where, show(given["exclude"]), count - 1),
        )
    mistakes.raise_any()
    hardware = Hardware(name, platform.name, count, cores, lnc, float(memory), affinity, tuple(sorted(set(exclude))))
    most = max(hardware.units, hardware.count)
    strange = [device for device, _cpus in affinity if device >= most]
    if strange:
        raise FleetError(
            "hardware.affinity-device-unknown",
            "%s: fleet_hardware.cpu_affinity has the device %d, but the node has %d; allowed: 0 to %d. Remove "
            "the others.",
            (where, strange[0], most, most - 1),
        )
    return hardware


def _affinity(where, declared):
    """((device, CPUs as text), …) of {"0-3": "0-47,96-143"}: keys are devices, or ranges of them."""
    if declared is None:
        return ()
    found = {}
    try:
        for devices, cpus in declared.items():
            if max(parse_cpu_list(str(cpus)), default=-1) not in range(MAX_CORES):
                raise ValueError
            for device in parse_cpu_list(str(devices)):
                if device in found:
                    raise FleetError(
                        "hardware.affinity-device-twice",
                        "%s: fleet_hardware.cpu_affinity has the device %d twice. Keep one.",
                        (where, device),
                    )
                found[device] = str(cpus)
    except (AttributeError, ValueError):
        raise FleetError(
            "hardware.affinity-invalid",
            "%s: fleet_hardware.cpu_affinity is %s; allowed: a mapping of devices to the CPUs near them, for example "
            '{"0-3": "0-47,96-143", "4-7": "48-95,144-191"}.',
            (where, show(declared)),
        ) from None
    return tuple(sorted(found.items()))
