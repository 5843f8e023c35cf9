# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the packed stand-in to a node, but only when the node asks for it; otherwise there is one module call, which
is given which run it belongs to."""

from __future__ import annotations

import json
import os

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.connection.to_node import is_here, to_node
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKED = os.path.join(COLLECTION, "roles", "model_weights", "files", "gpt-oss-tiny-standin")
DESCRIPTION = "standin.json"


class ActionModule(NodeProgram, ActionBase):
    """model_weights, with the packed stand-in where that is the source."""

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = sent(self, self._task.args)
        answer = self.call("model_weights", arguments, task_vars)
        if answer.pop("packed_needed", False):
            packed = _packed(self._task.args)
            files = {name: os.path.join(packed, name) for name in os.listdir(packed)}
            files = {name: path for name, path in files.items() if os.path.isfile(path)}
            arguments["packed"], _copied = to_node(self, files)
            answer = self.call("model_weights", arguments, task_vars)
        result.update(answer)
        return result


def sent(action, given):
    """The arguments that go to the node first; AnsibleActionFail where a file of the controller cannot be read."""
    arguments = {name: value for name, value in given.items() if name != "packed"}
    sums = os.path.expanduser(str(arguments.get("sha256sums") or ""))
    if sums and os.path.isfile(sums):
        try:
            with open(sums, encoding="utf-8") as stream:
                arguments["sums"] = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            raise AnsibleActionFail("sha256sums %s cannot be read on the controller: %s." % (sums, error)) from error
    if arguments.get("source") != "standin":
        # the same for all tasks of a run, so that one may begin what another waits for: without the task's own number
        arguments["caller"] = action._task._uuid.rpartition("-")[0]
        return arguments
    packed = _packed(given)
    arguments["expected"] = _promised(packed)
    if is_here(action):
        arguments["packed"] = packed
    return arguments


def _packed(given):
    return os.path.abspath(os.path.expanduser(given["packed"])) if given.get("packed") else PACKED


def _promised(packed):
    """{name: {size, sha256}} of the expanded stand-in, as its description says."""
    description = os.path.join(packed, DESCRIPTION)
    try:
        with open(description, encoding="utf-8") as stream:
            return json.load(stream).get("files") or {}
    except (OSError, ValueError, AttributeError) as error:
        raise AnsibleActionFail(
            "The packed stand-in in %s on the controller cannot be read. Set packed to the directory that "
            "holds it, or install the collection again." % packed
        ) from error
