# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.engine_servers on the node, tells it who deploys, and voids verdicts that it makes untrue."""

from __future__ import annotations

import getpass
import os
import socket

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action.verification_run import run_id
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder

# What each kind of action does to a server; the others leave what runs as it is.
ENDS = {
    "create": "started", "change": "restarted", "start": "started", "restart": "restarted", "stop": "stopped",
    "remove": "removed",
}  # fmt: skip
# Calls after which servers that run may be changed.
TURNS = ("wave", "one_by_one", "together")
STOPPED = "servers of %s could not be changed, so the run ends; those of %s are left as they are."


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.engine_servers."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns; see modules/engine_servers.py."""
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        host, stopped = task_vars["inventory_hostname"], run_look.stopped()
        if stopped and arguments.get("changes") in TURNS and not self._task.check_mode:
            result.update(failed=True, msg=STOPPED % (stopped, host))
            return result
        if arguments.get("state") == "rolled_back" and not self._task.check_mode:
            run_look.note_stopped(host)
        folder = reports_folder(arguments.get("reports_dir"), task_vars, self._templar)
        actions = dict.fromkeys(arguments.get("restarted", ()), "restarted")
        arguments = sent(self, arguments)
        result.update(self.call("engine_servers", arguments, task_vars))
        done = result.get("actions") or ()
        actions.update((one["name"], ENDS[one["kind"]]) for one in done if one["kind"] in ENDS)
        if folder and actions and not self._task.check_mode:
            try:
                report.void_verdicts(folder, task_vars["inventory_hostname"], actions)
            except OSError as error:
                result.setdefault("warnings", []).append(
                    "The verdicts of %s are no longer true, and the reports in %s still have them: %s."
                    % (", ".join(sorted(actions)), folder, error.strerror)
                )
        return result


def sent(action, arguments):
    """The arguments that go to the node."""
    here = ("reports_dir", "deployment", "restarted")
    found = {name: value for name, value in arguments.items() if name not in here}
    return {"deployer": deployer(arguments.get("deployment")), **found}


def deployer(deployment):
    """What is written down on the node of this run: {by, at, run, recipe}."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container's user without a name
    recipe = deployment.get("name") if isinstance(deployment, dict) else None
    return {"by": "%s@%s" % (user, socket.gethostname()), "at": report.now(), "run": run_id(), "recipe": recipe}
