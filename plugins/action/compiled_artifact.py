# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings archives of compiled artifacts to a node that asks for them, and from one that made them."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    artifact_archives as compiled_artifact,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.errors import action_fail
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram

NO_SOURCE = "no source of artifacts, the servers compile what they lack"


class ActionModule(NodeProgram, ActionBase):
    """compiled_artifact, with the transfer between controller and node."""

    TRANSFERS_FILES = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        try:
            if arguments.get("state", "imported") == "exported":
                result.update(self._export(arguments, task_vars))
            else:
                result.update(self._import(arguments, task_vars))
        except FleetError as error:
            raise action_fail(error) from error
        return result

    def _module(self, arguments, task_vars):
        return self.call("compiled_artifact", arguments, task_vars)

    @staticmethod
    def _folder(path):
        """A folder of the controller, below the working directory; beside the playbook is the installed collection."""
        return os.path.abspath(os.path.expanduser(path))

    # ---- import

    def _import(self, arguments, task_vars):
        source = arguments.get("source")
        first = sent(self, arguments)
        if first is None:
            return {"changed": False, "message": NO_SOURCE, "artifacts": [], "needed": []}
        answer = self._module(first, task_vars)
        if "source" in first:
            return answer
        if answer.get("failed") or not answer.get("needed"):
            return answer
        folder = self._folder(source)
        servers = {}
        for one in compiled_artifact.artifacts_of(arguments["servers"]):
            servers.setdefault(one["key"], one["servers"])
        # all are looked at before the first travels
        archives = {key: compiled_artifact.find_archive(folder, key, servers[key])[0] for key in answer["needed"]}
        if self._task.check_mode:
            return answer
        there = self._connection._shell.tmpdir or self._make_tmp_path()
        paths = []
        for archive in archives.values():
            paths.append(self._connection._shell.join_path(there, os.path.basename(archive)))
            self._transfer_file(archive, paths[-1])
        self._fixup_perms2([there, *paths])
        return self._module(dict(arguments, source=there), task_vars)

    # ---- export

    def _export(self, arguments, task_vars):
        destination = arguments.get("destination")
        if not destination or boolean(arguments.get("remote_destination", False)):
            return self._module(arguments, task_vars)
        folder = self._folder(destination)
        force = boolean(arguments.get("force", False))
        wanted, rows = {}, {}
        for one in compiled_artifact.artifacts_of(arguments["servers"]):
            wanted.setdefault(one["key"], one["servers"])
        for key, servers in wanted.items():
            path = os.path.join(folder, compiled_artifact.archive_name(key))
            if os.path.exists(path) and not force:
                manifest = compiled_artifact.read_manifest(path)
                compiled_artifact.check_key(path, manifest, key, servers)
                rows[key] = {"key": key, "path": path, "size": os.path.getsize(path), "files": len(manifest["files"]),
                             "written": False}  # fmt: skip
        if wanted and len(rows) == len(wanted):
            return {"changed": False, "message": "up to date", "archives": list(rows.values())}
        there = self._connection._shell.tmpdir or self._make_tmp_path()
        answer = self._module(dict(arguments, destination=there, force=True), task_vars)
        if answer.get("failed"):
            return answer
        for row in answer["archives"]:
            path = os.path.join(folder, os.path.basename(row["path"]))
            if not self._task.check_mode and row["key"] not in rows:
                self._fetch(row, path)
            rows.setdefault(row["key"], dict(row, path=path))
        written = [row["key"] for row in rows.values() if row["written"]]
        verb = "would export" if self._task.check_mode else "exported"
        answer.update(archives=list(rows.values()), changed=bool(written), message="%s %s" % (verb, ", ".join(written)))
        return answer

    def _fetch(self, row, path):
        """Fetch an archive beside its place, look at it, and rename it."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        partial = os.path.join(os.path.dirname(path), ".%s.partial" % os.path.basename(path))
        try:
            self._connection.fetch_file(row["path"], partial)
            size = os.path.getsize(partial)
            if size != row["size"]:
                raise AnsibleActionFail(
                    "The archive %s came with %d of %d bytes. Run again." % (row["path"], size, row["size"])
                )
            compiled_artifact.read_manifest(partial)
            os.rename(partial, path)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)


def sent(action, arguments):
    """The arguments of an import that go to the node first; None where there is no source of artifacts."""
    if not arguments.get("source"):
        return None
    if boolean(arguments.get("remote_source", False)):
        return arguments
    return {name: value for name, value in arguments.items() if name != "source"}
