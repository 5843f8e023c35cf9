# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ascend NPUs, asked of npu-smi: which chips a node has, and what keeps servers from them."""

from __future__ import annotations

import dataclasses
import grp
import os
import re

from ...errors import FleetError
from ...node.cpu_list import format_cpu_list
from .. import vendor_tools, whole_devices
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
SAME_MIB = 1024  # less than this apart is the same size


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
        there = len(vendor_tools.on_the_bus(system, VENDOR, CLASSES))
        raise FleetError(
            "ascend.driver-missing",
            "There is no npu-smi on this node, and %s of Huawei on its PCI bus. Install driver and firmware (Ascend "
            "HDK; docs/using/ascend.md has the commands) and reboot, or take the node out of this group.",
            ("%d NPU%s" % (there, "" if there == 1 else "s") if there else "no NPU",),
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
            "npu-smi on this node gives two chips one number (%s), so which /dev/davinci is whose is not known. Look "
            "at `npu-smi info -m`, and reboot the node where a chip was lost.",
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
    """FleetError for what npu-smi printed instead of a table."""
    words = " ".join(text.split())
    installed = npu_smi.parse_settings(system.read(INSTALLED))
    group = installed.get("UserGroup") or "HwHiAiUser"
    allowed = os.geteuid() == 0 or installed.get("Driver_Install_For_All") == "yes" or _is_member(group)
    if not allowed or "ermission" in words:
        raise FleetError(
            "ascend.no-permission",
            "This user may not open the NPUs: it is not root and not in the group %s. Run the play with become, or add "
            "the user to that group.",
            (group,),
        )
    if not os.path.exists(system.sysroot + MANAGER):
        raise FleetError(
            "ascend.driver-not-loaded",
            "npu-smi is installed on this node and the driver is not loaded: there is no %s. Look at `lsmod | grep "
            "drv_` and dmesg: after a new kernel the driver has to be installed again "
            "(docs/using/ascend.md has the commands). Then reboot.",
            (MANAGER,),
        )
    if "-8020" in words or "device is used" in words:
        raise FleetError(
            "ascend.devices-used",
            "npu-smi on this node says that the NPUs are used by another container (-8020). Stop that one, or run the "
            "play on the host itself.",
        )
    if "initialize" in words and "dcmi" in words:
        raise FleetError(
            "ascend.dcmi-failed",
            "npu-smi cannot initialise the driver's management interface (DCMI) on this node: %s. Driver and firmware "
            "may be of different releases or half installed, or a container holds all chips. Run `npu-smi info` as "
            "root there; a reboot clears most of it.",
            (words[:200],),
        )
    raise FleetError(
        "ascend.no-answer",
        "npu-smi gives no answer on this node: %s. Run `npu-smi info` there and look at dmesg; a reboot clears most of "
        "it.",
        (words[:200],),
    )


def _is_member(group):
    try:
        return grp.getgrnam(group).gr_gid in (os.getegid(), *os.getgroups())
    except KeyError:
        return False


class Platform(Detector):
    """A Device is a chip, by the number of its /dev/davinci."""

    visible = ("ASCEND_RT_VISIBLE_DEVICES",)

    def present(self, system):
        there = os.path.exists(system.sysroot + MANAGER)
        return there or bool(vendor_tools.on_the_bus(system, VENDOR, CLASSES))

    def detect(self, system):
        return detect(system)

    def shortfalls(self, found, hardware, needs, installs=()):
        return list(_shortfalls(found, hardware, needs))

    def unchecked(self, found, hardware, needs):
        messages = ["the driver (needs.driver)"] if needs.get("driver") and not found.driver else []
        if any(one.memory_mib is None for one in whole_devices.used(found, hardware)):
            messages.append("the memory of each NPU (fleet_hardware.memory_gib, needs.device_memory_gib)")
        return ["Not checked: %s; the node does not tell." % one for one in messages]

    def preflight(self, context):
        npus, held, files = [], [], []
        if context.found:
            npus = list(whole_devices.faults(context, "NPU", lambda device: device.faults))
            held = list(whole_devices.held(context, "NPU"))
            files = list(_files(context))
            _links(context)
        return [("npus", npus), ("holders", held), ("driver files", files)]


def _shortfalls(found, hardware, needs):
    there, declared = {one.id for one in found.devices}, hardware.get("count")
    missing = set(range(declared or 0)) - there - set(hardware.get("exclude") or ())
    if missing:
        yield (
            "The inventory declares %d NPUs (fleet_hardware.count), npu-smi lists %d (%s): %s %s missing.%s Repair the "
            "node and reboot it, or list %s in fleet_hardware.exclude: the servers on the others stay as they are."
            % (declared, len(there), format_cpu_list(there) or "none", format_cpu_list(missing),
               "is" if len(missing) == 1 else "are", "".join(" " + one for one in found.warnings),
               format_cpu_list(missing))
        )  # fmt: skip
    elif declared and max(there, default=0) >= declared:
        yield (
            "The inventory declares %d NPUs (fleet_hardware.count), this node has %d (%s): each chip counts, and an "
            "Atlas A3 has two in each NPU. Set fleet_hardware.count to %d; list in fleet_hardware.exclude what servers "
            "should not get." % (declared, len(there), format_cpu_list(there), max(there) + 1)
        )
    least = [one.memory_mib for one in whole_devices.used(found, hardware) if one.memory_mib is not None]
    for amount, who, key in (
        (hardware.get("memory_gib") or 64, "The plan counts on", "fleet_hardware.memory_gib"),
        (needs.get("device_memory_gib"), "The recipe needs", "needs.device_memory_gib"),
    ):
        if amount and least and min(least) < amount * 1024 - SAME_MIB:
            yield (
                "%s %.4g GiB of memory for a chip (%s), this node's %s have %.4g GiB. Set fleet_hardware.memory_gib to "
                "that, or take another node or recipe." % (who, amount, key, found.model, min(least) / 1024)
            )
            break
    driver = needs.get("driver")
    if driver and found.driver and npu_smi.older(found.driver, str(driver)):
        yield (
            "The recipe needs the Ascend driver %s or later (needs.driver), for the CANN in its image; this node has "
            "%s. Install a newer one (%s) and reboot, or take an image with an older CANN."
            % (driver, found.driver, COMMANDS)
        )
    if needs.get("lnc") or needs.get("compute_capability"):
        yield "The recipe needs what an NPU does not have (needs.lnc or needs.compute_capability). Take another recipe."


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
                "%s lacks on this node what its container gets of the driver: %s. Install the driver again, or Ascend "
                "Docker Runtime where that is named (%s), or correct container.mounts, devices and flags."
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
        if whole_devices.starting(context, device)
        and npu_smi.link_state(vendor_tools.run([tool, "-i", str(device.id), "-link", "-g"])[1]) == "DOWN"
    ]
    if down:
        context.warnings.append(
            "The network port (RoCE) of NPU%s %s is down (hccn_tool -link). Servers within a node use HCCS and do "
            "without; look at cables and /etc/hccn.conf before nodes work together."
            % ("" if len(down) == 1 else "s", format_cpu_list(down))
        )
