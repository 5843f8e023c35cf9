# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan asks of a platform: its accelerators, its memory, and what it adds to a server."""

from __future__ import annotations

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator. ``cores`` is physical cores of one device (0: servers are given whole devices), `lnc` how
    many of them make a logical one. memory_gib: of one device. compute_capability: the vendor's number of what programs
    are built for, "" where it has none."""

    cores: int = 0
    lnc: int = 1
    lnc_allowed: tuple = (1,)
    memory_gib: float = 0.0
    compute_capability: str = ""


class Platform:
    """A platform; a file or folder here defines one and its object PLATFORM.

    name: in recipes. label: for people. accelerators: {name: Accelerator}. unit: what a piece is called that servers
    are given. usable: share of a device's memory that an engine sees. runtime_bytes: what the runtime takes of it.
    resident: {format of weights: how much larger an engine holds them}. splits: whether
    more devices give a server more memory. container: defaults under the recipe's container; its mounts and devices are
    added to the recipe's. engine_settings: keys of docker's daemon.json without which its containers do not start.
    """

    name = label = ""
    accelerators = {}
    unit = "device"
    usable, runtime_bytes, splits = 1.0, 0.0, True
    resident = {}
    container = {}
    engine_settings = {}

    def fits_chips(self, hardware, size):
        """Whether a server of ``size`` pieces has whole devices or an equal part of one, where that matters."""
        return True

    def placeholders(self, hardware, devices):
        """{name: value} of placeholders beyond those of every server, None for one without a value."""
        return {}

    def container_defaults(self, declared):
        """`container`, or what of it suits a recipe's container as it is declared."""
        return self.container

    def daemon_settings(self, recipe):
        """`engine_settings`, or what a recipe needs of docker's daemon.json."""
        return self.engine_settings

    def check_recipe(self, recipe, hardware):
        """FleetError where the platform cannot run what the recipe says, whatever the server."""

    def check_server(self, where, server):
        """FleetError where a server cannot run as it is given. server: planning.plan.Draft, all of it resolved."""

    def artifact_key(self, server):
        """The key of what a server's engine compiles or loads, None where it compiles nothing. Draft: unresolved."""

    def hooks(self, server, leaders):
        """{name: mapping} of what the node does beside starting the engine. leaders: servers of `start.after` that
        may only be waited for until what they compile is complete."""
        return {}

    def finish(self, entries, leader_first):
        """Complete the entries of a host, which lack their hashes; FleetError where they would be in each other's way.

        leader_first: names of the servers whose first one starts before the others.
        """

    def notes(self, entry):
        """What to say of a server that is planned well: sentences, shown as warnings of the plan."""
        return []

    def operations(self, host):
        """What the role of the platform runs: [(operation, arguments)], as its tasks call the modules; None where that
        is not known, and then the step runs each time.

        host: planning.steps.Host. Its `step` is prepare, or weights where servers have the hook compile_cache.
        """
        return None

    def checks_eagle3(self, entries):
        """Whether an EAGLE3 head must be of a form that the servers' engine has for itself. entries: of the plan."""
        return False

    # -- memory --------------------------------------------------------------------------------------------------------

    def rank_memory(self, hardware, on_host):
        """Bytes of memory that one rank of a server has, as an engine sees them. on_host: servers of the host."""
        return hardware.memory_gib * GIB * self.usable

    def weights_format(self, declared, hardware):
        """The format in which weights lie in memory."""
        return declared

    def layout(self, model):
        """A model as engines lay it out in memory."""
        return model

    def memory(self, settings, entry, hardware, model):
        """An engine's memory() as it is on this platform. Changes nothing that is passed. engines.base.Unreadable."""
        return settings
