# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the control node that go to a node for checkpoints and encodings."""

from __future__ import annotations

import json
import os

from ansible.errors import AnsibleActionFail
from ansible_collections.inference.fleet.plugins.plugin_utils.to_node import is_here, to_node

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACKED = os.path.join(COLLECTION, "roles", "model_weights", "files", "gpt-oss-tiny-standin")
DESCRIPTION = "standin.json"
SUFFIX = ".tiktoken"


def model_weights(action, given, task_vars):
    """Returns the result of the operation; the packed stand-in is copied to a node that needs it."""
    arguments = model_weights_sent(action, given)
    answer = action.call("model_weights", arguments, task_vars)
    if answer.pop("packed_needed", False):
        packed = _packed(given)
        files = {name: os.path.join(packed, name) for name in os.listdir(packed)}
        files = {name: path for name, path in files.items() if os.path.isfile(path)}
        arguments["packed"], _copied_files = to_node(action, files)
        answer = action.call("model_weights", arguments, task_vars)
    return answer


def model_weights_sent(action, given):
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


def tiktoken_encodings(action, arguments, task_vars):
    """Returns the result of the operation; files of sources of type controller are copied to a node that needs them."""
    answer = action.call("tiktoken_encodings", arguments, task_vars)
    names = answer.pop("controller_needed", None)
    if names:
        sources = enumerate(arguments["sources"])
        sources = [_copied(action, source, "encodings-%d-" % number, names) for number, source in sources]
        answer = action.call("tiktoken_encodings", {**arguments, "sources": sources}, task_vars)
    return answer


def _copied(action, source, prefix, names):
    """The source with the paths on the node of those of its files that are on the controller."""
    if source.get("type") != "controller" or not source.get("path"):
        return source
    path = os.path.abspath(os.path.expanduser(source["path"]))
    files = {name: os.path.join(path, name + SUFFIX) if os.path.isdir(path) else path for name in names}
    files = {name: file for name, file in files.items() if os.path.isfile(file)}
    if not is_here(action):
        _folder, copied = to_node(action, {prefix + name: file for name, file in files.items()})
        files = {name: copied[prefix + name] for name in files}
    return {**source, "copied": files}
