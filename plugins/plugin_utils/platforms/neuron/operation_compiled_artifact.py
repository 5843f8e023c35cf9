# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies archives of compiled artifacts between the control node and managed nodes."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

from ....module_utils.fleet_node.platforms.neuron import artifact_archives
from ...actions import to_node


def compiled_artifact(action, arguments, task_vars):
    """Return the result of the operation. Archives are copied to and from the control node."""
    transfer = _export if arguments.get("state", "imported") == "exported" else _import
    return transfer(action, arguments, task_vars)


def compiled_artifact_sent(_action, arguments):
    """Return the arguments of an import that are sent to the node first; None without a source of artifacts."""
    if not arguments.get("source") or boolean(arguments.get("remote_source", False)):
        return arguments if arguments.get("source") else None
    return {name: value for name, value in arguments.items() if name != "source"}


def _folder(path):
    """Return a folder of the control node as an absolute path; `path` is relative to the working directory."""
    return os.path.abspath(os.path.expanduser(path))


def _import(action, arguments, task_vars):
    first = compiled_artifact_sent(action, arguments)
    if first is None:
        message = "there is no source of artifacts, servers compile missing artifacts"
        return {"changed": False, "message": message, "artifacts": [], "needed": []}
    answer = action.call("compiled_artifact", first, task_vars)
    if "source" in first or answer.get("failed") or not answer.get("needed"):
        return answer
    folder = _folder(arguments["source"])
    servers = {found["key"]: found["servers"] for found in artifact_archives.artifacts_of(arguments["servers"])}
    # all archives are checked before the first is copied
    archives = [artifact_archives.find_archive(folder, key, servers[key])[0] for key in answer["needed"]]
    if action._task.check_mode:
        return answer
    source, _copied = to_node(action, {os.path.basename(archive): archive for archive in archives})
    return action.call("compiled_artifact", dict(arguments, source=source), task_vars)


def _export(action, arguments, task_vars):
    if not arguments.get("destination") or boolean(arguments.get("remote_destination", False)):
        return action.call("compiled_artifact", arguments, task_vars)
    folder, force = _folder(arguments["destination"]), boolean(arguments.get("force", False))
    keys = {found["key"] for found in artifact_archives.artifacts_of(arguments["servers"])}
    present = {
        key for key in keys if not force and os.path.exists(os.path.join(folder, key + artifact_archives.SUFFIX))
    }
    if keys and present == keys:
        return {"changed": False, "message": "up to date", "archives": []}
    temporary = action._connection._shell.tmpdir or action._make_tmp_path()
    answer = action.call("compiled_artifact", dict(arguments, destination=temporary, force=True), task_vars)
    if answer.get("failed"):
        return answer
    rows = [row for row in answer["archives"] if row["key"] not in present]
    for row in rows:
        path = os.path.join(folder, os.path.basename(row["path"]))
        if not action._task.check_mode:
            _fetch(action, row, path)
        row["path"] = path
    verb = "would export" if action._task.check_mode else "exported"
    message = "%s %s" % (verb, ", ".join(row["key"] for row in rows))
    return {**answer, "archives": rows, "changed": bool(rows), "message": message}


def _fetch(action, row, path):
    """Fetch an archive to a temporary file, check it, and rename it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = os.path.join(os.path.dirname(path), ".%s.partial" % os.path.basename(path))
    try:
        action._connection.fetch_file(row["path"], partial)
        size = os.path.getsize(partial)
        if size != row["size"]:
            raise AnsibleActionFail(
                "Fetched %d of %d bytes of the archive %s. Run again." % (size, row["size"], row["path"])
            )
        artifact_archives.read_manifest(partial)
        os.rename(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
