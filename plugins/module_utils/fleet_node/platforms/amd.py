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


def _by_gpu(records):
    """{number of amd-smi: record} of the records of GPUs in an output."""
    return {field(one, "gpu"): one for one in records if isinstance(one, dict)} if isinstance(records, list) else {}


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
    """Accelerators with a GpuDevice for each GPU. Raises FleetError if there is none or amd-smi does not answer."""
    tool = system.program("amd-smi", FOLDER)
    if tool is None:
        raise FleetError("amd.driver-missing", len(on_the_bus(system)))
    status, text = run_tool([tool, *STATIC])
    gpus = parse(text)
    if not gpus or not isinstance(gpus, list):
        refuse(system, text.strip() or str(status))
    numbers = _by_gpu(parse(run_tool([tool, *ENUMERATION])[1]) or parse(run_tool([tool, *LISTED])[1]))
    holders = _by_gpu(parse(run_tool([tool, *PROCESSES])[1]))
    ids, nodes = ([field(numbers, field(one, "gpu"), key) for one in gpus] for key in ("hip_id", "node_id"))
    if None in ids:  # HIP numbers GPUs in the order of the driver's topology
        if None in nodes:
            system.warn("amd-smi reports no numbers of the GPUs in HIP; the order of the PCI bus is used instead.")
        order = sorted(range(len(gpus)), key=lambda place: (nodes[place] or 0, str(field(gpus[place], "bus", "bdf"))))
        ids = [order.index(place) for place in range(len(gpus))]
    devices = [
        _device(number, one, _holders(field(holders, field(one, "gpu"), "process_list") or ()))
        for number, one in zip(ids, gpus)
    ]
    architectures = (field(one, "asic", "target_graphics_version") for one in gpus)
    return base.accelerators_of(
        system,
        sorted(devices, key=lambda device: device.id),
        on_the_bus(system),
        "amdgpu",
        vendor="AMD",
        generation=next(filter(None, architectures), "unknown"),
        driver=next(filter(None, (field(one, "driver", "version") for one in gpus)), None),
    )


def _device(number, gpu, holders):
    address = str(field(gpu, "bus", "bdf") or "").lower()
    chip = str(field(gpu, "asic", "device_id")).lower()
    device = GpuDevice(
        id=number, memory_mib=mebibytes(field(gpu, "vram", "size")), holders=list(holders), core_ids=[number],
        address=address, product=field(gpu, "asic", "market_name"),
        kind=next((name for name, (_arch, _mib, ids) in KINDS.items() if chip in ids), None),
    )  # fmt: skip
    partition = field(gpu, "partition", "compute_partition") or field(gpu, "partition", "accelerator_partition")
    if partition not in WHOLE:
        device.health = "partitioned"
        device.faults = [
            "GPU %d (%s) is partitioned (%s), but servers get complete GPUs. Run `amd-smi set --gpu all "
            "--compute-partition SPX` and `--memory-partition NPS1`." % (number, address, partition)
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
