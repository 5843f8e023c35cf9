# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node can take its plan: all that would stop it is found before any change, and reported at once."""

from __future__ import annotations

import os
import platform as machine
import sys

from ..containers.host_settings import faults as engine_faults
from ..containers.launcher import our_containers, port_holder
from ..errors import FleetError
from ..host import processes
from ..host.commands import hangs
from ..host.cpu_list import format_cpu_list, parse_cpu_list
from ..host.directories import existing_parent
from ..host.os_errors import os_words, read_only, remedy
from ..host.paths import NodePaths
from ..host.server_spec import check_entries
from ..host.shared_libraries import missing_libraries
from ..platforms.base import Context
from ..platforms.cpu import describe_cpu
from ..platforms.host import System
from ..platforms.registry import platform_of
from ..supervise.state import read_record
from ..weights import checkpoints
from ..weights.checkpoints import check_draft
from .desired import missing_cpus
from .ports import holder_words

OLDEST_PYTHON = (3, 9)


def preflight(root="", servers=(), hardware=None, needs=None, platform="cpu", only=(), installs=None, satisfied_by=(),
              models=(), venvs=(), prepares=True, sysroot=""):  # fmt: skip
    """Check the node against its plan. Nothing is changed.

    root: fleet_root. servers: plan entries of this node; only: the names that this run is limited to, all where empty.
    hardware: fleet_hardware, needs: the recipe's needs; an absent key and None are the same. platform: a name of
    PLATFORMS. installs: what the platform's role installs where it is root, by the names of libraries or packages.
    satisfied_by: paths that are there once a deployment is; no free disk is asked for then. models: what
    servers load, paths resolved; one that is served from a directory of the node must be there already, and complete.
    venvs: what they run in; one that is not made here must be there already. prepares: whether the step prepare, which
    installs and starts container engines, is in the run. sysroot: where /proc and /sys are read.

    Returns {changed, accelerators (base.py; None where the driver is yet to be installed), problems: [], warnings:
    [what works and is slow, and what this run repairs], unchecked: [what the node does not tell]}. FleetError lists all
    problems; its details hold them as problems: [{check, message}].
    """
    paths = NodePaths.of_parameter(root)
    entries, installs = check_entries(servers), installs or {}
    context = Context(
        root=paths.root, system=System(sysroot), entries=entries, only=only, hardware=hardware or {}, needs=needs or {},
        models=models or (), venvs=venvs or (), installs=installs if os.geteuid() == 0 else {},
        unchanged=[name for name, entry in entries.items() if _running_hash(paths, name) == entry["hash"]],
    )  # fmt: skip
    needs, chosen, unchecked = context.needs, None, []
    try:
        chosen = platform_of(platform)
        hardware_problems = _check_hardware(chosen, context)
        unchecked += chosen.unchecked(context.found, context.hardware, needs) if context.found else []
    except FleetError as error:
        if hangs(error):  # what asks it next would hang too
            raise
        hardware_problems = [error.message]
    checks = [
        ("python", _check_python()),
        ("container engines", _check_engines(context, prepares)),
        ("root", _check_root(paths)),
        ("hardware", hardware_problems),
        ("cpu_flags", _check_cpu_flags(context.system, needs)),
        ("libraries", _check_libraries(needs, context.installs, installs)),
        ("cpus", _check_cpus(entries, only, sysroot)),
        ("ports", _check_ports(paths, entries, only)),
        ("memory", _check_memory(context.system, paths, entries, needs, only, unchecked)),
        ("disk", _check_disk(paths, needs, satisfied_by)),
        ("model", [message for model in context.models for message in _check_model(model)]),
        *(chosen.preflight(context) if chosen else ()),
    ]
    problems = [{"check": check, "message": message} for check, messages in checks for message in messages]
    if problems:
        host = next((entry["host"] for entry in entries.values()), machine.node())
        raise FleetError(
            "preflight.problems",
            "Preflight found %d %s on %s, nothing was changed:\n%s\nCorrect this, and run again.",
            (
                len(problems),
                "problem" if len(problems) == 1 else "problems",
                host,
                "\n".join(" %d. %s" % (number, item["message"]) for number, item in enumerate(problems, 1)),
            ),
            details={"problems": problems},
        )
    return {
        "changed": False,
        "accelerators": context.found.as_dict() if context.found else None,
        "problems": [],
        "warnings": [*_far_cpus(entries, only, context.found), *context.warnings],
        "unchecked": unchecked,
    }


def _check_python():
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield (
            "This node's Python is %s (%s), %d.%d is the oldest that works. Set "
            "ansible_python_interpreter to a newer one." % (machine.python_version(), sys.executable, *OLDEST_PYTHON)
        )


def _check_engines(context, prepares):
    """What keeps the engines of this node's containers from starting any. FleetError for one that hangs."""
    containers = [entry["container"] for entry in context.chosen.values() if entry["container"]]
    containers = [] if context.system.sysroot else containers  # nothing runs in another root
    for engine, address in sorted({(one["engine"], one["address"] or "") for one in containers}):
        problems, repaired = engine_faults(engine, address or None, prepares)
        context.warnings += repaired
        yield from problems


def _check_root(paths):
    closed, fixed = [], {}
    for path in (paths.etc, paths.lib, paths.log, paths.run):
        parent = existing_parent(path)
        below = os.path.relpath(path, parent).split("/")[0]
        blocker = os.path.join(parent, below)
        if below != "." and os.path.lexists(blocker):
            yield "%s is in the way: it must be a folder. Remove it, or set another fleet_root." % blocker
        elif read_only(parent):
            fixed[parent] = "%s (EROFS). %s." % (os_words(read_only(parent)), remedy(read_only(parent)))
        elif not os.access(parent, os.W_OK | os.X_OK) and parent not in closed:
            closed.append(parent)
    yield from fixed.values()
    if closed:
        yield (
            "The user %s cannot write to %s. Run the play with become, or set fleet_root to a folder that this user "
            "can write to." % (processes.user_name(os.geteuid()), ", ".join(closed))
        )


def _check_hardware(platform, context):
    """Detect, and compare with what is declared and needed: messages. FleetError where the devices cannot be asked."""
    if platform.driver_missing(context):
        return []  # the role installs it, and then looks at the devices
    context.found = found = platform.detect(context.system)
    declared, fitting = context.hardware.get("accelerator"), context.needs.get("accelerators")
    if declared and declared != found.accelerator:
        return [
            "The inventory declares the accelerator %s (fleet_hardware.accelerator), this node has %s (%s). Correct "
            "fleet_hardware, or take the node out of this group." % (declared, found.accelerator, found.model)
        ]
    if fitting and found.accelerator not in fitting:
        return [
            "The recipe is for %s (needs.accelerators), this node has %s (%s). Set fleet_recipe to one "
            "for this node." % (", ".join(fitting), found.accelerator, found.model)
        ]
    problems = platform.shortfalls(found, context.hardware, context.needs, context.installs)
    context.fits = not problems
    return problems


def _check_cpu_flags(system, needs):
    if needs.get("cpu_flags"):
        cpu = describe_cpu(system)
        lacking = [flag for flag in needs["cpu_flags"] if flag not in cpu["flags"]]
        if lacking:
            yield (
                "The recipe needs a CPU with %s (needs.cpu_flags), this node's %s lacks %s. Take a node that has it, "
                "or a recipe that does not need it." % (", ".join(needs["cpu_flags"]), cpu["model"], ", ".join(lacking))
            )


def _check_libraries(needs, installed, installable):
    """installed: what this run installs, installable: what it would as root."""
    try:
        missing = missing_libraries(needs.get("libraries") or ())
    except FleetError as error:
        yield error.message
        return
    for name in missing:
        if name in installed:
            continue
        packages = ", ".join("%s (%s)" % (package, family) for family, package in (installable.get(name) or {}).items())
        yield (
            "The recipe needs the shared library %s (needs.libraries), this node lacks it. Install the package %s%s."
            % (
                name,
                packages or "that holds it",
                "; or run the play with become, which installs it" if name in installable else "",
            )
        )


def _check_cpus(entries, only, sysroot):
    for name, entry in entries.items():
        missing = missing_cpus(entry, sysroot) if not only or name in only else ""
        if missing:
            yield (
                "%s runs on the CPUs %s, this node lacks %s. Correct cpus of the server in fleet_override, or "
                "fleet_hardware.cpu_affinity." % (name, entry["cpus"], missing)
            )


def _far_cpus(entries, only, found):
    """Sentences on servers with CPUs that the node does not report beside their devices; where it reports none, none.

    A CPU's devices are shares of the machine, so there is nothing to be near to.
    """
    owners = {number: device for device in found.devices for number in device.core_ids} if found else {}
    for name, entry in entries.items():
        devices = {owners[number].id: owners[number] for number in entry["devices"] if number in owners}
        if not entry["cpus"] or not devices or (only and name not in only):
            continue
        near = set().union(*(parse_cpu_list(device.cpus) for device in devices.values()))
        far = parse_cpu_list(entry["cpus"]) - near
        if far and all(device.cpus for device in devices.values()):
            numa = format_cpu_list(device.numa for device in devices.values() if device.numa is not None)
            yield (
                "%s runs on the CPUs %s; beside its device%s %s this node reports %s%s, so %s are farther from %s. "
                "Correct cpus of the server in fleet_override, or fleet_hardware.cpu_affinity."
                % (
                    name,
                    entry["cpus"],
                    "" if len(devices) == 1 else "s",
                    format_cpu_list(devices),
                    format_cpu_list(near),
                    " (NUMA node %s)" % numa if numa else "",
                    format_cpu_list(far),
                    "it" if len(devices) == 1 else "them",
                )
            )


def _check_ports(paths, entries, only):
    containers = our_containers(paths.root, entries.values())
    for name, entry in entries.items():
        if only and name not in only:
            continue
        for kind, port in [("port", entry["port"]), *sorted(entry["ports"].items())]:
            holder = port_holder(entry["bind"], port, paths.root, containers) if port is not None else None
            if holder is not None and not _makes_way(holder, paths, only):
                yield (
                    "Port %d (%s%s) is held by %s. %s, or set another port in fleet_override: {servers: {%s: %s}}."
                    % (
                        port,
                        name,
                        "" if kind == "port" else ", ports.%s" % kind,
                        holder_words(holder, paths.root),
                        "Add %s to the names that this run is limited to" % holder["server"]
                        if _is_ours(holder, paths)
                        else "Stop it",
                        name.rpartition("-")[0] or name,
                        "{port: …}" if kind == "port" else "{ports: {%s: …}}" % kind,
                    )
                )


def _is_ours(holder, paths):
    return holder["server"] is not None and holder["root"] == (paths.root or "/")


def _makes_way(holder, paths, only):
    """Whether this run may stop the holder: then it has the port rightly, or is moved or removed."""
    return _is_ours(holder, paths) and (not only or holder["server"] in only)


def _running_hash(paths, name):
    """The hash of the entry that the server's engine runs, by what its guard recorded; None where it does not run."""
    state = read_record(paths.server_state(name))
    found = processes.process(state.get("pid") or 0)
    runs = (
        state.get("phase") == "running"
        and found is not None
        and found.state not in processes.ENDED
        and found.ticks == state.get("ticks")
    )
    return state.get("hash", "") if runs else None


def _check_memory(system, paths, entries, needs, only, unchecked):
    each = needs.get("host_memory_gib") or 0
    starting = [name for name in entries if (not only or name in only) and _running_hash(paths, name) is None]
    if not each or not starting:
        return
    available = system.memory_available()
    if available is None:
        unchecked.append("Not checked: needs.host_memory_gib; the memory that is available cannot be read.")
        return
    if not only:
        # What no longer is in the plan is stopped before anything is started.
        leaving = [pids for name, pids in processes.marked_processes(paths.root).items() if name not in entries]
        available += sum(processes.memory_mib(pids) or 0 for pids in leaving)
    if each * len(starting) * 1024 > available:
        yield (
            "%s to be started (%s) and %s %g GiB of host memory%s (needs.host_memory_gib), this node has %.1f GiB "
            "available. Stop other programs, or give the host fewer servers."
            % (
                "1 server is" if len(starting) == 1 else "%d servers are" % len(starting),
                ", ".join(starting),
                "needs" if len(starting) == 1 else "need",
                each * len(starting),
                "" if len(starting) == 1 else ", %g GiB each" % each,
                available / 1024,
            )
        )


def _check_disk(paths, needs, satisfied_by):
    least = needs.get("disk_gib") or 0
    if not least or (satisfied_by and all(os.path.exists(path) for path in satisfied_by)):
        return
    where = existing_parent(paths.lib)
    free = free_bytes(where) / (1 << 30)
    if free < least:
        yield (
            "A first deployment needs %g GiB of free disk (needs.disk_gib), %s has %.1f GiB. Free space there, or set "
            "fleet_root to a folder on a larger disk." % (least, where, free)
        )


def _check_model(model):
    """What a checkpoint from the node's own directory lacks; weights that are fetched are checked when they come."""
    if model.get("source") != "path":
        return
    folder = model.get("source_path") or model["path"]
    if not os.path.isdir(folder) and os.path.isdir(model["path"]):
        # Copied earlier, from a mount that is gone now; the copy has its own manifest.
        folder = model["path"]
    try:
        checkpoints.check_format(folder, checkpoints.inspect(folder)["format"], model.get("format"))
        check_draft((model.get("draft") or {}).get("path"))
    except FleetError as error:
        yield error.message


def free_bytes(path):
    """Bytes that this user can still write on the file system of `path`. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
