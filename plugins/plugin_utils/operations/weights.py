# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies files of the control node to a managed node for checkpoints and encodings."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail

from ..actions import is_here, to_node
from ..seen_files import COLLECTION

ARCHIVES = os.path.join(COLLECTION, "roles", "model_weights", "files")
ARCHIVE = os.path.join(ARCHIVES, "gpt-oss-tiny-standin.zip")
SUFFIX = ".tiktoken"


def model_weights(action, given, task_vars):
    """Return the result of the operation. The archive of the stand-in is copied to a node that needs it."""
    arguments = model_weights_sent(action, given)
    answer = action.call("model_weights", arguments, task_vars)
    if answer.pop("archive_needed", False):
        _folder, copied = to_node(action, {"archive": _archive(given)})
        answer = action.call("model_weights", {**arguments, "archive": copied["archive"]}, task_vars)
    return answer


def model_weights_sent(action, given):
    """Return the arguments of the first call on the node.
    Raises AnsibleActionFail if a file of the control node cannot be read."""
    arguments = {name: value for name, value in given.items() if name != "archive"}
    sums = os.path.expanduser(str(arguments.get("sha256sums") or ""))
    if sums and os.path.isfile(sums):
        try:
            with open(sums, encoding="utf-8") as stream:
                arguments["sums"] = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            raise AnsibleActionFail("sha256sums %s cannot be read on the control node: %s." % (sums, error)) from error
    # The caller is the same for all tasks of a run, without the task's number, because a task may wait for a job that
    # another task starts.
    arguments["caller"] = action._task._uuid.rpartition("-")[0]
    if arguments.get("source") == "standin" and is_here(action):
        arguments["archive"] = _archive(given)
    return arguments


def _archive(given):
    if given.get("archive"):
        return os.path.abspath(os.path.expanduser(given["archive"]))
    own = os.path.join(ARCHIVES, str(given.get("repo")).rpartition("/")[2] + ".zip")
    return own if os.path.isfile(own) else ARCHIVE


def tiktoken_encodings(action, arguments, task_vars):
    """Return the result of the operation. Files of sources of type controller are copied to a node that needs them."""
    answer = action.call("tiktoken_encodings", arguments, task_vars)
    names = answer.pop("controller_needed", None)
    if names:
        sources = enumerate(arguments["sources"])
        sources = [_copied(action, source, "encodings-%d-" % number, names) for number, source in sources]
        answer = action.call("tiktoken_encodings", {**arguments, "sources": sources}, task_vars)
    return answer


def _copied(action, source, prefix, names):
    """Return the source with the paths on the node of those of its files that are on the control node."""
    if source.get("type") != "controller" or not source.get("path"):
        return source
    path = os.path.abspath(os.path.expanduser(source["path"]))
    files = {name: os.path.join(path, name + SUFFIX) if os.path.isdir(path) else path for name in names}
    files = {name: file for name, file in files.items() if os.path.isfile(file)}
    if not is_here(action):
        _folder, copied = to_node(action, {prefix + name: file for name, file in files.items()})
        files = {name: copied[prefix + name] for name in files}
    return {**source, "copied": files}
