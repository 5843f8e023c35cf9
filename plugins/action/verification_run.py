# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says in the reports which hosts a verdict is due of, before anything is asked: no node is touched."""

from __future__ import annotations

import hashlib
import os

from ansible import constants as C
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts, inference_hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.verification_run."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("reports_dir",))

    def run(self, tmp=None, task_vars=None):
        """Returns {changed, run}; see modules/verification_run.py."""
        result = super().run(tmp, task_vars)
        result.update(changed=False, run=None)
        folder = reports_folder(self._task.args.get("reports_dir"), task_vars, self._templar)
        if not folder or self._task.check_mode:
            return result
        hosts = task_vars["ansible_play_hosts_all"]

        def planned():
            others = Hosts.of_task(task_vars)
            every = list(dict.fromkeys([*inference_hosts(task_vars["groups"]["all"], others), *hosts]))
            items = run_plan.recalled(every, others, deploys=False) or plan_each(every, others)
            return {host: item and report.deployed(item["servers"], item["deployment"]) for host, item in items.items()
                    if item is None or item["servers"]}  # fmt: skip

        try:
            result["run"] = report.begin_run(folder, run_id(), hosts, task_vars["ansible_play_hosts"], planned)
        except OSError as error:
            result["warnings"] = [report.not_written(folder, error)]
        else:
            result["reports_dir"] = folder
        return result


def plan_each(hosts, others):
    """fleet.plan_each(), imported where a host was not planned in this run."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet

    return fleet.plan_each(hosts, others, run_plan.RunPlan())


def run_id():
    """The same in all tasks of this ansible-playbook, and no other's: it makes a folder of a new name for itself."""
    return hashlib.sha256(os.fsencode(C.DEFAULT_LOCAL_TMP)).hexdigest()[:12]
