# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server on a node differs from the plan: its entry, unit, files and process.

playbooks/status.yml reports these differences and engine_servers repairs them. Messages name variables, never their
values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import time

from .. import program_check
from ..containers.engine import EngineError, engine_of_entry
from ..engines.registry import OTHER_API_KEYS
from ..host import commands, processes

GUARD_S = 30  # within which a process of a unit has become the guard, or what the guard executes
INTERPRETER_S = 20
COMMAND_SHOWN = 200  # characters
IMAGE_DIGITS = 12  # of an image's id, for a person
PYTHON = re.compile(r"^python[\d.]*$")


@dataclasses.dataclass
class Difference:
    """One difference.

    kind: a word for machines; text: a line for a person; heals: what engine_servers does about it: "restart",
    "rewrite" (without a restart), or None if it acts for another reason, or only somebody else can repair it.
    """

    kind: str
    text: str
    heals: str | None = None


# -- entries -----------------------------------------------------------------------------------------------------------


def entry_changes(before, after):
    """[(field, before, after)] of two entries ({} for none). Secrets appear by name and version."""
    skipped = {"hash", "host", "name", "schema", "secret_versions", "secrets"}
    skipped |= {"engine", "arguments"}  # they repeat what command and config say
    if after.get("container") is None:
        skipped.add("launch")  # it repeats the command
    changes = [
        (field, before.get(field), after.get(field))
        for field in sorted(set(before) | set(after))
        if field not in skipped and before.get(field) != after.get(field)
    ]
    if len(changes) > 1 and after.get("container"):
        changes = [change for change in changes if change[0] != "launch"]  # made of all the others
    if secret_summary(before) != secret_summary(after):
        changes.append(("secrets", secret_summary(before), secret_summary(after)))
    if before and not changes and before.get("hash") != after["hash"]:
        changes.append(("hash", before.get("hash"), after["hash"]))
    return changes


def secret_summary(entry):
    """{ENV: "version 1"} of an entry's secrets."""
    versions = entry.get("secret_versions") or {}
    return {key: "version %s" % versions.get(key, "1") for key in entry.get("secrets") or {}}


def changed_weights(observed):
    """[(folder, note at its start, current note)] of the checkpoints that changed after a running server read them."""
    runs = observed.fresh and observed.state.get("phase") == "running"
    noted = (observed.state.get("weights") if runs else None) or {}
    pairs = [(folder, noted.get(folder), now) for folder, now in sorted(observed.weights.items())]
    return [pair for pair in pairs if pair[1] and pair[2] and pair[1] != pair[2]]


def changed_weights_words(changed):
    """The result of changed_weights() as a reason to restart."""
    return "the weights in %s changed since it was started" % ", ".join(folder for folder, _old, _new in changed)


# -- files -------------------------------------------------------------------------------------------------------------


def file_differences(modes, expected):
    """[Difference] of owners and modes.

    modes: {path: (mode, uid, gid)} of existing files; expected: [(path, mode, uid, gid)], None for any.
    """
    found = []
    for path, mode, uid, gid in expected:
        if path not in modes:
            continue
        old_mode, old_uid, old_gid = modes[path]
        if old_mode != mode:
            found.append(
                Difference("file mode", "%s has mode %04o instead of %04o" % (path, old_mode, mode), "rewrite")
            )
        if uid is not None and old_uid != uid:
            names = (path, processes.user_name(old_uid), processes.user_name(uid))
            found.append(Difference("file owner", "%s belongs to %s instead of %s" % names, "rewrite"))
        elif gid is not None and old_gid != gid:
            text = "%s has the group %d instead of %d" % (path, old_gid, gid)
            found.append(Difference("file owner", text, "rewrite"))
    return found


def folder_differences(modes, expected):
    """[Difference] of directories.

    modes: {path: (mode, uid, gid)} of existing ones; expected: [(path, (uid, gid) or None, whether it must exist)]: an
    engine may delete its cache.
    """
    found = []
    for path, owner, needed in expected:
        if path not in modes:
            if needed:
                found.append(Difference("directory", "its directory %s is missing" % path, "rewrite"))
            continue
        mode, uid, _gid = modes[path]
        if owner is not None and uid != owner[0]:
            names = (path, processes.user_name(uid), processes.user_name(owner[0]))
            found.append(Difference("directory", "its directory %s belongs to %s instead of %s" % names, "rewrite"))
        if mode & 0o700 != 0o700:
            text = "its directory %s has mode %04o, which its account cannot use" % (path, mode)
            found.append(Difference("directory", text, "rewrite"))
    return found


def secret_differences(names, in_file, missing):
    """[Difference] of a secrets file by its names alone.

    names: those of the entry; in_file: those of the file; missing: whether there is no such file.
    """
    if missing:
        return [Difference("secrets", "its file of secrets is missing", "restart")] if names else []
    found = []
    for words, these in (("lacks", set(names) - set(in_file)), ("also has", set(in_file) - set(names))):
        if these:
            text = "its file of secrets %s %s" % (words, ", ".join(sorted(these)))
            found.append(Difference("secrets", text, "restart"))
    return found


# -- units -------------------------------------------------------------------------------------------------------------


def unit_differences(unit, definition, planned):
    """[Difference] between the service manager's view and the plan.

    unit: services.Unit; definition: the file's content; planned: the content for this plan, None if it is not known.
    """
    found = []
    differs = planned is not None and definition != planned
    if differs and definition is not None:
        found.append(Difference("definition", "its service definition differs (%s)" % unit.path, "rewrite"))
    if unit.stale and unit.may_reload:
        found.append(Difference("reload", "systemd holds another version of its unit than the files", "rewrite"))
    for program, loaded in unit.programs:
        problem = interpreter_problem(program)
        if problem:
            text = "%s, which its service definition executes, is broken: %s; it would not start again"
            heals = "rewrite" if loaded or differs else None
            found.append(Difference("interpreter", text % (program, problem), heals))
    return found


def unit_notes(unit):
    """Sentences on conditions that are no difference: drop-ins belong to whoever added them."""
    notes = ["the drop-in %s changes its unit" % path for path in unit.drop_ins]
    if unit.stale and not unit.may_reload:
        notes.append("systemd takes the new version of its unit at its next start")
    return notes


@functools.cache
def interpreter_problem(program):
    """None, or what is wrong with an interpreter that a unit names. A program is executed only if it is a Python."""
    if not os.path.isabs(program) or not os.path.exists(program):
        return "it is not there"
    if not os.access(program, os.X_OK):
        return "it cannot be executed"
    if not PYTHON.match(os.path.basename(program)):
        return None
    try:
        done = commands.run([program, "-I", "-S", "-c", ""], limit_s=INTERPRETER_S)
    except OSError as error:
        return "it cannot be executed: %s" % error.strerror
    except commands.TimedOut:
        return "it does not end within %d s" % INTERPRETER_S
    return "it ends with exit status %d" % done.returncode if done.returncode else None


# -- processes ---------------------------------------------------------------------------------------------------------


def strange_process(pid, root):
    """Why the process of a server's unit is neither a guard nor started by a guard, None if it is."""
    environment = processes.environment_of(pid)
    started = processes.started_at(pid)
    if not environment or started is None or time.time() - started < GUARD_S:
        return None
    markers = processes.markers_of(pid)
    is_guard = any(word.endswith(program_check.current("/")) for word in processes.argv(pid)[:4])
    if is_guard or (markers and markers[0] == (root or "/")):
        return None
    return "its unit's process %d is no server of this collection (%s)" % (
        pid,
        (processes.command(pid) or "gone")[:COMMAND_SHOWN],
    )


def moved_image(entry, containers):
    """Why the image of an entry's running container is not the image that its name means now, None if it is, or if the
    container engine does not answer."""
    engine = engine_of_entry(entry)
    running = [one for one in containers if one.running]
    if engine is None or len(running) != 1:
        return None
    name = entry["container"]["image"]
    with contextlib.suppress(EngineError):
        found = engine.container(running[0].id)
        named = engine.find_image(name, entry["container"]["digest"])
        own = engine.image(found["Image"]) if named and found and found.get("Image") else None
        if own and own["id"] != named["id"]:
            short = [one["id"].rpartition(":")[2][:IMAGE_DIGITS] for one in (named, own)]
            return "%s is another image by now (%s) than its container runs (%s)" % (name, *short)
    return None


# -- a server ----------------------------------------------------------------------------------------------------------


def differences(target, observed):
    """[Difference] of a deployed server, except those of its entry."""
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
    if observed.strange:
        # a restart would execute what a drop-in says once more
        edited = observed.unit is not None and observed.unit.drop_ins
        found.append(Difference("process", observed.strange, None if edited else "restart"))
    if observed.moved_image and observed.runs_entry(entry):
        found.append(Difference("container", observed.moved_image, "restart"))
    return found
