# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stops servers on GPUs before they load anything: sick or held GPUs, a fabric that is down, containers that would
get none."""

from __future__ import annotations

import os
import re

from ...containers.engine import Engine, EngineError
from .. import whole_devices
from ..vendor_tools import run, tool
from . import kinds, smi

HELD_MIB = 2048  # more than what a driver keeps for itself
# Xid errors after which a GPU works no more until its reset ("Xid Errors", docs.nvidia.com/deploy/xid-errors).
XIDS = {48: "an uncorrectable memory error", 64: "failed to replace a row of memory", 74: "an NVLink error",
        79: "it fell off the bus", 95: "an uncontained memory error", 119: "its system processor (GSP) does not answer",
        120: "an error of its system processor (GSP)", 140: "an uncorrected memory error",
        143: "its firmware failed to start"}  # fmt: skip
XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): ([0-9]{1,4})\b")
TOOLKIT = "nvidia-container-toolkit"
KIND = "nvidia.com/gpu"
CDI_LIBRARY = re.compile(r"libcuda\.so\.([0-9]+\.[0-9.]*[0-9])")
ACTIVE = "active"


def checks(context):
    """[(check, messages)] for a node with GPUs. What a run leaves as it is, or brings itself, is no problem."""
    gpus, held, services = [], [], []
    if context.found:
        gpus, held = list(_gpus(context)), list(_held(context))
        services = list(_services(context))
    return [("gpus", gpus), ("holders", held), ("fabric", services), ("containers", list(_containers(context)))]


# ---- GPUs


def _gpus(context):
    """Faults of the GPUs that servers are given. Those of a server that runs as planned are warnings."""
    xids = _xids(context)

    def faults(device):
        if device.slow:
            context.warnings.append(
                "GPU %d (%s) is slowed down by %s. Look at cooling and power of the node."
                % (device.id, device.address, ", ".join(device.slow))
            )
        if device.faults or device.address not in xids or _recovered(device):
            return device.faults
        return [
            "GPU %d (%s) has had Xid %s since the node was started: %s. Reset it (`nvidia-smi --gpu-reset -i %d`) "
            "or reboot the node, and look for NVRM in dmesg."
            % (device.id, device.address, *_words(xids[device.address]), device.id)
        ]

    return whole_devices.faults(context, "GPU", faults)


def _recovered(device):
    """Whether the driver itself says that nothing has to be done, which newer ones do."""
    return device.recovery == "None"


def _words(numbers):
    return ", ".join(str(one) for one in sorted(numbers)), "; ".join(XIDS[one] for one in sorted(numbers))


def _xids(context):
    """{PCI address: {Xid}} of the kernel's messages since the start, of those that need a reset."""
    program = tool(context.system, "dmesg")
    status, text = run([program]) if program else ("there is no dmesg", "")
    if status != 0:
        context.warnings.append("Not checked: Xid errors; the kernel's messages cannot be read (%s)." % status)
        return {}
    found = {}
    for bus, number in XID.findall(text):
        if int(number) in XIDS and smi.bus_of(bus):
            found.setdefault(smi.bus_of(bus), set()).add(int(number))
    return found


# ---- who has them


def _held(context):
    """GPUs that servers about to start are given and that a process which is none of this root's has."""
    for device in context.found.devices:
        if whole_devices.starting(context, device) and not device.holders and (device.used_mib or 0) > HELD_MIB:
            context.warnings.append(
                "GPU %d (%s) has %d MiB in use, and nvidia-smi names nobody who has them. A process in another "
                "namespace, or one that died, may hold it; look at `fuser -v /dev/nvidia*`."
                % (device.id, device.address, device.used_mib)
            )
    return whole_devices.held(context, "GPU")


# ---- NVLink


def _services(context):
    """Fabric Manager where there are NVSwitches and nvidia-smi tells no state; IMEX where a rack is one domain."""
    found, program = context.found, tool(context.system, "systemctl")
    if program is None or not whole_devices.given(context):
        return
    switches = os.path.exists(context.system.sysroot + "/dev/nvidia-nvswitchctl")
    silent = not any(device.fabric for device in found.devices)
    if found.accelerator in kinds.SWITCHED and switches and silent:
        state = _state(program, "nvidia-fabricmanager")
        if state != ACTIVE:
            yield (
                "This board has NVSwitches, and nvidia-fabricmanager is %s: CUDA does not start (error 802). Install "
                "nvidia-fabricmanager of the version %s, the driver's own, and run `systemctl enable --now "
                "nvidia-fabricmanager`." % (state, found.driver or "that the driver has")
            )
    if found.accelerator in kinds.SUPERCHIPS:
        state = _state(program, "nvidia-imex")
        if state == "failed":
            yield (
                "nvidia-imex has failed on this node, which shares memory between the nodes of an NVLink domain: NCCL "
                "stops with it. Look at `journalctl -u nvidia-imex`; it has to be of the driver's version, and "
                "/etc/nvidia-imex/nodes_config.cfg has to name the nodes."
            )
        elif state != ACTIVE:
            context.warnings.append(
                "nvidia-imex is %s on this node. Servers within the node need none; where NCCL fails with CUDA error "
                "800 or 801, set NCCL_MNNVL_ENABLE: 0 in environment, or start it." % state
            )


def _state(program, unit):
    """active, inactive, failed, … of a unit; "not installed" where systemd does not know it."""
    text = run([program, "show", "--property=LoadState,ActiveState", unit + ".service"])[1]
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return "not installed" if values.get("LoadState") == "not-found" else values.get("ActiveState") or "not known"


# ---- containers


def _containers(context):
    """What keeps containers from their GPUs and this run does not bring: engine, toolkit, CDI."""
    entries = [one for name, one in context.chosen.items() if one["container"] and name not in context.unchanged]
    by_name = [one for one in entries if any(device.startswith(KIND + "=") for device in one["container"]["devices"])]
    kinds_used = sorted({one["container"]["engine"] for one in entries if not one["container"]["address"]})
    flags = {flag for one in entries for flag in one["container"]["flags"]}
    installs = TOOLKIT in context.installs
    for kind in kinds_used:
        if by_name and not context.system.sysroot and tool(context.system, kind):
            yield from _engine_without_cdi(kind, installs)
        if kind == "docker" and "--runtime=nvidia" in flags and not context.system.sysroot:
            yield from _engine_without_runtime()
    if installs or not (by_name or any(flag.startswith(("--gpus", "--runtime=nvidia")) for flag in flags)):
        return  # the role installs the toolkit and writes the description anew
    if tool(context.system, "nvidia-ctk") is None:
        yield (
            "This node has no NVIDIA Container Toolkit (nvidia-ctk), by which containers get GPUs. Run the play with "
            "become and with the step prepare, which installs it (nvidia_packages)."
        )
        return
    found = _described(context.system) if by_name else {}
    if by_name and not found:
        yield (
            "No file in /etc/cdi or /var/run/cdi describes the GPUs (%s). Run `nvidia-ctk cdi generate "
            "--output=/etc/cdi/nvidia.yaml` as root, or this play with become and the step prepare." % KIND
        )
    for path, version in found.items():
        driver = context.found.driver if context.found else None
        if version and driver and kinds.version_numbers(version) != kinds.version_numbers(driver):
            yield (
                "%s describes the GPUs for the driver %s, and %s is loaded: containers would not find its libraries. "
                "Run `nvidia-ctk cdi generate --output=%s` as root, or this play with become and the step prepare."
                % (path, version, driver, path)
            )


def _engine_without_cdi(kind, prepares):
    """That an engine takes no CDI names; docker from 25 on does once the step prepare has set it."""
    try:
        version, folders = Engine(kind).cdi()
    except EngineError:
        return  # its own role says why
    number = int((re.findall(r"\d+", version or "") or ["0"])[0])
    if not folders and kind == "docker" and number < 25:
        yield (
            "Docker %s takes no CDI devices, which containers get their GPUs by; 25 and later do. Install a newer one "
            "(container_engine_packages), set fleet_container_engine to podman, or name paths in container.devices."
            % version
        )
    elif not folders and not prepares:
        yield (
            "%s %s on this node takes no CDI devices, which containers get their GPUs by. Run the play with the step "
            "prepare, which sets docker's features.cdi; podman has it from 4.1 on." % (kind.capitalize(), version)
        )


def _engine_without_runtime():
    """That docker does not know the runtime that a recipe's flags name."""
    try:
        known = Engine("docker").info().get("Runtimes")
    except (EngineError, ValueError):
        return
    if "nvidia" not in (known or {}):
        yield (
            "Docker on this node has no runtime nvidia, which container.flags ask for. Run `nvidia-ctk runtime "
            "configure --runtime=docker` and restart docker, or leave --runtime out: containers get GPUs by CDI names."
        )


def _described(system):
    """{path: version of the driver that it was written for, or None} of the files that describe the GPUs."""
    found = {}
    for folder in ("/etc/cdi", "/var/run/cdi"):
        try:
            names = sorted(os.listdir(system.sysroot + folder))
        except OSError:
            continue
        for name in names:
            text = system.read("%s/%s" % (folder, name)) or "" if name.endswith((".yaml", ".json")) else ""
            if re.search(r"""kind["']?\s*:\s*["']?%s\b""" % re.escape(KIND), text):
                version = CDI_LIBRARY.search(text)
                found["%s/%s" % (folder, name)] = version.group(1) if version else None
    return found
