# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server on a node differs from the plan, beyond its entry: unit, drop-ins, files, and the process that runs.

Pure comparisons. Messages name variables, never their values. What is found here, playbooks/status.yml reports and
engine_servers repairs, by the same functions.
"""

from __future__ import annotations

import dataclasses
import os
import pwd

from .. import program_check
from ..engines.registry import OTHER_API_KEYS
from ..node import processes
from ..node.cpu_list import format_cpu_list, parse_cpu_list
from ..supervise import run
from . import running_container
from .running_process import GROUP_LIMITS, UNLIMITED, interpreter_problem, is_wrapper, shown_command

GUARD_S = 30  # within which a process of a unit has become the guard, or what the guard records


@dataclasses.dataclass
class Difference:
    """One thing that differs.

    kind: a word for machines; text: a line for a person; heals: what engine_servers does about it: "restart",
    "rewrite" (without a restart), or None where it does so for another reason, or only somebody else can.
    """

    kind: str
    text: str
    heals: str | None = None


def file_differences(modes, expected):
    """[Difference] of owners and modes. modes: {path: (mode, uid, gid)}; expected: [(path, mode, uid, gid)], None for
    any."""
    found = []
    for path, mode, uid, gid in expected:
        if path not in modes:
            continue
        old_mode, old_uid, old_gid = modes[path]
        if old_mode != mode:
            text = "%s has mode %04o instead of %04o" % (path, old_mode, mode)
            found.append(Difference("file mode", text, "rewrite"))
        if uid is not None and old_uid != uid:
            names = (path, processes.user_name(old_uid), processes.user_name(uid))
            found.append(Difference("file owner", "%s belongs to %s instead of %s" % names, "rewrite"))
        elif gid is not None and old_gid != gid:
            text = "%s has the group %d instead of %d" % (path, old_gid, gid)
            found.append(Difference("file owner", text, "rewrite"))
    return found


def folder_differences(modes, expected):
    """[Difference] of directories. modes: {path: (mode, uid, gid)} of what is there; expected: [(path, (uid, gid) or
    None, whether it must be there)]: an engine may delete a cache of its own."""
    found = []
    for path, owner, needed in expected:
        if path not in modes and needed:
            found.append(Difference("directory", "its directory %s is missing" % path, "rewrite"))
        elif path in modes and owner is not None and modes[path][1] != owner[0]:
            names = (path, processes.user_name(modes[path][1]), processes.user_name(owner[0]))
            found.append(Difference("directory", "its directory %s belongs to %s instead of %s" % names, "rewrite"))
        if path in modes and modes[path][0] & 0o700 != 0o700:
            text = "its directory %s has mode %04o, which its account cannot use" % (path, modes[path][0])
            found.append(Difference("directory", text, "rewrite"))
    return found


def secret_differences(names, in_file, missing):
    """[Difference] of a secrets file by its names alone. names: those of the entry; in_file: those of the file;
    missing: whether there is no such file."""
    if missing:
        return [Difference("secrets", "its file of secrets is missing", "restart")] if names else []
    found = []
    for words, these in (("lacks", set(names) - set(in_file)), ("also has", set(in_file) - set(names))):
        if these:
            found.append(Difference("secrets", "its file of secrets %s %s" % (words, _listed(these)), "restart"))
    return found


def unit_differences(unit, definition, planned):
    """[Difference] of what the service manager knows. unit: services.Unit; definition: the text on disk; planned: the
    text as it would be written now, None where it is not known."""
    found = []
    if planned is not None and definition is not None and definition != planned:
        found.append(Difference("definition", "its service definition differs (%s)" % unit.path, "rewrite"))
    # files of others: reported, never removed
    found += [Difference("drop-in", "the drop-in %s changes its unit" % path, None) for path in unit.drop_ins]
    found += [Difference("definition", "%s takes the place of its unit" % path, None) for path in unit.overrides]
    if unit.stale and unit.may_reload:
        found.append(Difference("reload", "systemd holds another version of its unit than the files", "rewrite"))
    for program, loaded in unit.programs:
        problem = interpreter_problem(program)
        if problem:
            heals = "rewrite" if loaded or (planned is not None and definition != planned) else None
            text = "%s, which its service definition executes, is broken: %s; it would not start again"
            found.append(Difference("interpreter", text % (program, problem), heals))
    return found


def unit_notes(unit):
    """Sentences on what is no difference and yet worth knowing."""
    notes = ["the drop-in %s changes its unit" % path for path in unit.node_wide]
    if unit.stale and not unit.may_reload:
        notes.append("systemd takes the new version of its unit at its next start")
    return notes


def differences(target, observed):
    """[Difference] of a deployed server beyond its entry."""
    entry, found = target.entry, []
    if observed.unit is not None:
        found += unit_differences(observed.unit, observed.definition, target.definition)
    found += file_differences(observed.modes, target.files)
    if observed.modes:
        found += folder_differences(observed.modes, target.folders)
    # a server of one API key has no others
    names = [name for name in entry["secrets"]
             if name not in OTHER_API_KEYS or name in target.secrets or name in observed.secrets]  # fmt: skip
    if observed.entry is not None and observed.secrets_read and observed.modes:
        found += secret_differences(names, observed.secrets, target.secret_path not in observed.modes)
    gone = processes.account_gone(target.user)
    if gone:
        found.append(Difference("account", gone))
    running = observed.running
    if running is None or observed.service is None:
        return found
    if not observed.fresh:
        if is_strange(running, target.root):
            text = "its unit's process %d is no server of ours (%s)" % (running.pid, shown_command(running.command))
            found.append(Difference("process", text, "restart"))
    elif observed.runs_entry(entry) and not is_guard(running):
        secrets = {name: target.secrets.get(name, observed.secrets.get(name)) for name in names}
        found += process_differences(entry, running, secrets, target.user, observed.unit, observed.outside)
        if observed.container is not None:
            words = running_container.differences(entry, observed.container)
            found += [Difference("container", text, "restart") for text in words]
    return found


def process_differences(entry, running, secrets=None, user=None, unit=None, outside=()):
    """[Difference] of a process that the guard made the engine of `entry`.

    running: Running; secrets: {name: value, None where it is not known}; user: the name that it should run as, None for
    any; unit: services.Unit; outside: pids of the server that are not in its unit.
    """
    found = []
    contained = entry["launcher"] == "container"
    launch = entry["launch"]
    uid = _uid(user)
    if uid is not None and running.uid is not None and running.uid != uid:
        text = "it runs as %s instead of %s" % (processes.user_name(running.uid), user)
        found.append(Difference("user", text, "restart"))
    wrapped = is_wrapper(launch[0]) if launch and not contained else False
    if not contained and not wrapped and shows_program(running.argv, launch):
        if not is_command(running.argv, launch):
            found.append(Difference("command", "its process runs another command than its entry", "restart"))
        else:
            found += _environment_differences(entry, running, secrets or {})
    found += _limit_differences(running, unit)
    if entry["cpus"] and not contained and running.cpus is not None:
        cpus = parse_cpu_list(entry["cpus"])
        if running.cpus != cpus:
            text = "it runs on the CPUs %s instead of %s" % (format_cpu_list(running.cpus), format_cpu_list(cpus))
            found.append(Difference("cpus", text, "restart"))
    if unit is not None and unit.name and running.unit != unit.name and not contained:
        text = "its process %d runs in %s instead of %s" % (running.pid, running.unit or "no unit", unit.name)
        found.append(Difference("unit", text, "restart"))
    for pid in outside:
        text = "its process %d runs outside of its unit (%s)" % (pid, shown_command(processes.command(pid)))
        found.append(Difference("unit", text, "restart"))
    return found


def shows_program(shown, launch):
    """Whether a process still shows the program of `launch`; one that has executed another shows that other's words."""
    names = {os.path.basename(word) for word in [word for word in shown if word][:4]}
    return len(names) < 2 or os.path.basename(launch[0]) in names


def is_command(shown, launch):
    """Whether a process that shows the words `shown` was executed as `launch`.

    A script stands behind its interpreter, and its options. A program may have given itself a title: one word.
    """
    words = [word for word in shown if word]
    if not words or (len(words) == 1 and (len(launch) > 1 or words != launch)):
        return True
    for more in range(min(4, max(0, len(shown) - len(launch)) + 1)):
        if shown[more + 1 :] == launch[1:] and (
            not more or os.path.basename(shown[more]) == os.path.basename(launch[0])
        ):
            return True
    return False


def _environment_differences(entry, running, secrets):
    shown = running.environment
    if shown is None or shown.get(processes.MARKER_SERVER) != entry["name"]:
        return []  # not ours to read, or overwritten by the engine
    given = {**entry["environment"], **secrets}
    ours = set(run.engine_environment(entry, {}, "")) | set(given)
    groups = {
        "lacks": {name for name in given if name not in shown},
        "has another value of": {
            name for name, value in given.items() if value is not None and name in shown and shown[name] != value
        },
        "also has": set(shown) - ours,
    }
    return [
        Difference("environment", "its process's environment %s %s" % (words, _listed(names)), "restart")
        for words, names in groups.items()
        if names
    ]


def _limit_differences(running, unit):
    found = []
    planned = unit.limits if unit is not None else {}
    for name, (soft, hard) in sorted(running.limits.items()):
        most = running.parent.get(name, (hard, hard))[1]
        desired = planned.get(name, most)
        # a service manager without the right to go beyond its own limits gives what it has
        accepted = {desired, _lower(desired, most)}
        if unit is not None and (unit.drop_ins or unit.node_wide) and name in unit.loaded_limits:
            accepted.add(unit.loaded_limits[name])
        if hard not in accepted or soft != hard:
            shown = _limit(hard) if soft == hard else "%s (hard %s)" % (_limit(soft), _limit(hard))
            text = "its limit %s is %s instead of %s" % (name, shown, _limit(desired))
            found.append(Difference("limits", text, "restart"))
    if unit is not None and unit.name and running.unit == unit.name and not (unit.drop_ins or unit.node_wide):
        for file, value in sorted(running.group.items()):
            if value.split()[0] != "max":
                text = "%s of its unit's cgroup is %s instead of max" % (GROUP_LIMITS[file], value)
                found.append(Difference("limits", text, "restart"))
    return found


def _lower(one, other):
    return min((value for value in (one, other) if value != UNLIMITED), default=UNLIMITED)


def _limit(value):
    return "unlimited" if value == UNLIMITED else str(value)


def is_strange(running, root):
    """Whether the process that a service manager runs for a server is neither a guard nor what a guard executed."""
    if running is None or running.environment is None or running.age < GUARD_S:
        return False
    return running.environment.get(processes.MARKER_ROOT) != (root or "/") and not is_guard(running)


def is_guard(running):
    """Whether the process is a guard yet, also for the moment between its record and the engine."""
    return any(word.endswith(program_check.current("/")) for word in running.argv[:4])


def _listed(names):
    return ", ".join(sorted(names))


def _uid(user):
    try:
        return None if user is None else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
