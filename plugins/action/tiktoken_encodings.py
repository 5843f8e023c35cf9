# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies encodings of the controller to a node, but only when the node asks for them."""

from __future__ import annotations

import os

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.connection.to_node import is_here, to_node
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram

SUFFIX = ".tiktoken"


class ActionModule(NodeProgram, ActionBase):
    """tiktoken_encodings, with the files of sources of type controller."""

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        answer = self.call("tiktoken_encodings", arguments, task_vars)
        names = answer.pop("controller_needed", None)
        if names:
            sources = enumerate(arguments["sources"])
            arguments["sources"] = [self._copied(source, "encodings-%d-" % number, names) for number, source in sources]
            answer = self.call("tiktoken_encodings", arguments, task_vars)
        result.update(answer)
        return result

    def _copied(self, source, prefix, names):
        """The source with the paths on the node of those of its files that are on the controller."""
        if source.get("type") != "controller" or not source.get("path"):
            return source
        path = os.path.abspath(os.path.expanduser(source["path"]))
        files = {name: os.path.join(path, name + SUFFIX) if os.path.isdir(path) else path for name in names}
        files = {name: file for name, file in files.items() if os.path.isfile(file)}
        if not is_here(self):
            _folder, copied = to_node(self, {prefix + name: file for name, file in files.items()})
            files = {name: copied[prefix + name] for name in files}
        return {**source, "copied": files}
