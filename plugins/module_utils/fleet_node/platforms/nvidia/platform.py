# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA GPUs, asked of nvidia-smi: how many and which."""

from __future__ import annotations

import dataclasses
import os
import typing

from ...errors import FleetError
from ...host.packages import numbers
from .. import vendor_tools
from ..base import Accelerators, Detector, Device, used
from . import preflight, smi

VENDOR = "0x10de"
VGA, ACCELERATOR = "0x0300", "0x0302"  # classes; bridges and NVSwitches are others
DRIVEN = "/proc/driver/nvidia/gpus"


@dataclasses.dataclass
class GpuDevice(Device):
    """A GPU. address: on the PCI bus. product, compute_capability: None where nothing tells. faults: sentences on what
    stops a server on it; slow: words for what slows it down. used_mib: memory in use; recovery: what the driver wants
    done with it, "None" for nothing; fabric: its state in NVLink. None where nothing tells."""

    address: str = ""
    product: str | None = None
    compute_capability: str | None = None
    faults: list = dataclasses.field(default_factory=list)
    slow: list = dataclasses.field(default_factory=list)
    used_mib: int | None = None
    recovery: str | None = None
    fabric: str | None = None

    @property
    def kind(self):
        """Its name in smi.KINDS, or None."""
        return smi.kind_of(self.product, self.compute_capability, self.memory_mib)


def on_the_bus(system, classes=(VGA, ACCELERATOR)):
    """PCI addresses of the node's GPUs, whoever drives them."""
    return vendor_tools.on_the_bus(system, VENDOR, classes)


def detect(system):
    """Accelerators with one GpuDevice for each GPU. FleetError where there is none, or none that can be asked."""
    program = vendor_tools.tool(system, "nvidia-smi")
    if program is None:
        raise FleetError(
            "nvidia.driver-missing",
            "This node has no nvidia-smi; NVIDIA GPUs on its PCI bus: %d. Install the driver (docs/using/nvidia.md "
            "has the commands for each distribution) and reboot, or remove the node from this group.",
            (len(on_the_bus(system)),),
        )
    roots, rows, lost, problem = _ask_all(system, program)
    gpus = [smi.Gpu(element, system.warn) for root in roots for element in root.findall("gpu")]
    if not gpus and not rows and not lost:
        smi.refuse(system, problem)
    devices = _devices(system, gpus, rows, lost)
    if not devices:
        raise FleetError(
            "nvidia.answer-unreadable",
            "nvidia-smi on this node lists no GPU in a known form: %s. Check `nvidia-smi -q -x` there, and reboot the "
            "node if a GPU hangs.",
            (" ".join(system.warnings[:4]),),
        )
    _place(system, program, devices)
    _note_unlisted(system, roots, devices)
    known = [device.kind for device in devices if device.kind]
    if len(set(known)) > 1:
        system.warn("The GPUs of this node differ: %s." % ", ".join(sorted({str(one.product) for one in devices})))
    loaded = (system.read(smi.LOADED) or "").strip()
    return Accelerators(
        accelerator=max(known, key=known.count) if known else "unknown",
        vendor="NVIDIA",
        model=next((one.product for one in devices if one.product), "unknown"),
        generation=next((one.compute_capability for one in devices if one.compute_capability), "unknown"),
        driver=_version(roots, "driver_version", "kmd_version") or loaded or None,
        devices=devices,
        warnings=system.warnings,
        runtime=_version(roots, "cuda_version", "cuda_umd_version"),
    )


def _ask_all(system, program):
    """smi.ask of all GPUs; of each for itself where one that does not answer keeps all from doing so."""
    root, rows, lost, problem = smi.ask(system, program)
    roots = [root] if root is not None else []
    if root is None and lost:
        for bus in filter(None, map(smi.bus_of, vendor_tools.listed(system, DRIVEN))):
            one, row, missing, _words = smi.ask(system, program, bus)
            roots += [one] if one is not None else []
            rows.update(row)
            lost.update(missing)
    return roots, rows, lost, problem


def _version(roots, *keys):
    """The first of these elements that holds a version."""
    texts = ((root.findtext(key) or "").strip() for root in roots for key in keys)
    return next((text for text in texts if numbers(text)), None)


def _devices(system, gpus, rows, lost):
    """GpuDevices, sorted by number. The numbers are the rows'; those of GPUs that have none follow the bus."""
    by_bus = {gpu.bus: gpu for gpu in gpus if gpu.bus}
    if len(by_bus) < len(gpus):
        system.warn("nvidia-smi -q -x: %d of %d GPUs have no PCI address." % (len(gpus) - len(by_bus), len(gpus)))
    taken = {row["index"] for row in rows.values()}
    found = []
    for place, bus in enumerate(sorted({*by_bus, *rows, *lost}, key=_order)):
        row = rows.get(bus) or {}
        number = row.get("index", place)
        if not row and number in taken:
            words = lost.get(bus)
            system.warn("GPU %s has no number%s." % (bus, ": " + words if words else ", since --query-gpu lacks it"))
            continue
        taken.add(number)
        found.append(_device(system, number, bus, by_bus.get(bus), row, lost.get(bus)))
    return sorted(found, key=lambda device: device.id)


def _order(bus):
    return tuple(int(part, 16) for part in bus.replace(".", ":").split(":"))


def _device(system, number, bus, gpu, row, lost):
    """A GpuDevice. gpu: smi.Gpu or None; row: of the CSV or {}; lost: words for why it does not answer, or None."""
    if gpu is None:
        memory, product, holders, used = row.get("memory_mib"), row.get("name"), [], None
    else:
        memory = gpu.number("fb_memory_usage/total") or row.get("memory_mib")
        product = gpu.text("product_name") or row.get("name")
        holders, used = gpu.processes(), gpu.number("fb_memory_usage/used")
    device = GpuDevice(
        id=number, memory_mib=memory, cores=1, numa=None, cpus="", holders=holders, address=bus, product=product,
        compute_capability=row.get("capability"), used_mib=used, core_ids=[number],
    )  # fmt: skip
    found = smi.faults_of(number, bus, gpu, lost)
    device.slow = smi.slowdowns(gpu)
    if gpu is not None:
        device.recovery = (gpu.element.findtext("gpu_recovery_action") or "").strip() or None
        device.fabric = gpu.text("fabric/state")
    device.faults = [sentence for _word, sentence in found]
    device.health = found[0][0] if found else "ok"
    if memory is None:
        system.warn("nvidia-smi does not tell the memory of GPU %d (%s)." % (number, bus))
    if device.compute_capability is None and not found:
        system.warn("nvidia-smi does not tell the compute capability of GPU %d (%s)." % (number, bus))
    return device


def _place(system, program, devices):
    """NUMA node and CPUs of each, by the kernel; by `nvidia-smi topo -m` where the kernel shows none of them."""
    for device in devices:
        vendor_tools.place(system, device)
    if any(device.cpus for device in devices):
        return
    status, text = vendor_tools.run([program, "topo", "-m"])
    found = smi.parse_topology(text, system.warn) if status == 0 else {}
    for device in devices:
        device.cpus, device.numa = found.get(device.id, (device.cpus, device.numa))


def _note_unlisted(system, roots, devices):
    """Warn of GPUs that the bus or the driver has and nvidia-smi does not list."""
    attached = max(
        [vendor_tools.whole((root.findtext("attached_gpus") or "").strip()) or 0 for root in roots], default=0
    )
    if attached > len(devices):
        system.warn("nvidia-smi counts %d GPUs and describes %d." % (attached, len(devices)))
    for bus in sorted(set(on_the_bus(system)) - {device.address for device in devices}):
        driver = os.path.basename(os.path.realpath("%s%s/%s/driver" % (system.sysroot, vendor_tools.PCI, bus)))
        system.warn(
            "The PCI bus has the GPU %s, which nvidia-smi does not list%s; look for NVRM in dmesg."
            % (bus, " (driver %s)" % driver if driver not in ("driver", "nvidia") else "")
        )


class Platform(Detector):
    """A Device is a complete GPU, by nvidia-smi's index."""

    unit = "GPU"
    has = ("driver", "compute_capability")
    tolerance = smi.SAME
    advice: typing.ClassVar = {
        "missing": "GPUs are numbered in the order of the PCI bus, so those after a missing GPU move up. ",
        "driver": "Install a newer driver (docs/using/nvidia.md has the commands) and reboot, or use an image that is "
        "built for this driver.",
    }
    visible = ("CUDA_VISIBLE_DEVICES",)
    lost_by_reload = "/dev/nvidiactl"
    setuid_helper = True  # CUDA starts nvidia-modprobe if a device file is missing

    def present(self, system):
        return bool(vendor_tools.listed(system, DRIVEN) or on_the_bus(system, (ACCELERATOR,)))

    def detect(self, system):
        return detect(system)

    def usual_memory_gib(self, found):
        return smi.KINDS[found.accelerator][1] / 1024 if found.accelerator in smi.KINDS else 0

    def version_words(self, driver):
        cuda = smi.cuda_of_driver(str(driver))
        return "%s (for CUDA up to %s)" % (driver, cuda) if cuda else str(driver)

    def shortfalls(self, found, hardware, needs, installs=()):
        """As for every platform, and GPUs of other kinds than most."""
        messages = super().shortfalls(found, hardware, needs, installs)
        others = {str(device.product) for device in used(found, hardware)
                  if device.kind != found.accelerator and not device.faults}  # fmt: skip
        if others and found.accelerator != "unknown":
            messages.append(
                "This node has %s in addition to %s, but servers of one recipe require one kind of GPU. Exclude the "
                "others in fleet_hardware.exclude." % (", ".join(sorted(others)), found.model)
            )
        return messages

    def preflight(self, context):
        return preflight.checks(context)
