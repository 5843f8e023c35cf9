# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner's interface of a platform: accelerators, memory, and settings of servers."""

from __future__ import annotations

import dataclasses

from ...module_utils.fleet_node.errors import FleetError
from ..base.checks import taken_twice
from ..base.words import show

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator.

    cores: physical cores of a device, 0 if servers are assigned complete devices. lnc: physical cores of a logical
    core. memory_gib: of a device. compute_capability: the vendor's number of the architecture, or "".
    """

    cores: int = 0
    lnc: int = 1
    lnc_allowed: tuple = (1,)
    memory_gib: float = 0.0
    compute_capability: str = ""


class Platform:
    """A platform. A file or folder of this package defines a platform and its object PLATFORM.

    name: in recipes. label: in messages. accelerators: {name: Accelerator}. unit: the name of what servers are
    assigned. usable: share of a device's memory that an engine can use. runtime_bytes: memory that the runtime uses.
    resident: {format of weights: factor of their size in an engine's memory}. splits: whether more devices give a
    server more memory. container: defaults of the recipe's container; mounts and devices are added to the recipe's.
    engine_settings: keys of docker's daemon.json that its containers require. unserved: families of models that its
    engines cannot serve. adapters: whether its engines load LoRA adapters. visible: {variable that selects the devices
    of a process: its value, None for their numbers}. single: pattern of words in a container's devices and flags that
    name a device, None if its containers share device files.
    """

    name = label = ""
    accelerators = {}
    unit = "device"
    usable, runtime_bytes, splits = 1.0, 0.0, True
    resident = {}
    container = {}
    engine_settings = {}
    unserved = ()
    adapters = True
    visible = {}
    single = None

    def lacks(self, hardware):
        """Formats of weights that the hardware does not compute."""
        return ()

    def fits_chips(self, hardware, size):
        """Whether a server of `size` units has complete devices or an equal part of a device, if that matters."""
        return True

    def placeholders(self, hardware, devices):
        """{name: value} of further placeholders, None without a value."""
        return {}

    def container_defaults(self, declared):
        """`container`, or the part that fits the recipe's declared container."""
        return self.container

    def daemon_settings(self, recipe):
        """`engine_settings`, or the settings that a recipe requires."""
        return self.engine_settings

    def check_server(self, where, server):
        """Raises FleetError if a server cannot run as planned. server: planning.plan.Draft, resolved."""

    def container_environment(self, server):
        """{name: value} of variables that a server's container requires by default. server: Draft, resolved."""
        return {}

    def artifact_key(self, server):
        """The key of the artifact that a server's engine compiles or loads, or None. server: Draft, unresolved."""

    def hooks(self, server, leaders):
        """{name: mapping} of actions around a start. leaders: servers of `start.after` that the server waits for only
        until their artifact is complete."""
        return {}

    def finish(self, entries, leader_first):
        """Complete the entries of a host, before their hashes are computed. Raises FleetError if they conflict.

        By default a process gets the variables in `visible`; a container contains no other devices. leader_first: names
        of the servers of which the first starts before the others.
        """
        taken = {}
        for entry in entries if self.visible else ():
            container, name = entry["container"], "server '%s'" % entry["name"]
            for word in (*container["devices"], *container["flags"]) if container and entry["devices"] else ():
                if self.single and self.single.match(word) and taken.setdefault(word, name) != name:
                    raise taken_twice(name + ": container", word, taken[word])
            if entry["devices"] and not container:
                numbers = ",".join(map(str, entry["devices"]))
                own = {name: value or numbers for name, value in self.visible.items()}
                entry["environment"] = {**own, **entry["environment"]}

    def notes(self, entry):
        """Sentences on a valid entry that the plan shows as warnings."""
        return []

    def operations(self, host):
        """[(operation, arguments)] of the platform's role, equal to its tasks; None if unknown, and then the step runs
        every time.

        host: planning.steps.Host. Its `step` is prepare, or weights if servers have the hook compile_cache.
        """
        return None

    # -- memory --------------------------------------------------------------------------------------------------------

    def rank_memory(self, hardware, on_host):
        """Bytes of memory of a rank of a server, as an engine reports them. on_host: servers of the host."""
        return hardware.memory_gib * GIB * self.usable

    def weights_format(self, declared, hardware):
        """The format of weights in memory."""
        return declared

    def layout(self, model):
        """The layout of a model in memory."""
        return model

    def memory(self, settings, entry, hardware, model):
        """An engine's memory() on this platform. Arguments are not changed. Raises engines.base.Unreadable."""
        return settings


def is_privileged(container):
    """Whether a container, None for a process, has all devices of the host."""
    return not {"--privileged", "--privileged=true"}.isdisjoint((container or {}).get("flags", ()))


def wrong_devices(where, variable, given, devices, inside, placeholder):
    """Return the FleetError of a variable that does not select a server's own devices. inside: the numbers that the
    variable must have, which differ from `devices` in a container."""
    own, counted = (",".join(map(str, numbers)) for numbers in (devices, inside))
    return FleetError(
        "plan.visible-devices",
        where,
        variable,
        show(given),
        own,
        "" if own == counted else ", which its container counts as " + counted,
        placeholder,
    )
