# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ascend NPUs by npu-smi: the chips of a node, and what prevents servers from using them."""

from __future__ import annotations

import dataclasses
import os
import re
import typing

from ...errors import FleetError
from .. import base
from ..base import Accelerators, Detector, Device
from ..host import run_tool
from . import npu_smi

VENDOR, CLASS = "0x19e5", "0x1200"  # Huawei; processing accelerators
MANAGER = "/dev/davinci_manager"
INSTALLED = "/etc/ascend_install.info"
FOLDER = "/usr/local/Ascend"
COMMANDS = "docs/using/ascend.md has the commands"
A2, A3 = "ascend-a2", "ascend-a3"
GENERATIONS = {A2: "Atlas A2", A3: "Atlas A3"}
RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
# (condition on what npu-smi prints, cause and remedy)
REASONS_FOR_NO_ANSWER = (
    ("-8020|device is used",
     "another container uses the NPUs (-8020). Stop that container, or run the play on the host itself"),
    ("initialize.*dcmi|dcmi.*initialize",
     "the driver's management interface (DCMI) does not start. Driver and firmware may be of different releases or "
     "partly installed, or a container uses all chips"),
)  # fmt: skip


@dataclasses.dataclass
class NpuDevice(Device):
    """A chip, by the number of its /dev/davinci. address: on the PCI bus. product: its name. npu, chip: npu-smi's two
    numbers. faults: sentences on what prevents servers from using it."""

    address: str = ""
    product: str | None = None
    npu: int = 0
    chip: int = 0
    faults: list = dataclasses.field(default_factory=list)


def on_the_bus(system):
    """Number of Huawei's NPUs on the PCI bus."""
    return sum(kind.startswith(CLASS) for _address, kind, _device in system.pci_devices(VENDOR))


def kind_of(chips):
    """(name of fleet_hardware.accelerator, generation). A2: chips named 910B…, one an NPU. A3: Ascend910 with a Phy-ID,
    two an NPU; the first Ascend910 has that name too. Others, which no recipe is for, by their name: ascend-950pr."""
    if any(one.phy is not None for one in chips) and all(one.name.startswith("Ascend910") for one in chips):
        return A3, GENERATIONS[A3]
    if chips and all(one.name.startswith("910B") for one in chips):
        return A2, GENERATIONS[A2]
    name = "ascend-" + re.sub(r"[^a-z0-9]", "", chips[0].name.lower().replace("ascend", "")) if chips else "unknown"
    return name, "unknown"


def numbers(system, chips, mapped):
    """{(NPU, chip): number of its /dev/davinci}: the Phy-ID on A3; on A2 the NPU's number, or the logic id if only that
    has such files."""
    phy = {(one.npu, one.chip): one.phy if one.phy is not None else mapped.get((one.npu, one.chip), (0, None))[1]
           for one in chips}  # fmt: skip
    if None not in phy.values():
        return phy
    logic = {key: value[0] for key, value in mapped.items()}
    own = {(one.npu, one.chip): one.npu for one in chips}

    def files(found):
        return sum(os.path.exists("%s/dev/davinci%d" % (system.sysroot, number)) for number in found.values())

    return logic if set(logic) == set(own) and files(logic) > files(own) else own


def detect(system):
    """Accelerators with an NpuDevice for each chip. Raises FleetError if there is none or npu-smi does not answer."""
    tool = system.program("npu-smi")
    if tool is None:
        raise FleetError(
            "ascend.driver-missing",
            "This node has no npu-smi; Huawei NPUs on its PCI bus: %d. Install driver and firmware (Ascend HDK; "
            "docs/using/ascend.md has the commands) and reboot, or remove the node from this group.",
            (on_the_bus(system),),
        )
    status, text = run_tool([tool, "info"])
    _version, chips = npu_smi.parse_info(text, system.warn)
    if not chips:
        refuse(system, text.strip() or str(status))
    mapped = npu_smi.parse_map(run_tool([tool, "info", "-m"])[1], system.warn)
    number = numbers(system, chips, mapped)
    devices = sorted((_device(system, tool, one, number[one.npu, one.chip]) for one in chips), key=lambda one: one.id)
    if len({one.id for one in devices}) < len(devices):
        refuse(system, "two chips have the same number (%s)" % ", ".join(str(one.id) for one in devices))
    kind, generation = kind_of(chips)
    if kind not in GENERATIONS:
        system.warn("The NPUs of this node are no Atlas A2 or A3: %s." % ", ".join(sorted({o.name for o in chips})))
    return Accelerators(
        accelerator=kind, vendor="Huawei", model=chips[0].name, generation=generation, driver=driver_version(system),
        devices=devices, warnings=system.warnings,
    )  # fmt: skip


def _device(system, tool, chip, number):
    device = NpuDevice(
        id=number, memory_mib=chip.hbm[1] if chip.hbm else None, cores=1, numa=None, cpus="", holders=chip.holders,
        core_ids=[number], address=chip.bus, product=chip.name, npu=chip.npu, chip=chip.chip,
    )  # fmt: skip
    device.locate(system, device.address)
    if chip.hbm is None:
        system.warn("npu-smi does not report the memory of NPU %d (%s)." % (number, chip.bus))
    if chip.health.upper() != "OK":
        asked = [tool, "info", "-t", "health", "-i", str(chip.npu), "-c", str(chip.chip)]
        codes = npu_smi.error_codes(run_tool(asked)[1])
        device.health = chip.health
        device.faults = [
            "NPU %d (%s) is not OK: its health is %s%s. Look at `npu-smi info -t health -i %d -c %d` and at dmesg; a "
            "reset (`npu-smi set -t reset -i %d -c %d`) or a reboot clears most of it. Where it comes back, list %d in "
            "fleet_hardware.exclude and have the board replaced."
            % (number, chip.bus, chip.health, " (error %s)" % codes if codes else "", chip.npu, chip.chip, chip.npu,
               chip.chip, number)
        ]  # fmt: skip
    return device


def driver_version(system):
    """The version of the installed driver, or None."""
    folder = npu_smi.parse_settings(system.read(INSTALLED)).get("Driver_Install_Path_Param") or FOLDER
    return npu_smi.parse_settings(system.read(folder + "/driver/version.info")).get("Version") or None


def refuse(system, text):
    """Raises FleetError for what npu-smi printed instead of a table."""
    words = " ".join(text.split())
    if os.geteuid() != 0 or "ermission" in words:
        cause = "this user may lack the rights. Run the play with become, or add the user to the group HwHiAiUser"
    elif not system.exists(MANAGER):
        cause = (
            "the driver is installed and not loaded: %s is missing. Look at `lsmod | grep drv_` and dmesg: after a new "
            "kernel the driver has to be installed again (%s)" % (MANAGER, COMMANDS)
        )
    else:
        found = (cause for pattern, cause in REASONS_FOR_NO_ANSWER if re.search(pattern, words))
        cause = next(found, "look at dmesg")
    raise FleetError(
        "ascend.no-answer",
        "npu-smi gives no answer on this node: %s: %s. Check `npu-smi info` as root there, and reboot the node.",
        (words[:200], cause),
    )


class Platform(Detector):
    """A Device is a chip, by the number of its /dev/davinci."""

    unit = "NPU"
    has = ("driver",)
    tolerance = 1 / 64
    advice: typing.ClassVar = {
        "missing": "Each chip counts; an Atlas A3 has two in each NPU. ",
        "driver": "Install a newer driver (%s) and reboot, or use an image with an older CANN." % COMMANDS,
    }
    visible = ("ASCEND_RT_VISIBLE_DEVICES",)

    def present(self, system):
        return system.exists(MANAGER) or on_the_bus(system) > 0

    def detect(self, system):
        return detect(system)

    def usual_memory_gib(self, found):
        return 64

    def shortfalls(self, found, hardware, needs, installs=()):
        """As for every platform, and more chips than declared: an Atlas A3 has two in each NPU."""
        messages = super().shortfalls(found, hardware, needs, installs)
        last = max((device.id for device in found.devices), default=0)
        if hardware.get("count") and last >= hardware["count"] and not messages:
            messages.append(
                "The inventory declares %d NPUs (fleet_hardware.count), this node has %d: each chip counts, and an "
                "Atlas A3 has two in each NPU. Set fleet_hardware.count to %d, and list chips that servers should not "
                "get in fleet_hardware.exclude." % (hardware["count"], len(found.devices), last + 1)
            )
        return messages

    def preflight(self, context):
        npus, held, files = [], [], []
        if context.found:
            npus = list(base.faults(context, "NPU"))
            held = list(base.held(context, "NPU"))
            files = list(_files(context))
        return [("npus", npus), ("holders", held), ("driver files", files)]


def _files(context):
    """Messages about missing files and devices of the driver that containers require."""
    for name, entry in context.chosen.items():
        container = entry["container"] if name not in context.unchanged else None
        paths = [one["source"] for one in container["mounts"] if one["read_only"]] if container else []
        paths = [path for path in paths if path.startswith("/usr/local/") or path == INSTALLED]
        paths += [one.partition(":")[0] for one in container["devices"]] if container else []
        paths += [RUNTIME] if container and "--runtime=ascend" in container["flags"] else []
        lost = [path for path in paths if path.startswith("/") and not context.system.exists(path)]
        if lost:
            yield (
                "%s: its container uses files of the driver that this node lacks: %s. Install the driver again, or "
                "Ascend Docker Runtime if it is listed (%s), or correct container.mounts, devices and flags."
                % (name, ", ".join(lost), COMMANDS)
            )
