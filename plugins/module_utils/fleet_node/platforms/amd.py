# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD Instinct GPUs by amd-smi."""

from __future__ import annotations

import dataclasses
import typing

from ..errors import FleetError
from . import base
from .base import Card, Detector
from .host import MIB, json_of, run_tool, whole_number

VENDOR, CLASS = "0x1002", "0x1200"  # AMD; processing accelerators
FOLDER = "/opt/rocm/bin"
MANAGER = "/dev/kfd"
# name: (architecture, MiB as amd-smi prints them, PCI device ids with those of virtual functions). Ids: vLLM,
# platforms/rocm.py. Memory: MI300X in captures of amd-smi, the others by 255.98 and 287.98 GiB in messages of PyTorch.
KINDS = {
    "mi300x": ("gfx942", 196592, ("0x74a1", "0x74b5")),
    "mi325x": ("gfx942", 262128, ("0x74a5", "0x74b9")),
    "mi355x": ("gfx950", 294896, ("0x75a3",)),
}
STATIC = ("static", "--asic", "--bus", "--driver", "--vram", "--partition", "--json")
ENUMERATION = ("list", "-e", "--json")  # since ROCm 6.4
LISTED = ("list", "--json")
PROCESSES = ("process", "--json")
FIELDS = {
    "bus": ("bus", "bdf"), "product": ("asic", "market_name"), "device": ("asic", "device_id"),
    "architecture": ("asic", "target_graphics_version"), "driver": ("driver", "version"),
}  # fmt: skip
WHOLE = ("SPX", "N/A", None)  # partition modes of a GPU that is one device
# A process with less memory on a GPU does not use it: the runtime opens all GPUs of the node.
HELD_MIB = 1024
UNITS = {"B": 1 / MIB, "KB": 1 / 1024, "MB": 1, "GB": 1024}


@dataclasses.dataclass
class GpuDevice(Card):
    """A GPU, by its number in HIP. kind: its name in KINDS, None if unknown."""

    kind: str | None = None


def parse(text):
    """The list of GPUs in the output of amd-smi, which newer releases wrap in `gpu_data`; None if there is none."""
    found = json_of(text)
    return found.get("gpu_data", found) if isinstance(found, dict) else found


def field(record, *names):
    """The value at a path of names, None for N/A and for a missing value."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return None if record in ("N/A", "") else record


def mebibytes(size):
    """MiB of {"value": 196592, "unit": "MB"}, None for another form."""
    value, unit = field(size, "value"), UNITS.get(field(size, "unit"))
    return int(value * unit) if unit and isinstance(value, (int, float)) else None


def rows_of(system):
    """([{id, node, bus, product, device, architecture, mib, partition, driver, holders}], the tool's output).

    id: the GPU's number in HIP, which differs from amd-smi's; node: its number in the driver's topology; None if the
    tool does not report it. Raises FleetError without a tool.
    """
    tool = system.program("amd-smi", FOLDER)
    if tool is None:
        raise FleetError("amd.driver-missing", len(on_the_bus(system)))
    status, text = run_tool([tool, *STATIC])
    found = parse(text)
    if not isinstance(found, list) or not found:
        return [], text.strip() or str(status)
    numbered = parse(run_tool([tool, *ENUMERATION])[1]) or parse(run_tool([tool, *LISTED])[1])
    return list(_rows(found, numbered, parse(run_tool([tool, *PROCESSES])[1]))), text


def _rows(static, enumeration, processes):
    numbers = {one.get("gpu"): one for one in enumeration or () if isinstance(one, dict)}
    holders = {one.get("gpu"): one.get("process_list") or () for one in processes or () if isinstance(one, dict)}
    for one in static:
        number, partition = field(one, "gpu"), field(one, "partition", "compute_partition")
        yield {
            "id": field(numbers, number, "hip_id"), "node": field(numbers, number, "node_id"),
            **{name: field(one, *path) for name, path in FIELDS.items()},
            "mib": mebibytes(field(one, "vram", "size")),
            "partition": partition or field(one, "partition", "accelerator_partition"),
            "holders": list(_holders(holders.get(number, ()))),
        }  # fmt: skip


def _holders(processes):
    """{pid, command} of the processes with memory on a GPU. A GPU without processes has a sentence instead."""
    for one in processes:
        info = one.get("process_info")
        pid = field(info, "pid")
        used = mebibytes(field(info, "memory_usage", "vram_mem"))
        if whole_number(str(pid)) and (used is None or used >= HELD_MIB):
            yield {"pid": int(pid), "command": field(info, "name") or ""}


def on_the_bus(system):
    """PCI addresses of the node's Instinct GPUs, also those without a driver."""
    return [address for address, kind, _device in system.pci_devices(VENDOR) if kind.startswith(CLASS)]


def detect(system):
    """Accelerators with a GpuDevice for each GPU. Raises FleetError if there is none or the tools do not answer."""
    rows, text = rows_of(system)
    if not rows:
        refuse(system, text)
    if any(row["id"] is None for row in rows):  # HIP numbers GPUs in the order of the driver's topology
        if any(row["node"] is None for row in rows):
            system.warn("The tools report no numbers of the GPUs in HIP; the order of the PCI bus is used instead.")
        for number, row in enumerate(sorted(rows, key=lambda row: (row["node"] or 0, str(row["bus"])))):
            row["id"] = number
    return base.accelerators_of(
        system,
        sorted(map(_device, rows), key=lambda device: device.id),
        on_the_bus(system),
        "amdgpu",
        vendor="AMD",
        generation=next((row["architecture"] for row in rows if row["architecture"]), "unknown"),
        driver=next((row["driver"] for row in rows if row["driver"]), None),
    )


def _device(row):
    address, device_id = str(row["bus"] or "").lower(), str(row["device"]).lower()
    device = GpuDevice(
        id=row["id"], memory_mib=row["mib"], cores=1, numa=None, cpus="", holders=row["holders"], core_ids=[row["id"]],
        address=address, product=row["product"],
        kind=next((name for name, (_arch, _mib, ids) in KINDS.items() if device_id in ids), None),
    )  # fmt: skip
    if row["partition"] not in WHOLE:
        device.health = "partitioned"
        device.faults = [
            "GPU %d (%s) is partitioned (%s), but servers get complete GPUs. Run `amd-smi set --gpu all "
            "--compute-partition SPX` and `--memory-partition NPS1`." % (device.id, address, row["partition"])
        ]
    return device


def refuse(system, text):
    """Raises FleetError for what amd-smi printed instead of GPUs."""
    code = "amd.no-answer" if system.exists(MANAGER) else "amd.driver-not-loaded"
    raise FleetError(code, MANAGER, " ".join(text.split())[:200])


class Platform(Detector):
    """A Device is a complete GPU, by its number in HIP, which HIP_VISIBLE_DEVICES selects."""

    unit = "GPU"
    advice: typing.ClassVar = {"missing": "GPUs after a missing GPU move up. "}
    kinds = KINDS
    detect = staticmethod(detect)

    def present(self, system):
        return bool(on_the_bus(system))

    def preflight(self, context):
        missing = context.found and not context.system.exists(MANAGER)
        problems = [FleetError("amd.driver-not-loaded", MANAGER, "servers on GPUs open it")] if missing else []
        return [*super().preflight(context), ("driver", problems)]
