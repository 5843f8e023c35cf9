# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a detector of accelerators is, and the form that each of them fills."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Device:
    """One device.

    id: the number that a plan entry's `devices` uses. memory_mib: MiB, or None where it cannot be read. cores: usable
    cores. numa: the kernel's node number, or None. cpus: the CPUs beside it, such as "0-3,8". health: "ok" or the
    vendor's word for what is wrong. holders: [{pid, command}] of the processes that have it open. core_ids: the numbers
    that a plan entry's `devices` uses where servers are given parts of a device (logical cores of Trainium); empty
    where nothing tells which they are.
    """

    id: int
    memory_mib: int | None
    cores: int
    numa: int | None
    cpus: str
    health: str = "ok"
    holders: list = dataclasses.field(default_factory=list)
    core_ids: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Accelerators:
    """What a node has.

    accelerator: the name that fleet_hardware.accelerator has for it. generation: the vendor's word for what programs
    are built for. driver: its version, or None where there is none. flags: instruction sets and features, sorted.
    warnings: what could not be read, and what makes less of the hardware usable than there is. lnc: physical cores in a
    logical one, runtime: version of the vendor's library beside the driver; None where there is no such thing.
    """

    accelerator: str
    vendor: str
    model: str
    generation: str
    driver: str | None
    devices: list
    flags: list = dataclasses.field(default_factory=list)
    warnings: list = dataclasses.field(default_factory=list)
    lnc: int | None = None
    runtime: str | None = None

    def as_dict(self):
        """The same, ready for JSON."""
        return dataclasses.asdict(self)


class Detector:
    """How one kind of accelerator is found. `system` is a host.System; nothing on the node is changed."""

    def present(self, system):
        """Whether the node has such hardware, without asking each device."""
        raise NotImplementedError

    def detect(self, system):
        """Accelerators of the node. FleetError where the hardware is there and cannot be asked."""
        raise NotImplementedError

    def shortfalls(self, found, hardware, needs):
        """Where `found` is less than declared and needed: messages that say what to do; [] where it suffices.

        hardware: fleet_hardware {accelerator, count, cores, lnc, memory_gib}, or {} where nothing is declared.
        needs: the recipe's needs. An absent key and a key that is None are the same.
        """
        raise NotImplementedError

    def unchecked(self, found, hardware, needs):
        """What shortfalls() could not check, since the node does not tell it: sentences; [] where nothing was left."""
        return []
