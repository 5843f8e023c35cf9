# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS Trainium: asked of neuron-ls, and of the driver's files where the tools are missing.

What a node has is never concluded from its instance type: servers of one generation come with 4 and with 16 chips.
"""

from __future__ import annotations

from ...errors import FleetError
from ...node.cpu_list import format_cpu_list
from ...node.packages import package_versions
from ..base import Accelerators
from . import driver_files, neuron_ls
from .kinds import DRIVER, GENERATIONS, KINDS, RUNTIME


def detect(system):
    """Accelerators with one Device for each chip. FleetError where there is none, or none that can be asked."""
    kind, program = driver_files.device_kind(system), neuron_ls.tool(system, "neuron-ls")
    answer = neuron_ls.devices_of(system, program, kind) if program else None
    if answer and answer[0]:
        devices, lnc, kind = answer
        silent = sorted(set(driver_files.device_nodes(system)) - {device.id for device in devices})
        if silent:
            system.warn(
                "/dev has Neuron device%s %s, which neuron-ls does not list; see dmesg."
                % ("" if len(silent) == 1 else "s", format_cpu_list(silent))
            )
    else:
        devices, lnc = driver_files.devices_of(system, kind)
    if not devices:
        raise FleetError(
            "neuron.no-device",
            "This node shows no Neuron device: %s, and neither %s nor /dev/neuron* is there. Install and load the "
            "driver (aws-neuronx-dkms), or take the node out of this group.%s",
            (
                "neuron-ls lists none" if program else "neuron-ls is not installed",
                driver_files.DEVICES,
                "".join(" " + warning for warning in system.warnings),
            ),
        )
    packages = package_versions(system, [DRIVER, RUNTIME])
    driver = (system.read(driver_files.DRIVER) or "").strip() or packages.get(DRIVER)
    if kind is None:
        sizes = {device.memory_mib for device in devices}
        likely = [name.capitalize() for name, (_cores, gib) in KINDS.items() if sizes == {gib * 1024}]
        system.warn("The kind of the Neuron devices is not known: neither the driver's files nor neuron-ls name it.")
    return Accelerators(
        accelerator=kind or "unknown",
        vendor="AWS",
        model=kind.capitalize() if kind else " or ".join(likely) or "Unknown Neuron device",
        generation=GENERATIONS.get(kind, "unknown"),
        driver=driver or None,
        devices=devices,
        warnings=system.warnings,
        lnc=lnc,
        runtime=packages.get(RUNTIME),
    )
