# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a platform is on a node, and how the accelerators that it finds are described."""

from __future__ import annotations

import dataclasses
import typing

from ..node import processes
from ..node.cpu_list import parse_cpu_list


@dataclasses.dataclass
class Device:
    """One device.

    id: the number that a plan entry's `devices` uses. memory_mib: MiB, or None where it cannot be read. cores: usable
    cores. numa: the kernel's node number, or None. cpus: the CPUs beside it, such as "0-3,8". health: "ok" or the
    vendor's word for what is wrong. holders: [{pid, command}] of the processes that have it open. core_ids: the numbers
    that a plan entry's `devices` uses where servers are given parts of a device, such as logical cores; empty where
    nothing tells which they are.
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


@dataclasses.dataclass
class Context:
    """What preflight knows of a node and its plan.

    root: fleet_root. system: host.System. entries: {name: plan entry}; only: names that the run is limited to, all
    where empty. hardware: fleet_hardware, needs: the recipe's; {} where there is none. models, venvs: of all groups of
    servers. installs: what the platform's role installs in this run, its `<platform>_packages`; {} where it may not.
    unchanged: names of the servers that run as planned. found: Accelerators, None where they are not there. fits: they
    are what is declared and needed. warnings: what works all the same, and what this run repairs.
    """

    root: str
    system: object
    entries: dict
    only: tuple = ()
    hardware: dict = dataclasses.field(default_factory=dict)
    needs: dict = dataclasses.field(default_factory=dict)
    models: tuple = ()
    venvs: tuple = ()
    installs: dict = dataclasses.field(default_factory=dict)
    unchanged: tuple = ()
    found: Accelerators | None = None
    fits: bool = False
    warnings: list = dataclasses.field(default_factory=list)

    @property
    def chosen(self):
        """{name: entry} of the servers that the run is about."""
        return {name: entry for name, entry in self.entries.items() if not self.only or name in self.only}


class Detector:
    """How one kind of accelerator is found and checked. `system` is a host.System; nothing on the node is changed.

    visible: environment variables that tell a process which devices it has. parts: servers are given parts of a device,
    such as cores. holds: a process holds a device for itself. start_hooks: {name in a plan entry's `hooks`: module with
    what the supervisor does around the start of a server that has it}. detects: whether nodes can be asked for it; one
    that cannot has nothing but the rest of these. lost_by_reload: a device file of nodes on which a daemon-reload of
    systemd may take devices away from containers, None where none does. setuid_helper: its driver starts setuid
    programs from within servers, whose units must not forbid that.
    """

    visible = ()
    parts = False
    holds = True
    detects = True
    lost_by_reload = None
    setuid_helper = False
    start_hooks: typing.ClassVar = {}

    def present(self, system):
        """Whether the node has such hardware, without asking each device."""
        raise NotImplementedError

    def detect(self, system):
        """Accelerators of the node. FleetError where the hardware is there and cannot be asked."""
        raise NotImplementedError

    def shortfalls(self, found, hardware, needs, installs=()):
        """Where `found` is less than declared and needed: messages that say what to do; [] where it suffices.

        hardware: fleet_hardware {accelerator, count, cores, lnc, memory_gib, exclude}, or {} where nothing is declared;
        what it excludes need not be there. needs: the recipe's. An absent key and a key that is None are the same.
        installs: what the platform's role installs, which is not held against the node.
        """
        raise NotImplementedError

    def unchecked(self, found, hardware, needs):
        """What shortfalls() could not check, since the node does not tell it: sentences; [] where nothing was left."""
        return []

    def driver_missing(self, context):
        """Whether the devices show only once the platform's role has installed the driver in this run."""
        return False

    def preflight(self, context):
        """[(check, [message])] of what else stops this platform's servers; it may add to context.warnings."""
        return []

    def given(self, pid, ids):
        """Those of `ids`, parts of a device that the process holds, that its environment gave to it.

        None where the environment does not tell, is not ours to read, or names others, as in a container, where they
        count from 0 again.
        """
        environment = processes.environment_of(pid)
        given = set()
        for name in self.visible:
            try:
                given |= parse_cpu_list(environment.get(name.encode(), b"").decode("utf-8", "replace").replace(" ", ""))
            except ValueError:
                return None
        return sorted(given & set(ids)) or None
