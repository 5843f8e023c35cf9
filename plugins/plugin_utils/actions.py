# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What action plugins share: a FleetError as a failed task, and files that are copied to a managed node."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail


def to_node(action, files):
    """Copy files {name: path on the control node} into the task's temporary folder on the node, which Ansible removes.
    Return (the folder, {name: path on the node}). action: the ActionBase."""
    shell = action._connection._shell
    folder = shell.tmpdir or action._make_tmp_path()
    copied = {name: shell.join_path(folder, name) for name in sorted(files)}
    for name, path in copied.items():
        action._transfer_file(files[name], path)
    action._fixup_perms2([folder, *copied.values()])
    return folder, copied


def is_here(action):
    """Return whether the module runs on the control node as this user, so that it can read the original files."""
    return action._connection.transport == "local" and not action._play_context.become


def action_fail(error):
    """Return the AnsibleActionFail of a FleetError. The result of the task contains the code."""
    return AnsibleActionFail(error.message, result=error.details)
