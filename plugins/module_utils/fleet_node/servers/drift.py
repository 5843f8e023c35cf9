# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server on a node differs from the plan: its entry, files, unit and process.

playbooks/status.yml reports these differences, and decide.py repairs them. Messages name variables, never their values.
"""

from __future__ import annotations

import dataclasses

from ..engines.registry import OTHER_API_KEYS
from .model import condition


@dataclasses.dataclass
class Difference:
    """One difference.

    kind: a word for programs; text: a line for a person; action: the kind of Action that repairs it, or None if only
    another step or the administrator can; changes: [(field, before, after)]; repairs: whether it is a fault of a
    running server.
    """

    kind: str
    text: str
    action: str | None = None
    changes: list = dataclasses.field(default_factory=list)
    repairs: bool = False


def compare(target, observed):
    """[Difference] of a server, the most important first. target: DesiredServer; observed: Observed. Pure."""
    entry = target.entry
    if observed.entry is None:
        return [Difference("not deployed", "it is not deployed", "create", entry_changes({}, entry))]
    found = []
    changes = changed_fields(target, observed)
    if changes:
        found.append(Difference("changed", "changed: " + ", ".join(one[0] for one in changes), "change", changes))
    now = condition(observed)
    if now.state == "failed":
        found.append(Difference("failed", "it has failed: %s" % now.reason, "start"))
    elif now.state in ("stopped", "missing"):
        found.append(Difference("stopped", ": ".join(filter(None, ("it is stopped", now.reason))), "start"))
    else:
        found += _process_differences(target, observed, now, bool(changes))
    found += _file_differences(target, observed)
    if observed.service and not observed.service.enabled:
        text = "its unit is not enabled, so a reboot would not start it"
        found.append(Difference("not enabled", text, "enable"))
    return found


def _process_differences(target, observed, now, changed):
    if not now.managed:
        yield Difference("unmanaged", "%s (process %s)" % (now.reason, now.pid), "restart")
    if now.hash is not None and now.hash != target.entry["hash"] and not changed:
        yield Difference("changed", "it runs an older entry than the deployed one", "restart")
    weights = changed_weights(observed)
    if weights:
        text = "%s changed since it was started" % ", ".join(weights)
        yield Difference("weights", text, "restart")
    for fault in observed.faults:
        yield Difference("process", fault, "restart", repairs=True)


def _file_differences(target, observed):
    if target.problem:
        yield Difference("definition", target.problem.message)
    elif observed.definition != target.definition and (observed.definition is not None or observed.runs):
        text = "is missing" if observed.definition is None else "differs (%s)" % target.definition_path
        yield Difference("definition", "its service definition " + text, "redefine")
    for path, mode, uid, gid in target.files:
        if path not in observed.modes:
            continue
        old_mode, old_uid, old_gid = observed.modes[path]
        if old_mode != mode:
            yield Difference("file mode", "%s has mode %04o instead of %04o" % (path, old_mode, mode), "redefine")
        owner = (old_uid if uid is None else uid, old_gid if gid is None else gid)
        if owner != (old_uid, old_gid):
            text = "%s belongs to %d:%d instead of %d:%d" % (path, old_uid, old_gid, *owner)
            yield Difference("file owner", text, "redefine")


# -- entries -----------------------------------------------------------------------------------------------------------


def changed_fields(target, observed):
    """[(field, before, after)] between the deployed server, with its files, and the plan, without secrets."""
    changes = entry_changes(observed.entry, target.entry)
    fields = [change[0] for change in changes]
    secrets = _changed_secrets(target, observed)
    if secrets and "secrets" not in fields:
        changes.append(("secrets", secrets, "as planned"))
    if "config" not in fields and observed.config != target.config:
        changes.append(("config", "no file" if observed.config is None else "a file that differs", "as planned"))
    return changes


def _changed_secrets(target, observed):
    """{ENV: how the server's file of secrets differs}. Values that are not known here are not compared."""
    found = {}
    for key in sorted({*target.entry["secrets"], *observed.secrets}) if observed.secrets_read else ():
        planned = key in target.entry["secrets"]
        if planned and key in OTHER_API_KEYS:
            if not target.secrets:
                continue  # the variable may contain one key or several
            planned = key in target.secrets
        if not planned and key in observed.secrets:
            found[key] = "left over"
        elif planned and key not in observed.secrets:
            found[key] = "missing in its file"
        elif planned and observed.secrets[key] != target.secrets.get(key, observed.secrets[key]):
            found[key] = "another value"
    return found


def entry_changes(before, after):
    """[(field, before, after)] of two entries ({} for none). Secrets appear by name and version."""
    skipped = {"hash", "host", "name", "schema", "secret_versions", "secrets"}
    skipped |= {"engine", "arguments"}  # they repeat the command and the config
    if after.get("container") is None:
        skipped.add("launch")  # it repeats the command
    changes = [
        (field, before.get(field), after.get(field))
        for field in sorted(set(before) | set(after))
        if field not in skipped and before.get(field) != after.get(field)
    ]
    if len(changes) > 1 and after.get("container"):
        changes = [change for change in changes if change[0] != "launch"]  # it is composed of all the others
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
    """Folders of checkpoints and vocabularies that changed, or vocabularies that came, after a running server read
    them. A checkpoint without a manifest then (None) is not compared."""
    noted, now = observed.state.get("weights"), observed.weights
    if noted is None:
        return []
    return [path for path in sorted(now) if now[path] and noted.get(path, "") not in (None, now[path])]


def unit_notes(service):
    """Sentences on conditions that are no difference: this collection does not manage drop-ins."""
    return ["the drop-in %s changes its unit" % path for path in service.drop_ins]
