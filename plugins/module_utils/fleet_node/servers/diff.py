# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a deployed entry and its files differ from the planned ones, and the diff of a run. Pure."""

from __future__ import annotations

import json

from .model import STARTS, STAY, Observed, condition


def changed_weights(observed):
    """[(folder, note at its start, note of now)] of the checkpoints that a running server read before they changed."""
    runs = observed.fresh and observed.state.get("phase") == "running"
    noted = (observed.state.get("weights") if runs else None) or {}
    pairs = [(folder, noted.get(folder), now) for folder, now in sorted(observed.weights.items())]
    return [pair for pair in pairs if pair[1] and pair[2] and pair[1] != pair[2]]


def changed_weights_words(changed):
    """Why changed_weights() are a reason to restart."""
    return "the weights in %s changed since it was started" % ", ".join(folder for folder, _old, _new in changed)


def entry_changes(before, after):
    """[(field, before, after)] of two entries ({} for none). Secrets appear by name and version."""
    changes = []
    for field in sorted(set(before) | set(after)):
        if field in ("hash", "host", "name", "schema", "secret_versions", "secrets"):
            continue
        if field in ("engine", "arguments"):
            continue  # they repeat what command and config say
        if field == "launch" and after.get("container") is None:
            continue  # a process is launched by its command; once is enough
        if before.get(field) != after.get(field):
            changes.append((field, before.get(field), after.get(field)))
    if len(changes) > 1 and after.get("container"):
        changes = [change for change in changes if change[0] != "launch"]  # made of all the others
    if secret_summary(before) != secret_summary(after):
        changes.append(("secrets", secret_summary(before), secret_summary(after)))
    if before and not changes and before.get("hash") != after["hash"]:
        changes.append(("hash", before.get("hash"), after["hash"]))
    return changes


def differences(observed, target):
    """[(field, before, after)] between the deployed server, with its files, and the desired one. No secret in it."""
    changes = entry_changes(observed.entry or {}, target.entry)
    if observed.entry is None:
        return changes
    fields = [change[0] for change in changes]
    if "secrets" not in fields and observed.secrets != target.secrets:
        old, new = secret_summary(observed.entry), secret_summary(target.entry)
        for key in target.secrets:
            if observed.secrets.get(key) != target.secrets[key]:
                new[key] += ", another value"
        for key in set(observed.secrets) - set(target.secrets):
            old[key] = "left over"
        changes.append(("secrets", old, new))
    if "config" not in fields and observed.config != target.config:
        changes.append(("config", "no file" if observed.config is None else "a file that differs", "as planned"))
    return changes


def secret_summary(entry):
    """{ENV: "version 1"} of an entry's secrets."""
    versions = entry.get("secret_versions") or {}
    return {key: "version %s" % versions.get(key, "1") for key in entry.get("secrets") or {}}


def describe(actions, observed):
    """{"before": text, "after": text} for Ansible's diff: for each server its state and the fields that change."""
    before, after = [], []
    for action in actions:
        now = condition(observed.get(action.name) or Observed(action.name)).state
        becomes = {"stop": "stopped", "remove": "absent"}.get(action.kind, now if action.kind in STAY else "running")
        if action.kind in STARTS and now in ("running", "waiting"):
            becomes += " (restarted)"
        old, new = ["%s:" % action.name, "  state: %s" % now], ["%s:" % action.name, "  state: %s" % becomes]
        if action.kind == "redefine" and not action.changes:
            old.append("  service: another definition")
            new.append("  service: as planned, from its next start on")
        elif action.kind == "enable":
            old.append("  after a reboot: stopped")
            new.append("  after a reboot: started")
        for field, old_value, new_value in action.changes:
            old += _lines(field, old_value)
            new += _lines(field, new_value)
        before += [] if action.kind == "create" else old
        after += new
    return {"before": _joined(before), "after": _joined(after)}


def _lines(field, value):
    if value is None or value == {} or value == []:
        return []
    if isinstance(value, list):
        return ["  %s:" % field] + ["    %s" % _word(item) for item in value]
    if isinstance(value, dict):
        return ["  %s:" % field] + ["    %s: %s" % (key, _word(value[key])) for key in sorted(value)]
    return ["  %s: %s" % (field, _word(value))]


def _word(value):
    bare = isinstance(value, str) and value.isprintable() and value == value.strip() and value
    return value if bare else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _joined(lines):
    return "".join(line + "\n" for line in lines)
