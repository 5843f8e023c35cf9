# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stops servers on GPUs before they load anything: faulty or held GPUs, a fabric that is down, containers without
GPUs."""

from __future__ import annotations

import os
import re

from ...containers.engine import Engine, EngineError
from ...host.packages import numbers
from .. import device_checks
from ..vendor_tools import listed, run, tool
from . import smi

HELD_MIB = 2048  # more than what a driver keeps for itself
# Xid errors after which a GPU works no more until its reset ("Xid Errors", docs.nvidia.com/deploy/xid-errors).
XIDS = {48: "an uncorrectable memory error", 64: "failed to replace a row of memory", 74: "an NVLink error",
        79: "it fell off the bus", 95: "an uncontained memory error", 119: "its system processor (GSP) does not answer",
        120: "an error of its system processor (GSP)", 140: "an uncorrected memory error",
        143: "its firmware failed to start"}  # fmt: skip
XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): ([0-9]{1,4})\b")
SWITCHED = ("a100", "h100", "h200", "b200", "b300")  # boards of eight have NVSwitches and need Fabric Manager
SUPERCHIPS = ("gb200", "gb300")  # of racks: the fabric is managed outside of the node, and IMEX is on it
TOOLKIT = "nvidia-container-toolkit"
KIND = "nvidia.com/gpu"
CDI_LIBRARY = re.compile(r"libcuda\.so\.([0-9]+\.[0-9.]*[0-9])")
PREPARE = "Run the play with become and with the step prepare"


def checks(context):
    """[(check, messages)] for a node with GPUs."""
    found = {"gpus": [], "holders": [], "fabric": []}
    if context.found:
        xids = _xids(context)
        found["gpus"] = list(device_checks.faults(context, "GPU", lambda device: _faults(context, device, xids)))
        _warn_of_unknown_holders(context)
        found["holders"] = list(device_checks.held(context, "GPU"))
        found["fabric"] = list(_services(context))
    return [*found.items(), ("containers", list(_containers(context)))]


# ---- GPUs


def _faults(context, device, xids):
    if device.slow:
        context.warnings.append(
            "GPU %d (%s) is slowed down by %s. Check cooling and power of the node."
            % (device.id, device.address, ", ".join(device.slow))
        )
    # newer drivers report that nothing has to be done
    if device.faults or device.address not in xids or device.recovery == "None":
        return device.faults
    errors = sorted(xids[device.address])
    return [
        "GPU %d (%s) has had Xid %s since the node was started: %s. Look for NVRM in dmesg, and reset the GPU "
        "(`nvidia-smi --gpu-reset -i %d`) or reboot the node."
        % (device.id, device.address, ", ".join(map(str, errors)), "; ".join(XIDS[one] for one in errors), device.id)
    ]


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


def _warn_of_unknown_holders(context):
    for device in context.found.devices:
        used = device.used_mib or 0
        if used > HELD_MIB and not device.holders and device_checks.starting(context, [device.id]):
            context.warnings.append(
                "GPU %d (%s) has %d MiB in use, and nvidia-smi names no process. A process in another namespace, or a "
                "dead process, may hold it; check `fuser -v /dev/nvidia*`." % (device.id, device.address, used)
            )


# ---- NVLink


def _services(context):
    """Fabric Manager if there are NVSwitches and nvidia-smi reports no state; IMEX if a rack is one domain."""
    found, program = context.found, tool(context.system, "systemctl")
    if program is None or not any(entry["devices"] for entry in context.chosen.values()):
        return
    switches = os.path.exists(context.system.sysroot + "/dev/nvidia-nvswitchctl")
    if found.accelerator in SWITCHED and switches and not any(device.fabric for device in found.devices):
        state = _state(program, "nvidia-fabricmanager")
        if state != "active":
            yield (
                "This board has NVSwitches, and nvidia-fabricmanager is %s: CUDA does not start (error 802). Install "
                "nvidia-fabricmanager %s, exactly the driver's version, and run `systemctl enable --now "
                "nvidia-fabricmanager`." % (state, found.driver or "")
            )
    if found.accelerator in SUPERCHIPS:
        state = _state(program, "nvidia-imex")
        if state == "failed":
            yield (
                "nvidia-imex, which shares memory between the nodes of an NVLink domain, has failed on this node, and "
                "NCCL stops with it. Check `journalctl -u nvidia-imex`: it must have the driver's version, and "
                "/etc/nvidia-imex/nodes_config.cfg must name the nodes."
            )
        elif state != "active":
            context.warnings.append(
                "nvidia-imex is %s on this node. Servers within the node do not need it; if NCCL fails with CUDA error "
                "800 or 801, set NCCL_MNNVL_ENABLE: 0 in environment, or start it." % state
            )


def _state(program, unit):
    """active, inactive, failed, … of a unit; "not installed" if systemd does not know it."""
    text = run([program, "show", "--property=LoadState,ActiveState", unit + ".service"])[1]
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return "not installed" if values.get("LoadState") == "not-found" else values.get("ActiveState") or "not known"


# ---- containers


def _containers(context):
    """What prevents containers from getting GPUs and is not done by this run: engine, toolkit, CDI."""
    entries = [one for name, one in context.chosen.items() if one["container"] and name not in context.unchanged]
    by_name = any(device.startswith(KIND + "=") for one in entries for device in one["container"]["devices"])
    flags = {flag for one in entries for flag in one["container"]["flags"]}
    installs = TOOLKIT in context.installs
    if not context.system.sysroot:
        for kind in sorted({one["container"]["engine"] for one in entries if not one["container"]["address"]}):
            if by_name and tool(context.system, kind):
                yield from _engine_without_cdi(kind, installs)
            if kind == "docker" and "--runtime=nvidia" in flags:
                yield from _engine_without_runtime()
    if installs or not (by_name or any(flag.startswith(("--gpus", "--runtime=nvidia")) for flag in flags)):
        return  # the role installs the toolkit and writes the specification again
    if tool(context.system, "nvidia-ctk") is None:
        yield (
            "This node has no NVIDIA Container Toolkit (nvidia-ctk), which containers need for GPUs. %s, which "
            "installs it (nvidia_packages)." % PREPARE
        )
        return
    specifications = _specifications(context.system) if by_name else {}
    if by_name and not specifications:
        yield "No file in /etc/cdi or /var/run/cdi describes the GPUs (%s). %s, which writes it." % (KIND, PREPARE)
    for path, version in specifications.items():
        driver = context.found.driver if context.found else None
        if version and driver and numbers(version) != numbers(driver):
            yield (
                "%s describes the GPUs for the driver %s, and %s is loaded: containers would not find its libraries. "
                "%s, or run `nvidia-ctk cdi generate --output=%s` as root." % (path, version, driver, PREPARE, path)
            )


def _engine_without_cdi(kind, prepares):
    """An engine without CDI; docker from 25 on has it once the step prepare has enabled it."""
    try:
        version, folders = Engine(kind).cdi()
    except EngineError:
        return  # the role of the engine reports it
    too_old = kind == "docker" and (numbers(version) or ((1, 0),))[0] < (1, 25)
    if not folders and (too_old or not prepares):
        yield (
            "%s %s on this node does not support or enable CDI devices, which give containers their GPUs. %s; docker "
            "needs 25 or later (container_engine_packages), podman 4.1 or later."
            % (kind.capitalize(), version, PREPARE)
        )


def _engine_without_runtime():
    """A docker without the runtime that a recipe's flags name."""
    try:
        known = Engine("docker").info().get("Runtimes")
    except (EngineError, ValueError):
        return
    if "nvidia" not in (known or {}):
        yield (
            "Docker on this node has no runtime nvidia, which container.flags require. Remove --runtime, because "
            "containers get GPUs by CDI names, or run `nvidia-ctk runtime configure` and restart docker."
        )


def _specifications(system):
    """{path: version of the driver that it was written for, or None} of the CDI files of the GPUs."""
    found = {}
    for folder in ("/etc/cdi", "/var/run/cdi"):
        for name in listed(system, folder):
            text = system.read("%s/%s" % (folder, name)) or "" if name.endswith((".yaml", ".json")) else ""
            if re.search(r"""kind["']?\s*:\s*["']?%s\b""" % re.escape(KIND), text):
                version = CDI_LIBRARY.search(text)
                found["%s/%s" % (folder, name)] = version.group(1) if version else None
    return found
