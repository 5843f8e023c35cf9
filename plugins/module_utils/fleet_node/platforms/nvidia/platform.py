# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA GPUs by nvidia-smi, and preflight checks: GPUs that are faulty or in use, NVLink services, containers without
GPUs."""

from __future__ import annotations

import dataclasses
import re
import typing

from ...containers.engine import Engine, EngineError
from ...errors import FleetError
from ...host.packages import numbers
from .. import base
from ..base import Card, Detector, used
from ..host import run_tool
from . import smi

SWITCHED = ("a100", "h100", "h200", "b200", "b300")  # boards of eight have NVSwitches and need Fabric Manager
SUPERCHIPS = ("gb200", "gb300")  # of racks: the fabric is managed outside of the node, and IMEX is on it
TOOLKIT = "nvidia-container-toolkit"
KIND = "nvidia.com/gpu"
# The second is written by the toolkit's own service (from 1.18 on) some time after a boot, and precedes the first,
# which is present when servers start.
CDI_FILES = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")


# ---- NVLink


def _services(context):
    """Problems of services of NVLink that do not run: Fabric Manager, and IMEX in racks."""
    found, program = context.found, context.system.program("systemctl")
    if program is None or not any(entry["devices"] for entry in context.chosen.values()):
        return
    switches = context.system.exists("/dev/nvidia-nvswitchctl")
    if found.accelerator in SWITCHED and switches and not any(device.fabric for device in found.devices):
        state = _state(program, "nvidia-fabricmanager")
        if state != "active":
            yield FleetError("nvidia.fabric-manager-inactive", state, found.driver or "")
    if found.accelerator in SUPERCHIPS and _state(program, "nvidia-imex") == "failed":
        yield FleetError("nvidia.imex-failed")


def _state(program, unit):
    """active, inactive, failed, … of a unit."""
    text = run_tool([program, "show", "--property=ActiveState", unit + ".service"])[1]
    return text.strip().partition("=")[2] or "unknown"


# ---- containers


def _containers(context):
    """Problems with what containers need to get GPUs and this run does not set up: engine, toolkit, CDI."""
    entries = [entry for name, entry in context.chosen.items() if entry["container"] and name not in context.unchanged]
    by_name = [entry for entry in entries if any(one.startswith(KIND + "=") for one in entry["container"]["devices"])]
    flags = {flag for entry in entries for flag in entry["container"]["flags"]}
    installs = TOOLKIT in context.installs
    engines = {entry["container"]["engine"] for entry in by_name if not entry["container"]["address"]}
    for kind in sorted(engines) if not context.system.sysroot else ():
        if context.system.program(kind):
            yield from _engine_without_cdi(kind, installs)
    if installs or not (by_name or any(flag.startswith(("--gpus", "--runtime=nvidia")) for flag in flags)):
        return  # the role installs the toolkit and writes the specification again
    if context.system.program("nvidia-ctk") is None:
        yield FleetError("nvidia.toolkit-missing")
        return
    texts = {path: context.system.read(path) for path in CDI_FILES if by_name}
    for path, text in texts.items():
        reason = stale(text, (), context.system.exists)
        if reason and (text is not None or not any(texts.values())):
            yield FleetError("nvidia.cdi-outdated", path, reason)
            return


def _engine_without_cdi(kind, prepares):
    """The problem of an engine without CDI; docker from 25 on supports it once the step prepare has enabled it."""
    try:
        version, folders = Engine(kind).cdi()
    except EngineError:
        return  # the role of the engine reports it
    too_old = kind == "docker" and (numbers(version) or ((1, 0),))[0] < (1, 25)
    if not folders and (too_old or not prepares):
        yield FleetError("nvidia.engine-without-cdi", kind, version)


def stale(text, files, exists):
    """The reason to write a CDI specification again, or None. Pure.

    files: the GPUs' device files. exists: called with each path in it.
    """
    if text is None:
        return "it is missing"
    named = paths_in(text)
    new = [path for path in files if path not in named]
    if new:
        return "it lacks %s" % ", ".join(new)
    # files of hooks and mounts disappear with the driver that the specification was written for
    gone = sorted(path for path in named if not exists(path))
    return "it names %s, which does not exist" % ", ".join(gone[:2]) if gone else None


def paths_in(text):
    """Paths of the node in a CDI specification."""
    return set(re.findall(r"""(?:hostPath|path)["']?\s*:\s*["']?(/[^\s"',}]+)""", text))


VENDOR = "0x10de"
VGA, ACCELERATOR = "0x0300", "0x0302"  # classes; bridges and NVSwitches are others
DRIVEN = "/proc/driver/nvidia/gpus"


@dataclasses.dataclass
class GpuDevice(Card):
    """A GPU. compute_capability, fabric (its state in NVLink): None if unknown."""

    compute_capability: str | None = None
    fabric: str | None = None

    @property
    def kind(self):
        """Its name in smi.KINDS, or None."""
        return smi.kind_of(self.product, self.compute_capability)


def on_the_bus(system, classes=(VGA, ACCELERATOR)):
    """PCI addresses of the node's GPUs, also those without a driver."""
    return [address for address, kind, _device in system.pci_devices(VENDOR) if kind.startswith(classes)]


def driver_missing(system):
    """The FleetError for a node without nvidia-smi."""
    return FleetError("nvidia.driver-missing", len(on_the_bus(system)))


def detect(system):
    """Accelerators with a GpuDevice for each GPU. Raises FleetError if there is none or nvidia-smi does not answer."""
    program = system.program("nvidia-smi")
    if program is None:
        raise driver_missing(system)
    roots, rows, lost, problem = _ask_all(system, program)
    gpus = [smi.Gpu(element, system.warn) for root in roots for element in root.findall("gpu")]
    devices = _devices(system, gpus, rows, lost)
    if not devices:
        smi.refuse(system, problem or "it lists no GPU in a known form: %s" % " ".join(system.warnings[:4]))
    return base.accelerators_of(
        system,
        devices,
        on_the_bus(system),
        "NVRM",
        vendor="NVIDIA",
        generation=next((gpu.compute_capability for gpu in devices if gpu.compute_capability), "unknown"),
        driver=_version(roots, "driver_version", "kmd_version") or system.value(smi.LOADED) or None,
        runtime=_version(roots, "cuda_version", "cuda_umd_version"),
    )


def _ask_all(system, program):
    """smi.ask of all GPUs; of each GPU if one that does not answer prevents an answer for all."""
    root, rows, lost, problem = smi.ask(system, program)
    roots = [root] if root is not None else []
    if root is None and lost:
        for bus in filter(None, map(smi.bus_of, system.listed(DRIVEN))):
            answer, row, missing, _problem = smi.ask(system, program, bus)
            roots += [answer] if answer is not None else []
            rows.update(row)
            lost.update(missing)
    return roots, rows, lost, problem


def _version(roots, *keys):
    """The first of these elements that contains a version."""
    texts = ((root.findtext(key) or "").strip() for root in roots for key in keys)
    return next((text for text in texts if numbers(text)), None)


def _devices(system, gpus, rows, lost):
    """GpuDevices, sorted by number: the index in `rows`; a GPU that has none is numbered by its place on the bus."""
    by_bus = {gpu.bus: gpu for gpu in gpus if gpu.bus}
    taken = {row["index"] for row in rows.values()}
    found = []
    for place, bus in enumerate(sorted({*by_bus, *rows, *lost}, key=_order)):
        row = rows.get(bus) or {}
        index = row.get("index", place)
        if not row and index in taken:
            system.warn("GPU %s has no number%s." % (bus, ": " + lost[bus] if lost.get(bus) else ""))
            continue
        taken.add(index)
        found.append(_device(system, index, bus, by_bus.get(bus), row, lost.get(bus)))
    return sorted(found, key=lambda device: device.id)


def _order(bus):
    return tuple(int(part, 16) for part in bus.replace(".", ":").split(":"))


def _device(system, index, bus, gpu, row, lost):
    """A GpuDevice. gpu: smi.Gpu or None; row: of the CSV or {}; lost: the reason why it does not answer, or None."""
    found = smi.faults_of(index, bus, gpu, lost)
    device = GpuDevice(
        id=index,
        memory_mib=(gpu.number("fb_memory_usage/total") if gpu else None) or row.get("memory_mib"),
        health=found[0][0] if found else "ok",
        holders=gpu.processes() if gpu else [],
        core_ids=[index],
        address=bus,
        product=(gpu.text("product_name") if gpu else None) or row.get("name"),
        compute_capability=row.get("capability"),
        faults=[sentence for _word, sentence in found],
        fabric=gpu.text("fabric/state") if gpu else None,
    )
    if not found and None in (device.memory_mib, device.compute_capability):
        system.warn("nvidia-smi does not report memory and compute capability of GPU %d (%s)." % (index, bus))
    return device


class Platform(Detector):
    """A Device is a complete GPU, by nvidia-smi's index."""

    unit = "GPU"
    has = ("driver", "compute_capability")
    advice: typing.ClassVar = {
        "missing": "GPUs are numbered in the order of the PCI bus, so those after a missing GPU move up. ",
        "driver": "Install a newer driver (docs/using/nvidia.md has the commands) and reboot, or use an image that is "
        "built for this driver.",
    }
    kinds = smi.KINDS
    detect = staticmethod(detect)
    lost_by_reload = "/dev/nvidiactl"
    kernel_faults = (r"NVRM: (?:Xid \(\S+\): (?!43,|45,)|.*fallen off the bus)",)  # 43, 45: of a process that ended
    setuid_helper = True  # CUDA starts nvidia-modprobe if a device file is missing

    def present(self, system):
        return bool(system.listed(DRIVEN) or on_the_bus(system, (ACCELERATOR,)))

    def shortfalls(self, found, hardware, needs, installs=()):
        """As for every platform, and GPUs of other kinds than most."""
        messages = super().shortfalls(found, hardware, needs, installs)
        others = {str(device.product) for device in used(found, hardware)
                  if device.kind != found.accelerator and not device.faults}  # fmt: skip
        if others and found.accelerator != "unknown":
            messages.append(FleetError("nvidia.kinds-differ", ", ".join(sorted(others)), found.model))
        return messages

    def preflight(self, context):
        fabric = list(_services(context)) if context.found else []
        return [*super().preflight(context), ("fabric", fabric), ("containers", list(_containers(context)))]
