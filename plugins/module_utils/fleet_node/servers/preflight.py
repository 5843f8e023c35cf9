# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether a node can run its plan, and reports all problems in one message before anything is changed."""

from __future__ import annotations

import os
import platform as machine

from ..containers.engine import our_containers
from ..containers.host_settings import faults as engine_faults
from ..errors import FleetError
from ..host import processes
from ..host.commands import hangs
from ..host.files import existing_parent, read_text
from ..host.os_errors import os_words, read_only, remedy
from ..host.packages import missing_libraries
from ..host.paths import NodePaths
from ..host.server_spec import check_entries
from ..host.values import format_cpu_list, parse_cpu_list
from ..model import gpt_oss
from ..platforms import other_hardware
from ..platforms.base import Context
from ..platforms.cpu import describe_cpu
from ..platforms.host import System
from ..platforms.registry import platform_of
from ..supervise.state import read_record, recorded_pid
from ..weights import checkpoints
from .observe import foreign_holders, started_by_hand


def preflight(root="", servers=(), hardware=None, needs=None, platform="cpu", only=(), installs=None, satisfied_by=(),
              models=(), venvs=(), prepares=True, adopt=False, sysroot=""):  # fmt: skip
    """Check the node against its plan. Nothing is changed.

    servers: plan entries of this node; only: the names that this run is limited to, all if empty. hardware:
    fleet_hardware, needs: the recipe's needs; an absent key and None are the same. platform: a name of PLATFORMS.
    installs: what the platform's role installs as root, by the names of libraries or packages. satisfied_by: paths that
    exist after a deployment; no free disk is required then. models: models of the servers with resolved paths; a model
    that is served from a directory of the node must be complete. venvs: environments of the servers. prepares: whether
    the step prepare, which installs and starts container engines, is in the run. adopt: servers on planned ports that
    were started by hand are no problems. sysroot: where /proc and /sys are
    read.

    Returns {changed, accelerators (base.py; None before the driver is installed), problems: [], warnings: [what works
    and what this run repairs], unchecked: [what the node does not report]}. Raises FleetError with all problems; its
    details contain them as problems: [{check, message, code of those that have one}].
    """
    paths = NodePaths.of_parameter(root)
    entries, installs = check_entries(servers), installs or {}
    context = Context(
        root=paths.root, system=System(sysroot), entries=entries, only=only, hardware=hardware or {}, needs=needs or {},
        models=models or (), venvs=venvs or (), installs=installs if os.geteuid() == 0 else {},
        unchanged=[name for name, entry in entries.items() if _running_hash(paths, name) == entry["hash"]],
    )  # fmt: skip
    if adopt:
        containers = our_containers(paths.root, entries.values())
        context.adopted = started_by_hand(paths.root, context.chosen.values(), containers)
    needs, chosen, unchecked = context.needs, None, []
    try:
        chosen = platform_of(platform)
        hardware_problems = _check_hardware(chosen, context)
        unchecked += chosen.unchecked(context.found, context.hardware, needs) if context.found else []
    except FleetError as error:
        if hangs(error):  # its next query would hang too
            raise
        hardware_problems = [" ".join(filter(None, [error.message, other_hardware.describe(context.system)]))]
    if context.found is not None and context.found.accelerator == platform == "cpu":
        context.warnings += filter(None, [other_hardware.describe(context.system)])
    checks = [
        ("container engines", _check_engines(context, prepares)),
        ("root", _check_root(paths)),
        ("hardware", hardware_problems),
        ("cpu_flags", _check_cpu_flags(context.system, needs)),
        ("libraries", _check_libraries(needs, context.installs, installs)),
        ("cpus", _check_cpus(context.chosen, sysroot)),
        ("ports", _check_ports(paths, context)),
        ("memory", _check_memory(paths, context, unchecked)),
        ("disk", _check_disk(paths, needs, satisfied_by)),
        ("model", [message for model in context.models for message in _check_model(model)]),
        *(chosen.preflight(context) if chosen else ()),
    ]
    problems = [
        {"check": check, "message": str(one), **({"code": one.code} if isinstance(one, FleetError) else {})}
        for check, found in checks
        for one in found
    ]
    if problems:
        host = next((entry["host"] for entry in entries.values()), machine.node())
        lines = "\n".join(" %d. %s" % (number, item["message"]) for number, item in enumerate(problems, 1))
        raise FleetError(
            "preflight.problems",
            len(problems),
            "problem" if len(problems) == 1 else "problems",
            host,
            lines,
            details={"problems": problems},
        )
    return {
        "changed": False,
        "accelerators": context.found.as_dict() if context.found else None,
        "problems": [],
        "warnings": context.warnings,
        "unchecked": unchecked,
    }


def _check_engines(context, prepares):
    """Problems of the container engines of this node's servers. Raises FleetError for an engine that hangs."""
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
    """Compare the devices with fleet_hardware and the recipe's needs. Raises FleetError if they cannot be read."""
    if platform.driver_missing(context):
        return []  # the role installs it, and then looks at the devices
    context.found = found = platform.detect(context.system)
    declared, fitting = context.hardware.get("accelerator"), context.needs.get("accelerators")
    if declared and declared != found.accelerator:
        return [
            "The inventory declares the accelerator %s (fleet_hardware.accelerator), this node has %s (%s). Correct "
            "fleet_hardware, or remove the node from this group." % (declared, found.accelerator, found.model)
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
                "The recipe needs a CPU with %s (needs.cpu_flags), this node's %s lacks %s. Use a node that has it, "
                "or a recipe that does not need it." % (", ".join(needs["cpu_flags"]), cpu["model"], ", ".join(lacking))
            )


def _check_libraries(needs, installed, installable):
    """installed: what this run installs; installable: what a run as root would install."""
    try:
        missing = missing_libraries(tuple(needs.get("libraries") or ()))
    except FleetError as error:
        yield error.message
        return
    for name in (one for one in missing if one not in installed):
        packages = ", ".join("%s (%s)" % (package, family) for family, package in (installable.get(name) or {}).items())
        more = "; or run the play with become, which installs it" if name in installable else ""
        yield (
            "The recipe needs the shared library %s (needs.libraries), this node lacks it. Install the package %s%s."
            % (name, packages or "that contains it", more)
        )


def _check_cpus(entries, sysroot):
    online = read_text(sysroot + "/sys/devices/system/cpu/online")
    for name, entry in entries.items() if online else ():
        missing = parse_cpu_list(entry["cpus"] or "") - parse_cpu_list(online)
        if missing:
            yield (
                "%s runs on the CPUs %s, this node lacks %s. Correct cpus of the server in fleet_override, or "
                "fleet_hardware.cpu_affinity." % (name, entry["cpus"], format_cpu_list(missing))
            )


def _check_ports(paths, context):
    """Ports of other programs and of servers that this run does not stop."""
    containers = our_containers(paths.root, context.entries.values())
    leaving = context.only or list(processes.marked_processes(paths.root)) + list(containers)
    for name, holder, words in foreign_holders(paths.root, context.chosen.values(), containers, leaving):
        if name in context.adopted and holder["server"] is None:
            continue
        ours = holder["server"] is not None and holder["root"] == (paths.root or "/")
        remedy = "Add %s to the names that this run is limited to" % holder["server"] if ours else "Stop it"
        yield "%s: %s. %s, or set another port in fleet_override." % (name, words, remedy)


def _running_hash(paths, name):
    """The hash of the entry that the server's engine runs, from its record; None if it does not run."""
    state = read_record(paths.server_state(name))
    runs = state.get("phase") == "running" and recorded_pid(state) is not None
    return state.get("hash", "") if runs else None


def _check_memory(paths, context, unchecked):
    each = context.needs.get("host_memory_gib") or 0
    # a frontend needs little next to its workers
    loads = {name for name, entry in context.entries.items() if entry["devices"]} or set(context.entries)
    starting = [name for name in context.chosen if name in loads and name not in context.adopted]
    starting = [name for name in starting if _running_hash(paths, name) is None]
    if not each or not starting:
        return
    available = context.system.memory_available()
    if available is None:
        unchecked.append("Not checked: needs.host_memory_gib; the memory that is available cannot be read.")
    elif each * len(starting) * 1024 > available:
        yield (
            "The servers to be started (%s) need %g GiB of host memory (needs.host_memory_gib, %g GiB each), this node "
            "has %.1f GiB available. Stop other programs, or give the host fewer servers."
            % (", ".join(starting), each * len(starting), each, available / 1024)
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
    """Problems of a checkpoint in a directory of the node. Downloads are checked by the weights step."""
    if model.get("source") != "path":
        return
    folders = [model.get("source_path") or model["path"], model["path"]]
    # the second was copied earlier, from a mount that is gone now; it has its own manifest
    folder = next(filter(os.path.isdir, folders), folders[0])
    try:
        if model.get("adapter"):
            checkpoints.inspect_adapter(folder, model["adapter"])
            return
        found = checkpoints.inspect(folder, model.get("family") or gpt_oss.MODEL_TYPE)
        checkpoints.check_format(folder, found["format"], model.get("format"))
        draft = (model.get("draft") or {}).get("path")
        if draft:
            checkpoints.inspect_draft(draft)
    except FleetError as error:
        yield error.message


def free_bytes(path):
    """Bytes that this user can write on the file system of `path`. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
