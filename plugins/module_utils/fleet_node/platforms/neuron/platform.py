# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS Trainium: devices by neuron-ls, which the role installs with the driver.

The instance type never decides how many chips a node has: servers of one generation have 4 or 16.
"""

from __future__ import annotations

import glob
import json
import os
import re
import typing

from ...errors import FleetError
from ...host import processes
from ...host.files import read_json
from ...host.packages import package_versions
from ...host.values import format_cpu_list, parse_cpu_list
from ...weights import checkpoints, draft_heads
from .. import base
from ..base import Accelerators, Detector, Device
from ..host import MIB, json_of, run_tool, whole_number
from . import artifacts
from .kinds import DRIVER, KINDS, RUNTIME, check_versions, kind_of_instance, mismatch, uses_nxdi

OWN_TOOLS = frozenset(("neuron-ls", "neuron-top", "neuron-monitor"))  # these do not occupy a device
NOTHING = ("", "-1", "NA", "N/A", "None")
MOST_CORES = 64  # of a device; today's have 8
VISIBLE = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES")  # both select cores, despite the second name


def records_of(system, program):
    """The records [{neuron_device, nc_count, …}] of `neuron-ls -j`, [] with a warning if it gives no answer."""
    status, text = run_tool([program, "-j"])
    found = json_of(text) if status == 0 else None
    if isinstance(found, list) and all(isinstance(record, dict) for record in found):
        return found
    last = (text.strip().splitlines() or ["nothing"])[-1][:120]
    system.warn("neuron-ls gives no answer: status %s, and its output ends with: %s" % (status, last))
    return []


def device_of(record, kind, warn):
    """(Device, LNC or None) of a record. Raises ValueError if its number or its cores are missing."""
    number, cores, memory, numa = (
        whole_number(str(record.get(key))) for key in ("neuron_device", "nc_count", "memory_size", "numa_node")
    )
    if None in (number, cores) or cores > MOST_CORES:
        keys = {key: record.get(key) for key in ("neuron_device", "nc_count")}
        raise ValueError("neuron-ls: a device is not understood: %s" % json.dumps(keys)[:160])
    physical = KINDS.get(kind, (0,))[0]
    lnc = record.get("logical_neuroncore_config")
    if not isinstance(lnc, int):
        lnc = physical // cores if physical and cores and physical % cores == 0 else None
    ids = record.get("neuroncore_ids")
    if not (isinstance(ids, list) and len(ids) == cores and all(isinstance(core, int) for core in ids)):
        ids = list(range(number * cores, (number + 1) * cores))
    affinity = str(record.get("cpu_affinity")).replace(" ", "")
    try:
        cpus = format_cpu_list(parse_cpu_list("" if affinity in NOTHING else affinity))
    except ValueError as error:
        warn("neuron-ls: cpu_affinity of device %d is not understood: %s" % (number, error))
        cpus = ""
    device = Device(
        id=number,
        memory_mib=None if memory is None else memory // MIB,
        cores=cores,
        numa=numa,
        cpus=cpus,
        holders=list(_holders(record.get("neuron_processes"))),
        core_ids=ids,
    )
    return device, lnc


def _holders(processes):
    for process in processes if isinstance(processes, list) else ():
        pid = process.get("pid") if isinstance(process, dict) else None
        if isinstance(pid, int) and not isinstance(pid, bool):
            command = str(process.get("command") or "")
            if os.path.basename(command.partition(" ")[0]) not in OWN_TOOLS:
                yield {"pid": pid, "command": command}


DMI = "/sys/class/dmi/id/product_name"
LOADED = "/sys/module/neuron/version"
TOOLS = "/opt/aws/neuron/bin"
PCI_VENDOR, PCI_DEVICE = "0x1d0f", re.compile(r"^0x7[0-9a-f]64$")  # 7064, 7164, 7264, 7364 … of the generations
DEVICE_FILE = re.compile(r"^neuron([0-9]+)$")


def device_files(system):
    """Numbers of /dev/neuron*, ascending."""
    return sorted(int(match.group(1)) for match in map(DEVICE_FILE.match, system.listed("/dev")) if match)


def devices_on_bus(system):
    """PCI device IDs of the node's Neuron devices, one for each device."""
    return [device for _address, _class, device in system.pci_devices(PCI_VENDOR) if PCI_DEVICE.match(device)]


def kind_of(system, records):
    """The kind of chip by the instance type, the PCI bus or the memory of a chip, or None."""
    instances = [str(record["instance_type"]) for record in records if record.get("instance_type")]
    sizes = {record.get("memory_size") for record in records}
    bus = devices_on_bus(system)
    kinds = [
        *map(kind_of_instance, (*instances[:1], system.read(DMI))),
        *(name for name, kind in KINDS.items() if kind[4] in bus),
        *(name for name, kind in KINDS.items() if sizes == {kind[1] << 30} and kind[1] != 32),  # two kinds have 32
    ]
    return next(filter(None, kinds), None)


def detect(system):
    """Accelerators with one Device for each chip. Raises FleetError if there is none or neuron-ls does not answer."""
    program = system.program("neuron-ls", TOOLS)
    records = records_of(system, program) if program else []
    kind = kind_of(system, records)
    devices, modes = [], set()
    for record in records:
        try:
            device, lnc = device_of(record, kind, system.warn)
        except ValueError as error:
            system.warn(str(error))
            continue
        devices.append(device)
        modes.add(lnc)
    if not devices:
        raise FleetError(
            "neuron.no-device",
            "neuron-ls lists none" if program else "neuron-ls is not installed",
            "".join(" " + warning for warning in system.warnings),
        )
    silent = set(device_files(system)) - {device.id for device in devices}
    if silent:
        system.warn("neuron-ls does not list the Neuron devices %s of /dev; see dmesg." % format_cpu_list(silent))
    if len(modes) > 1:
        system.warn("neuron-ls: the devices differ in their logical NeuronCore configuration.")
    if kind is None:
        system.warn("The kind of the Neuron devices is unknown.")
    versions = package_versions(system, [DRIVER, RUNTIME])
    return Accelerators(
        accelerator=kind or "unknown",
        vendor="AWS",
        model=kind.capitalize() if kind else "unknown",
        generation=KINDS[kind][2] if kind else "unknown",
        driver=system.value(LOADED) or versions.get(DRIVER),
        devices=sorted(devices, key=lambda device: device.id),
        warnings=system.warnings,
        lnc=modes.pop() if len(modes) == 1 else None,
        runtime=versions.get(RUNTIME),
    )


class Platform(Detector):
    """A Device is a chip; its `cores` and `core_ids` are logical cores."""

    unit = "Neuron device"
    has = ("lnc", "driver")
    driver_package = DRIVER
    advice: typing.ClassVar = {
        "lnc": "Set NEURON_LOGICAL_NC_CONFIG on the node, or plan for its LNC: fleet_hardware.lnc, needs.lnc and the "
        "recipe's arguments (docs/using/trainium.md).",
        "driver": "Update aws-neuronx-dkms.",
    }
    kernel_faults = (r"NEURON_HW_ERR=\w",)
    detect = staticmethod(detect)
    start_hooks: typing.ClassVar = {artifacts.NAME: artifacts}

    def present(self, system):
        return bool(device_files(system) or devices_on_bus(system))

    def shortfalls(self, found, hardware, needs, installs=()):
        """As for every platform, plus a driver and a runtime that do not work together."""
        unfit = None if {DRIVER, RUNTIME} <= set(installs) else mismatch(found.driver, found.runtime)
        return super().shortfalls(found, hardware, needs, installs) + ([unfit] if unfit else [])

    def driver_missing(self, context):
        system = context.system
        present = device_files(system) or package_versions(system, [DRIVER])
        return DRIVER in context.installs and not present and bool(devices_on_bus(system))

    def preflight(self, context):
        chosen = context.chosen
        found, missing = context.found, []
        if found and context.fits:  # else the plan has to change anyway
            missing = list(missing_cores(chosen.values(), found))
        held = list(base.held(context, self.unit, given)) if found else []
        return [
            ("packages", check_versions(context)),
            ("cores", [*missing, *held]),
            ("environment", [one for venv in context.venvs for one in _environment(chosen, venv)]),
            ("script", list(script_faults(chosen))),
            ("draft", [one for model in context.models for one in _draft(context.entries, model)]),
        ]


# ---- cores


def given(pid, cores):
    """Those of the cores of a device that the process uses that its environment selects.

    None if the environment does not select any, cannot be read, or names others, as in a container, where they count
    from 0.
    """
    environment, found = processes.environment_of(pid), set()
    for name in VISIBLE:
        try:
            found |= parse_cpu_list(environment.get(name.encode(), b"").decode("utf-8", "replace").replace(" ", ""))
        except ValueError:
            return None
    return sorted(found & set(cores)) or None


def missing_cores(entries, found):
    """Problems of cores that plan entries are assigned and the node lacks: a chip may be missing between others."""
    present = {core for device in found.devices for core in device.core_ids}
    for entry in entries:
        missing = set(entry["devices"]) - present
        if missing:
            numbers = missing, [device.id for device in found.devices], present
            yield FleetError("neuron.cores-missing", entry["name"], *map(format_cpu_list, numbers))


# ---- environment


def _environment(entries, venv):
    """Problems of a machine image's environment that is missing or has no vLLM."""
    path = venv.get("path")
    if not path or venv.get("create", True) or not entries:
        return
    if not os.path.isdir(path):
        yield FleetError("neuron.environment-missing", path, _others(path))
        return
    packages = glob.glob(os.path.join(glob.escape(path), "lib", "python3*", "site-packages"))
    if not any(os.path.isdir(os.path.join(folder, "vllm")) for folder in packages):
        yield FleetError("neuron.environment-without-vllm", path, _others(path))
        return
    for program in sorted({entry["command"][0] for entry in entries.values()}):
        if program.startswith(path + "/") and not os.access(program, os.X_OK):
            yield FleetError("neuron.program-missing", program)


def _others(path):
    """The environments of machine images, as a hint."""
    places = ("/opt/aws_neuronx_venv_*", "/home/*/neuronx_*_venv", "/home/*/*vllm*venv*")
    found = sorted({found for place in places for found in glob.glob(place) if os.path.isdir(found)} - {path})
    return "; this node has %s" % ", ".join(found[:4]) if found else ""


# ---- draft model


def _draft(entries, model):
    """Problems of a draft head that is already in the node's own directory."""
    draft = model.get("draft") or {}
    if draft.get("method") != "eagle3" or not os.path.isfile(os.path.join(draft["path"], checkpoints.CONFIG)):
        return
    if not any(uses_nxdi(entry["environment"]) for entry in entries.values()):
        return
    target = {key: model.get(key) for key in ("hidden_size", "vocab_size")}
    for folder in (model.get("path"), model.get("source_path")):
        config = read_json(os.path.join(folder, checkpoints.CONFIG), follow=True) if folder else None
        if isinstance(config, dict):
            target.update({key: config[key] for key in target if isinstance(config.get(key), int)})
    try:
        sizes = checkpoints.inspect_draft(draft["path"], complete=False)
        checkpoints.check_draft_sizes(draft["path"], sizes, model.get("path"), target)
        draft_heads.check(draft["path"])
    except FleetError as error:
        yield error


SHOWN = 120
# Set by the plan for each server; a script that sets them makes servers share cores or files.
PLANNED = (*VISIBLE, "NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR")
ARGUMENTS = re.compile(r"\$\{?[@*1-9]")


def script_of(entry):
    """(path of the shell script that the command runs on the node, its arguments), or None."""
    for number, word in enumerate(entry["command"][:2]):
        if word.endswith(".sh") and entry["container"] is None:
            return word, entry["command"][number + 1 :]
    return None


def script_faults(entries):
    """Problems of the start scripts of plan entries ({name: entry})."""
    scripts = {found[0]: (entry, found[1]) for entry in entries.values() for found in [script_of(entry)] if found}
    for path, (entry, arguments) in sorted(scripts.items()):
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        except OSError as error:
            yield FleetError("neuron.script-unreadable", path, error.strerror)
            continue
        yield from _overrides(path, text, entry["environment"])
        if arguments and not ARGUMENTS.search(re.sub(r"(?m)(^|\s)#.*$", "", text)):
            yield FleetError("neuron.script-ignores-arguments", path, " ".join(arguments)[:SHOWN])


def _overrides(path, text, environment):
    for name in sorted(set(PLANNED) & set(environment)):
        for number, line in enumerate(text.splitlines(), 1):
            match = re.search(r"(?:^|[\s;&])%s=(\S*)" % name, line.partition("#")[0])
            if match and "$" + name not in match.group(1) and "${" + name not in match.group(1):
                yield FleetError("neuron.script-sets-variable", path, number, name, line.strip()[:SHOWN])
