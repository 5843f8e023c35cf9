# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ascend NPUs by npu-smi: the chips of a node, and what prevents servers from using them."""

from __future__ import annotations

import dataclasses
import os
import re
import typing

from ..errors import FleetError
from .base import Accelerators, Card, Detector
from .host import run_tool

BUS = re.compile(r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$")
NAMED = re.compile(r"^([0-9]{1,9})\s+([A-Za-z0-9]\S*)$")  # "0     910B3", "32768   310P3"
CHIP = re.compile(r"^([0-9]{1,9})(?:\s+([0-9]{1,9}))?$")  # "0", or "1     3" with the Phy-ID
USAGE = re.compile(r"[0-9]{1,9}\s*/\s*([0-9]{1,9})\s*$")  # "3379 / 65536", "59693/ 65536"
NOTHING = ("", "NA", "N/A", "-")


@dataclasses.dataclass
class NpuDevice(Card):
    """A chip, by the number of its /dev/davinci. npu, chip: npu-smi's two numbers, phy: its Phy-ID or None."""

    npu: int = 0
    chip: int = 0
    phy: int | None = None


def cells(line):
    """The cells of a row "| a | b |", None for another line."""
    line = line.strip()
    return [cell.strip() for cell in line[1:-1].split("|")] if line[:1] == line[-1:] == "|" and len(line) > 1 else None


def parse_info(text, warn):
    """[NpuDevice] of `npu-smi info`, in its order, without their `id`. Rows that are not understood are warned of."""
    chips, pending, in_processes = [], None, False
    for line in text.splitlines():
        row = cells(line)
        if not row or row[0].startswith(("npu-smi", "No running process")):
            continue
        if row[0].startswith(("NPU", "Chip")) or (len(row) == 4 and row[2] == "Bus-Id"):
            in_processes = len(row) > 1 and row[1] == "Process id"
            continue
        # newer boards have one chip, a column for the name, and no number in the second row
        if len(row) == 4 and not in_processes:
            place = row[0] or "0"
            row = ["%s %s" % (place, row[1]) if row[1] else place, *row[2:]]
        if in_processes:
            _add_holder(chips, row, line, warn)
        elif len(row) == 3 and _is_place(row[1]) and CHIP.match(row[0]) and pending:
            chip, phy = CHIP.match(row[0]).groups()
            usage = USAGE.search(row[2])
            chips.append(NpuDevice(
                id=-1, memory_mib=int(usage.group(1)) or None if usage else None, health=pending[2], npu=pending[0],
                address=row[1].lower() if BUS.match(row[1]) else "", product=pending[1], chip=int(chip),
                phy=None if phy is None else int(phy),
            ))  # fmt: skip
            pending = None
        elif len(row) == 3 and NAMED.match(row[0]) and not _is_place(row[1]):
            if pending:
                warn("npu-smi info: NPU %d has no second row." % pending[0])
            number, name = NAMED.match(row[0]).groups()
            pending = (int(number), name, row[1])
        else:
            warn("npu-smi info: this line is not understood: %s" % line.strip()[:120])
    if pending:
        warn("npu-smi info: NPU %d has no second row." % pending[0])
    return chips


def _is_place(cell):
    """Whether a cell is an address on the PCI bus, or shows that there is none, as in a virtual machine."""
    return bool(BUS.match(cell)) or cell.upper() in NOTHING


def _add_holder(chips, row, line, warn):
    where = CHIP.match(row[0])
    pid = re.match(r"^[0-9]{1,9}$", row[1]) if len(row) >= 3 else None
    owners = [one for one in chips if where and one.npu == int(where.group(1)) and
              one.chip == int(where.group(2) or 0)]  # fmt: skip
    if not pid or not owners:
        warn("npu-smi info: this process is not understood: %s" % line.strip()[:120])
        return
    owners[0].holders.append({"pid": int(row[1]), "command": row[2]})


def parse_map(text, warn):
    """{(NPU, chip): (logic id, Phy-ID or None)} of `npu-smi info -m`; controllers, which are no chips, left out."""
    found, columns = {}, []
    for line in text.splitlines():
        words = re.split(r"\s{2,}", line.strip())
        if "NPU ID" in words:
            columns = words
        elif line.strip() and columns:
            values = dict(zip(columns, line.split()))
            numbers = [values.get("NPU ID", ""), values.get("Chip ID", "0"), values.get("Chip Logic ID", "")]
            phy = values.get("Chip Phy-ID", "")
            if all(re.match(r"^[0-9]{1,9}$", number) for number in numbers):
                npu, chip, logic = map(int, numbers)
                found[npu, chip] = (logic, int(phy) if re.match(r"^[0-9]{1,9}$", phy) else None)
            elif numbers[2] != "-":
                warn("npu-smi info -m: this line is not understood: %s" % line.strip()[:120])
    return found


def error_codes(text):
    """ "80E01801: node type=SOC, …" of `npu-smi info -t health`, "" if it has no error."""
    found = [re.search(r"(?m)^\s*%s\s*:[ \t]*(.*?)\s*$" % name, text) for name in ("Error Code", "Error Information")]
    return ": ".join(match.group(1) for match in found if match and match.group(1).upper() not in NOTHING)


def parse_settings(text):
    """{name: value} of version.info or ascend_install.info."""
    pairs = (line.partition("=") for line in (text or "").splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _equals, value in pairs}


VENDOR, CLASS = "0x19e5", "0x1200"  # Huawei; processing accelerators
MANAGER = "/dev/davinci_manager"
INSTALLED = "/etc/ascend_install.info"
FOLDER = "/usr/local/Ascend"
COMMANDS = "docs/using/ascend.md has the commands"
KINDS = {"ascend-a2": ("Atlas A2", 65536), "ascend-a3": ("Atlas A3", 65536)}  # name: (generation, MiB of a chip)
RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
# code: pattern of what npu-smi prints
NO_ANSWER = {"ascend.npus-in-use": "-8020|device is used", "ascend.dcmi-failed": "initialize.*dcmi|dcmi.*initialize"}


def on_the_bus(system):
    """Number of Huawei's NPUs on the PCI bus."""
    return sum(kind.startswith(CLASS) for _address, kind, _device in system.pci_devices(VENDOR))


def kind_of(chips):
    """The name of fleet_hardware.accelerator. A2: chips named 910B…, one an NPU. A3: Ascend910 with a Phy-ID, two an
    NPU; the first Ascend910 has that name too. Others, which no recipe is for, by their name: ascend-950pr."""
    if any(one.phy is not None for one in chips) and all(one.product.startswith("Ascend910") for one in chips):
        return "ascend-a3"
    if all(one.product.startswith("910B") for one in chips):
        return "ascend-a2"
    return "ascend-" + re.sub(r"[^a-z0-9]", "", chips[0].product.lower().replace("ascend", ""))


def numbers(system, chips, mapped):
    """The numbers of the chips' /dev/davinci: the Phy-ID on A3; on A2 the NPU's number, or the logic id if only that
    has such files."""
    found = [mapped.get((one.npu, one.chip), (None, None)) for one in chips]
    phy = [one.phy if one.phy is not None else row[1] for one, row in zip(chips, found)]
    if None not in phy:
        return phy
    logic, own = [row[0] for row in found], [one.npu for one in chips]

    def files(numbers):
        return sum(os.path.exists("%s/dev/davinci%d" % (system.sysroot, number)) for number in numbers)

    return logic if len(mapped) == len(chips) and None not in logic and files(logic) > files(own) else own


def detect(system):
    """Accelerators with an NpuDevice for each chip. Raises FleetError if there is none or npu-smi does not answer."""
    tool = system.program("npu-smi")
    if tool is None:
        raise FleetError("ascend.driver-missing", on_the_bus(system))
    status, text = run_tool([tool, "info"])
    chips = parse_info(text, system.warn)
    if not chips:
        refuse(system, text.strip() or str(status))
    mapped = parse_map(run_tool([tool, "info", "-m"])[1], system.warn)
    for chip, number in zip(chips, numbers(system, chips, mapped)):
        _complete(system, tool, chip, number)
    devices = sorted(chips, key=lambda one: one.id)
    if len({one.id for one in devices}) < len(devices):
        refuse(system, "two chips have the same number (%s)" % ", ".join(str(one.id) for one in devices))
    kind = kind_of(chips)
    if kind not in KINDS:
        system.warn("The NPUs of this node are no Atlas A2 or A3: %s." % ", ".join(sorted({o.product for o in chips})))
    generation, driver = KINDS.get(kind, ("unknown",))[0], driver_version(system)
    return Accelerators(kind, "Huawei", chips[0].product, generation, driver, devices, warnings=system.warnings)


def _complete(system, tool, chip, number):
    """Set the number of a chip, its place, and its faults."""
    chip.id, chip.core_ids = number, [number]
    chip.locate(system, chip.address)
    if chip.memory_mib is None:
        system.warn("npu-smi does not report the memory of NPU %d (%s)." % (number, chip.address))
    if chip.health.upper() == "OK":
        chip.health = "ok"
        return
    codes = error_codes(run_tool([tool, "info", "-t", "health", "-i", str(chip.npu), "-c", str(chip.chip)])[1])
    chip.faults = [
        "NPU %d (%s) is not OK: its health is %s%s. Look at `npu-smi info -t health -i %d -c %d` and at dmesg; a "
        "reset (`npu-smi set -t reset -i %d -c %d`) or a reboot clears most of it. Where it comes back, list %d in "
        "fleet_hardware.exclude and have the board replaced."
        % (number, chip.address, chip.health, " (error %s)" % codes if codes else "", chip.npu, chip.chip, chip.npu,
           chip.chip, number)
    ]  # fmt: skip


def driver_version(system):
    """The version of the installed driver, None if it is unknown."""
    folder = parse_settings(system.read(INSTALLED)).get("Driver_Install_Path_Param") or FOLDER
    return parse_settings(system.read(folder + "/driver/version.info")).get("Version") or None


def refuse(system, text):
    """Raises FleetError for what npu-smi printed instead of a table."""
    words = " ".join(text.split())
    code = next((code for code, pattern in NO_ANSWER.items() if re.search(pattern, words)), "ascend.no-answer")
    if os.geteuid() != 0 or "ermission" in words:
        code = "ascend.no-permission"
    elif not system.exists(MANAGER):
        code = "ascend.driver-not-loaded"
    raise FleetError(code, words[:200])


class Platform(Detector):
    """A Device is a chip, by the number of its /dev/davinci."""

    unit = "NPU"
    has = ("driver",)
    tolerance = 1 / 64
    advice: typing.ClassVar = {
        "missing": "Each chip counts; an Atlas A3 has two in each NPU. ",
        "driver": "Install a newer driver (%s) and reboot, or use an image with an older CANN." % COMMANDS,
    }
    kinds = KINDS
    detect = staticmethod(detect)
    # other errors of its driver are also of processes that ended
    kernel_faults = (r"\[ascend\] .*[Hh]eart ?beat (?:is )?lost[!,]",)

    def present(self, system):
        return system.exists(MANAGER) or on_the_bus(system) > 0

    def shortfalls(self, found, hardware, needs, installs=()):
        """As for every platform, and more chips than declared: an Atlas A3 has two in each NPU."""
        messages = super().shortfalls(found, hardware, needs, installs)
        last = max((device.id for device in found.devices), default=0)
        if hardware.get("count") and last >= hardware["count"] and not messages:
            messages.append(FleetError("ascend.chips-undeclared", hardware["count"], len(found.devices), last + 1))
        return messages

    def preflight(self, context):
        return [*super().preflight(context), ("driver files", list(_files(context)) if context.found else [])]


def _files(context):
    """Problems of missing files and devices of the driver that containers require."""
    for name, entry in context.chosen.items():
        container = entry["container"] if name not in context.unchanged else None
        paths = [one["source"] for one in container["mounts"] if one["read_only"]] if container else []
        paths = [path for path in paths if path.startswith("/usr/local/") or path == INSTALLED]
        paths += [one.partition(":")[0] for one in container["devices"]] if container else []
        paths += [RUNTIME] if container and "--runtime=ascend" in container["flags"] else []
        lost = [path for path in paths if path.startswith("/") and not context.system.exists(path)]
        if lost:
            yield FleetError("ascend.driver-files-missing", name, ", ".join(lost))
