# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings archives of compiled artifacts to a node that asks for them, and from one that made them."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifact_archives
from ansible_collections.inference.fleet.plugins.plugin_utils.to_node import to_node

NO_SOURCE = "no source of artifacts, the servers compile what they lack"


def compiled_artifact(action, arguments, task_vars):
    """Returns the result of the operation; archives are copied to and from the control node."""
    if arguments.get("state", "imported") == "exported":
        return _export(action, arguments, task_vars)
    return _import(action, arguments, task_vars)


def _call(action, arguments, task_vars):
    return action.call("compiled_artifact", arguments, task_vars)


def _folder(path):
    """A folder of the controller, below the working directory; beside the playbook is the installed collection."""
    return os.path.abspath(os.path.expanduser(path))


def _import(action, arguments, task_vars):
    source = arguments.get("source")
    first = compiled_artifact_sent(action, arguments)
    if first is None:
        return {"changed": False, "message": NO_SOURCE, "artifacts": [], "needed": []}
    answer = _call(action, first, task_vars)
    if "source" in first:
        return answer
    if answer.get("failed") or not answer.get("needed"):
        return answer
    folder = _folder(source)
    servers = {}
    for one in artifact_archives.artifacts_of(arguments["servers"]):
        servers.setdefault(one["key"], one["servers"])
    # all are looked at before the first travels
    archives = {key: artifact_archives.find_archive(folder, key, servers[key])[0] for key in answer["needed"]}
    if action._task.check_mode:
        return answer
    there, _copied = to_node(action, {os.path.basename(archive): archive for archive in archives.values()})
    return _call(action, dict(arguments, source=there), task_vars)


def _export(action, arguments, task_vars):
    destination = arguments.get("destination")
    if not destination or boolean(arguments.get("remote_destination", False)):
        return _call(action, arguments, task_vars)
    folder = _folder(destination)
    force = boolean(arguments.get("force", False))
    wanted, rows = {}, {}
    for one in artifact_archives.artifacts_of(arguments["servers"]):
        wanted.setdefault(one["key"], one["servers"])
    for key, servers in wanted.items():
        path = os.path.join(folder, artifact_archives.archive_name(key))
        if os.path.exists(path) and not force:
            manifest = artifact_archives.read_manifest(path)
            artifact_archives.check_key(path, manifest, key, servers)
            rows[key] = {"key": key, "path": path, "size": os.path.getsize(path), "files": len(manifest["files"]),
                         "written": False}  # fmt: skip
    if wanted and len(rows) == len(wanted):
        return {"changed": False, "message": "up to date", "archives": list(rows.values())}
    there = action._connection._shell.tmpdir or action._make_tmp_path()
    answer = _call(action, dict(arguments, destination=there, force=True), task_vars)
    if answer.get("failed"):
        return answer
    for row in answer["archives"]:
        path = os.path.join(folder, os.path.basename(row["path"]))
        if not action._task.check_mode and row["key"] not in rows:
            _fetch(action, row, path)
        rows.setdefault(row["key"], dict(row, path=path))
    written = [row["key"] for row in rows.values() if row["written"]]
    verb = "would export" if action._task.check_mode else "exported"
    answer.update(archives=list(rows.values()), changed=bool(written), message="%s %s" % (verb, ", ".join(written)))
    return answer


def _fetch(action, row, path):
    """Fetch an archive beside its place, look at it, and rename it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = os.path.join(os.path.dirname(path), ".%s.partial" % os.path.basename(path))
    try:
        action._connection.fetch_file(row["path"], partial)
        size = os.path.getsize(partial)
        if size != row["size"]:
            raise AnsibleActionFail(
                "The archive %s came with %d of %d bytes. Run again." % (row["path"], size, row["size"])
            )
        artifact_archives.read_manifest(partial)
        os.rename(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def compiled_artifact_sent(_action, arguments):
    """The arguments of an import that go to the node first; None where there is no source of artifacts."""
    if not arguments.get("source"):
        return None
    if boolean(arguments.get("remote_source", False)):
        return arguments
    return {name: value for name, value in arguments.items() if name != "source"}
