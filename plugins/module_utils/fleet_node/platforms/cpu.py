# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processors of a node, as a device for each NUMA node."""

from __future__ import annotations

from ..errors import FleetError
from ..host.values import format_cpu_list
from .base import Accelerators, Detector, Device

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
X86_VENDORS = {"AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "GenuineIntel": "Intel"}
# Flags in /proc/cpuinfo, the best first.
VECTORS = ("avx512_bf16", "avx512f", "avx2", "avx", "sse4_2", "sve2", "sve", "asimd")


def describe_cpu(system):
    """{vendor, model, generation, flags, processors}: three strings, sorted flags, and the numbers of all CPUs."""
    first, processors, flags = system.cpu_info()
    if "CPU implementer" in first:
        vendor, model = "ARM", "implementer %s part %s" % (first["CPU implementer"], first.get("CPU part", "?"))
    else:
        vendor = X86_VENDORS.get(first.get("vendor_id"), first.get("vendor_id") or "unknown")
        model = "unknown"
    return {
        "vendor": vendor,
        "model": first.get("model name") or model,
        "generation": next((flag for flag in VECTORS if flag in flags), "scalar"),
        "flags": sorted(flags),
        "processors": processors,
    }


def share(limit, amounts):
    """`amounts` (ints), reduced in proportion to a sum of `limit` if they exceed it."""
    total = sum(amounts)
    if total <= limit:
        return list(amounts)
    shares, seen = [], 0
    for amount in amounts:
        # Differences of running totals: rounding never adds up to more or less than the limit.
        shares.append(limit * (seen + amount) // total - limit * seen // total)
        seen += amount
    return shares


def _usable(system, processors):
    """The set of CPUs that this process may run on: online and in its affinity."""
    online = system.cpu_list(CPUS + "/online")
    if online is None:
        online = processors
    if not online:
        raise FleetError("cpu.unreadable", CPUS)
    offline = (system.cpu_list(CPUS + "/present") or set()) - online
    if offline:
        system.warn("CPUs %s are offline and are not counted." % format_cpu_list(offline))
    allowed = system.cpu_list("/proc/self/status", "Cpus_allowed_list")
    usable = online if allowed is None else online & allowed
    if usable != online:
        system.warn(
            "This process may run on CPUs %s only (its affinity), of %s online; only those are counted."
            % (format_cpu_list(usable), format_cpu_list(online))
        )
    return usable


def _layout(system, usable):
    """[(NUMA node or None, set of usable CPUs, MiB or None)], one for each node that has processors."""
    layout = []
    for node in system.numa_nodes():
        cpus = system.cpu_list("%s/node%d/cpulist" % (NODES, node))
        # A node without processors is memory alone (CXL, HBM); no server runs there.
        if cpus:
            memory = system.memory("%s/node%d/meminfo" % (NODES, node)).get("MemTotal")
            layout.append((node, cpus & usable, memory))
    if len(layout) < 2:
        # A single node is the entire machine, and its own meminfo can miss memory that was added while it ran.
        node = layout[0][0] if layout else None
        layout = [(node, usable, system.memory().get("MemTotal"))]
    return [(node, cpus, None if memory is None else memory // 1024) for node, cpus, memory in layout]


class Platform(Detector):
    """The processors of a node; a declared device is a share of the machine."""

    unit = "CPU core"
    shared = True

    def present(self, system):
        return True

    def detect(self, system):
        """Accelerators with one Device for each NUMA node that has processors; cores are logical CPUs."""
        cpu = describe_cpu(system)
        layout = _layout(system, _usable(system, cpu.pop("processors")))
        cores = [len(cpus) for _node, cpus, _memory in layout]
        quota = system.cpu_quota()
        if quota is not None and quota[0] < sum(cores):
            whole = max(int(quota[0]), 1)
            system.warn("%s allows %g CPUs of %d; cores are cut to %d." % (quota[1], quota[0], sum(cores), whole))
            cores = share(whole, cores)
        memory = [amount for _node, _cpus, amount in layout]
        if None in memory:
            system.warn("The memory of this node cannot be read.")
        else:
            limits = system.memory_limits()
            if limits and min(limits)[0] < sum(memory):
                most, _used, path = min(limits)
                system.warn("%s limits memory to %d MiB of %d MiB." % (path, most, sum(memory)))
                memory = share(most, memory)
        devices = [
            Device(id=number, memory_mib=memory[number], cores=cores[number], numa=node, cpus=format_cpu_list(cpus))
            for number, (node, cpus, _amount) in enumerate(layout)
        ]
        return Accelerators(accelerator="cpu", driver=None, devices=devices, warnings=system.warnings, **cpu)
