# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an operation on a managed node with one remote call, and its part on the control node.

If this version of the program is missing or damaged on a node, it is copied to the node once, as a file.
"""

from __future__ import annotations

import os
import re

from ansible import constants as C
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import sha256_file, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.plugin_utils.actions import action_fail, is_here, to_node
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import part_of

MODULE = "inference.fleet.node"
MAKES_FOLDER = ("etcd_member", "nats_server")  # the program's folder, on hosts that have no inference servers
MISSING = re.compile(r"python\S*: (?:command )?not found|python\S*: No such file|No python interpreters found", re.I)
OLD = re.compile(r"requires a minimum of Python\D*[\d.]+\D+(\d+\.\d+)")


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.node, and of each module with the name of an operation."""

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp=None, task_vars=None):
        """Return the result of the operation."""
        result = super().run(tmp, task_vars)
        operation, arguments = self._task.action.rpartition(".")[2], dict(self._task.args)
        if operation == "node":
            _found, given = self.validate_argument_spec(
                {"operation": {"type": "str", "required": True}, "arguments": {"type": "dict", "default": {}}}
            )
            operation, arguments = given["operation"], dict(given["arguments"])
        part = part_of(operation)
        if part is None:
            return {**result, **self.call(operation, arguments, task_vars)}
        if self._task.async_val:
            return {**result, "failed": True, "msg": "The operation %s does not support async." % operation}
        try:
            return {**result, **part(self, arguments, task_vars)}
        except FleetError as error:
            raise action_fail(error) from error

    def call(self, operation, arguments, task_vars):
        """Return the result of an operation on the node, {failed: true, …} if it fails.

        A task with `async` first makes a call that checks the program, because the result of the asynchronous call is
        not checked.
        """
        root = self._root(arguments, task_vars)
        given = {
            "operation": operation,
            "arguments": arguments,
            "version": program.own_version(),
            "root": root,
            # the operation reports a root that is not absolute
            "lib": NodePaths(root if os.path.isabs(root) else "").lib,
            "make": operation in MAKES_FOLDER,
        }
        behind = bool(self._task.async_val and not self._connection.has_native_async)
        try:
            answer = self._call({**given, "operation": None} if behind else given, task_vars)
            needed = answer.pop("program_needed", False)
            if needed:
                given.update(self._archive())
            if needed or (behind and not answer.get("failed")):
                answer = self._call({**given, "background": behind}, task_vars, behind)
        except FleetError as error:
            raise action_fail(error) from error
        return answer

    def _call(self, given, task_vars, behind=False):
        answer = self._execute_module(module_name=MODULE, module_args=given, task_vars=task_vars, wrap_async=behind)
        answer.pop("invocation", None)
        if answer.get("failed") and not answer.get("code"):
            _python_error(answer)
        return answer

    def _archive(self):
        path, sha256 = archive()
        if not is_here(self):
            _folder, copied = to_node(self, {os.path.basename(path): path})
            (path,) = copied.values()
        return {"archive": path, "sha256": sha256}

    def _root(self, arguments, task_vars):
        """Return the argument root, or the host's fleet_root, or an empty value if neither is set."""
        root = arguments.get("root")
        if root is None:
            host = self._task.delegate_to
            root = (task_vars.get("ansible_delegated_vars") or {}).get(host, task_vars).get("fleet_root")
            root = self._templar.template(root)
        return str(root or "")


def _python_error(answer):
    """Raises FleetError if the node has no Python, or if its Python is too old."""
    said = "\n".join(str(answer.get(key) or "") for key in ("msg", "module_stderr", "module_stdout"))
    old = OLD.search(said)
    found = answer.get("program_python") or (old and old.group(1))
    if not found and MISSING.search(said):
        found = said.strip().splitlines()[-1]
    if found:
        raise FleetError("node.program-python", found)
    if answer.get("program_damaged"):
        raise FleetError("node.program-damaged")


def archive():
    """Return (path of this version as one file in the run's temporary folder, its sha256). Raises FleetError."""
    path = os.path.join(C.DEFAULT_LOCAL_TMP, "fleet-%s.zip" % program.own_version())
    try:
        if not os.path.exists(path):  # another host of this run may have made it
            write_atomic(path, program.packed(program.files_of()), 0o600)
        return path, sha256_file(path)
    except OSError as error:
        raise FleetError("node.program-not-packed", path, error.strerror) from error
