# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ascend NPUs, asked of npu-smi: the chips of a node, and what prevents servers from using them."""

from __future__ import annotations

import dataclasses
import grp
import os
import re
import typing

from ...errors import FleetError
from ...host.cpu_list import format_cpu_list
from .. import device_checks, vendor_tools
from ..base import Accelerators, Detector, Device
from . import npu_smi

VENDOR, CLASSES = "0x19e5", ("0x1200",)  # Huawei; processing accelerators
MANAGER = "/dev/davinci_manager"
INSTALLED = "/etc/ascend_install.info"
FOLDER = "/usr/local/Ascend"
COMMANDS = "docs/using/ascend.md has the commands"
A2, A3 = "ascend-a2", "ascend-a3"
GENERATIONS = {A2: "Atlas A2", A3: "Atlas A3"}
OTHERS = {"ascend-950": "Atlas A5", "ascend-310p": "Atlas 300I", "ascend-310": "Atlas 300I", "ascend-910": "Atlas 800"}
RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
# (condition on what npu-smi prints, cause and remedy)
REASONS_FOR_NO_ANSWER = (
    ("-8020|device is used",
     "another container uses the NPUs (-8020). Stop that container, or run the play on the host itself"),
    ("initialize.*dcmi|dcmi.*initialize",
     "the driver's management interface (DCMI) does not start. Driver and firmware may be of different releases or "
     "partly installed, or a container holds all chips"),
)  # fmt: skip


@dataclasses.dataclass
class NpuDevice(Device):
    """A chip, by the number of its /dev/davinci. address: on the PCI bus. product: its name. npu, chip: npu-smi's two
    numbers. faults: sentences on what stops a server on it."""

    address: str = ""
    product: str | None = None
    npu: int = 0
    chip: int = 0
    faults: list = dataclasses.field(default_factory=list)


def program(system, name="npu-smi"):
    """Path of npu-smi, None where it is not installed."""
    return vendor_tools.tool(system, name)


def kind_of(chips):
    """(name of fleet_hardware.accelerator, generation). A2: chips named 910B…, one an NPU. A3: Ascend910 with a Phy-ID,
    two an NPU; the first Ascend910 has that name too. Others, which no recipe is for, by their name: ascend-950pr."""
    if any(one.phy is not None for one in chips) and all(one.name.startswith("Ascend910") for one in chips):
        return A3, GENERATIONS[A3]
    if chips and all(one.name.startswith("910B") for one in chips):
        return A2, GENERATIONS[A2]
    name = "ascend-" + re.sub(r"[^a-z0-9]", "", chips[0].name.lower().replace("ascend", "")) if chips else "unknown"
    return name, next((words for prefix, words in OTHERS.items() if name.startswith(prefix)), "unknown")


def numbers(system, chips, mapped):
    """{(NPU, chip): number of its /dev/davinci}. A3 says it (Phy-ID); on A2 it is the NPU's own, or the logic id where
    only that has such files."""
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
    """Accelerators with an NpuDevice for each chip. FleetError where there is none, or none that can be asked."""
    tool = program(system)
    if tool is None:
        raise FleetError(
            "ascend.driver-missing",
            "This node has no npu-smi; Huawei NPUs on its PCI bus: %d. Install driver and firmware (Ascend HDK; "
            "docs/using/ascend.md has the commands) and reboot, or remove the node from this group.",
            (len(vendor_tools.on_the_bus(system, VENDOR, CLASSES)),),
        )
    status, text = vendor_tools.run([tool, "info"])
    _version, chips = npu_smi.parse_info(text, system.warn)
    if not chips:
        refuse(system, text.strip() or str(status))
    mapped = npu_smi.parse_map(vendor_tools.run([tool, "info", "-m"])[1], system.warn)
    counted = npu_smi.chip_count(vendor_tools.run([tool, "info", "-l"])[1])
    if counted is not None and counted != len(chips):
        system.warn("npu-smi counts %d chips and describes %d." % (counted, len(chips)))
    number = numbers(system, chips, mapped)
    devices = sorted((_device(system, tool, one, number[one.npu, one.chip]) for one in chips), key=lambda one: one.id)
    if len({one.id for one in devices}) < len(devices):
        raise FleetError(
            "ascend.numbers-unclear",
            "npu-smi on this node gives two chips the same number (%s), so their /dev/davinci files are unknown. Check "
            "`npu-smi info -m`, and reboot the node if a chip was lost.",
            (", ".join(str(one.id) for one in devices),),
        )
    (kind, generation), driver = kind_of(chips), versions(system)
    if kind not in GENERATIONS:
        system.warn("The NPUs of this node are no Atlas A2 or A3: %s." % ", ".join(sorted({o.name for o in chips})))
    return Accelerators(
        accelerator=kind, vendor="Huawei", model=chips[0].name, generation=generation, driver=driver,
        devices=devices, warnings=system.warnings,
    )  # fmt: skip


def _device(system, tool, chip, number):
    device = NpuDevice(
        id=number, memory_mib=chip.hbm[1] if chip.hbm else None, cores=1, numa=None, cpus="", holders=chip.holders,
        core_ids=[number], address=chip.bus, product=chip.name, npu=chip.npu, chip=chip.chip,
    )  # fmt: skip
    vendor_tools.place(system, device)
    if chip.hbm is None:
        system.warn("npu-smi does not tell the memory of NPU %d (%s)." % (number, chip.bus))
    if chip.health.upper() != "OK":
        asked = [tool, "info", "-t", "health", "-i", str(chip.npu), "-c", str(chip.chip)]
        codes = npu_smi.error_codes(vendor_tools.run(asked)[1])
        device.health = chip.health
        device.faults = [
            "NPU %d (%s) is not OK: its health is %s%s. Look at `npu-smi info -t health -i %d -c %d` and at dmesg; a "
            "reset (`npu-smi set -t reset -i %d -c %d`) or a reboot clears most of it. Where it comes back, list %d in "
            "fleet_hardware.exclude and have the board replaced."
            % (number, chip.bus, chip.health, " (error %s)" % codes if codes else "", chip.npu, chip.chip, chip.npu,
               chip.chip, number)
        ]  # fmt: skip
    return device


def versions(system):
    """The driver's version or None; warns of a firmware that it was not made for."""
    folder = npu_smi.parse_settings(system.read(INSTALLED)).get("Driver_Install_Path_Param") or FOLDER
    driver = npu_smi.parse_settings(system.read(folder + "/driver/version.info"))
    firmware = npu_smi.parse_settings(system.read(folder + "/firmware/version.info")).get("Version")
    wanted = driver.get("compatible_version_fw")
    if firmware and npu_smi.compatible(firmware, wanted) is False:
        system.warn(
            "The firmware %s of this node is none that its driver %s was made for (%s). Install both from one release "
            "of Ascend HDK." % (firmware, driver.get("Version"), wanted)
        )
    return driver.get("Version") or None


def refuse(system, text):
    """Raises FleetError for what npu-smi printed instead of a table."""
    words = " ".join(text.split())
    installed = npu_smi.parse_settings(system.read(INSTALLED))
    group = installed.get("UserGroup") or "HwHiAiUser"
    allowed = os.geteuid() == 0 or installed.get("Driver_Install_For_All") == "yes" or _is_member(group)
    if not allowed or "ermission" in words:
        cause = "this user is neither root nor in the group %s. Run the play with become, or add the user" % group
    elif not os.path.exists(system.sysroot + MANAGER):
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


def _is_member(group):
    try:
        return grp.getgrnam(group).gr_gid in (os.getegid(), *os.getgroups())
    except KeyError:
        return False


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
        there = os.path.exists(system.sysroot + MANAGER)
        return there or bool(vendor_tools.on_the_bus(system, VENDOR, CLASSES))

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
            npus = list(device_checks.faults(context, "NPU", lambda device: device.faults))
            held = list(device_checks.held(context, "NPU"))
            files = list(_files(context))
            _links(context)
        return [("npus", npus), ("holders", held), ("driver files", files)]


def _files(context):
    """Files and devices of the driver that containers about to start get and that are not there."""
    for name, entry in context.chosen.items():
        container = entry["container"] if name not in context.unchanged else None
        paths = [one["source"] for one in container["mounts"] if one["read_only"]] if container else []
        paths = [path for path in paths if path.startswith("/usr/local/") or path == INSTALLED]
        paths += [one.partition(":")[0] for one in container["devices"]] if container else []
        paths += [RUNTIME] if container and "--runtime=ascend" in container["flags"] else []
        lost = [path for path in paths if path.startswith("/") and not os.path.exists(context.system.sysroot + path)]
        if lost:
            yield (
                "%s: its container uses files of the driver that this node lacks: %s. Install the driver again, or "
                "Ascend Docker Runtime if it is listed (%s), or correct container.mounts, devices and flags."
                % (name, ", ".join(lost), COMMANDS)
            )


def _links(context):
    """Warn of a network port of a chip that is down: servers of one node use HCCS and do without."""
    settings = npu_smi.parse_settings(context.system.read(INSTALLED))
    folder = context.system.sysroot + (settings.get("Driver_Install_Path_Param") or FOLDER)
    tool = folder + "/driver/tools/hccn_tool"
    down = [
        device.id
        for device in (context.found.devices if os.path.exists(tool) else ())
        if device_checks.starting(context, [device.id])
        and npu_smi.link_state(vendor_tools.run([tool, "-i", str(device.id), "-link", "-g"])[1]) == "DOWN"
    ]
    if down:
        context.warnings.append(
            "The network port (RoCE) of NPU%s %s is down (hccn_tool -link). Servers within a node use HCCS and do "
            "without; look at cables and /etc/hccn.conf before nodes work together."
            % ("" if len(down) == 1 else "s", format_cpu_list(down))
        )
