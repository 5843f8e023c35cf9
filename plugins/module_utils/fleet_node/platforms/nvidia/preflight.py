# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight checks of servers on GPUs: GPUs that are faulty or in use, NVLink services, containers without GPUs."""

from __future__ import annotations

import re

from ...containers.engine import Engine, EngineError
from ...host.packages import numbers
from .. import base
from ..host import run_tool

SWITCHED = ("a100", "h100", "h200", "b200", "b300")  # boards of eight have NVSwitches and need Fabric Manager
SUPERCHIPS = ("gb200", "gb300")  # of racks: the fabric is managed outside of the node, and IMEX is on it
TOOLKIT = "nvidia-container-toolkit"
KIND = "nvidia.com/gpu"
CDI_LIBRARY = re.compile(r"libcuda\.so\.([0-9]+\.[0-9.]*[0-9])")
PREPARE = "Run the play with become and with the step prepare"


def checks(context):
    """[(check, messages)] for a node with GPUs."""
    found = []
    if context.found:
        found = [
            ("gpus", list(base.faults(context, "GPU"))),
            ("holders", list(base.held(context, "GPU"))),
            ("fabric", list(_services(context))),
        ]
    return [*found, ("containers", list(_containers(context)))]


# ---- NVLink


def _services(context):
    """Messages about services of NVLink that do not run: Fabric Manager, and IMEX in racks."""
    found, program = context.found, context.system.program("systemctl")
    if program is None or not any(entry["devices"] for entry in context.chosen.values()):
        return
    switches = context.system.exists("/dev/nvidia-nvswitchctl")
    if found.accelerator in SWITCHED and switches and not any(device.fabric for device in found.devices):
        state = _state(program, "nvidia-fabricmanager")
        if state != "active":
            yield (
                "This board has NVSwitches, and nvidia-fabricmanager is %s: CUDA does not start (error 802). Install "
                "nvidia-fabricmanager %s, exactly the driver's version, and run `systemctl enable --now "
                "nvidia-fabricmanager`." % (state, found.driver or "")
            )
    if found.accelerator in SUPERCHIPS and _state(program, "nvidia-imex") == "failed":
        yield (
            "nvidia-imex, which shares memory between the nodes of an NVLink domain, has failed on this node, and "
            "NCCL stops with it. Check `journalctl -u nvidia-imex`: it must have the driver's version, and "
            "/etc/nvidia-imex/nodes_config.cfg must name the nodes."
        )


def _state(program, unit):
    """active, inactive, failed, … of a unit."""
    text = run_tool([program, "show", "--property=ActiveState", unit + ".service"])[1]
    return text.strip().partition("=")[2] or "unknown"


# ---- containers


def _containers(context):
    """Messages about what containers need to get GPUs and this run does not set up: engine, toolkit, CDI."""
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
    """Messages about an engine without CDI; docker from 25 on supports it once the step prepare has enabled it."""
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


def _specifications(system):
    """{path: version of the driver in it, or None} of the CDI files of the GPUs."""
    found = {}
    for folder in ("/etc/cdi", "/var/run/cdi"):
        for name in system.listed(folder):
            text = system.read("%s/%s" % (folder, name)) or "" if name.endswith((".yaml", ".json")) else ""
            if re.search(r"""kind["']?\s*:\s*["']?%s\b""" % re.escape(KIND), text):
                version = CDI_LIBRARY.search(text)
                found["%s/%s" % (folder, name)] = version.group(1) if version else None
    return found
