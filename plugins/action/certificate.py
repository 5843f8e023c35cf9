# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the certificate of the inventory and its page from the reports on the controller: no node is touched."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.action.verification_run import run_id
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate as certificates
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare, writing
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show


class ActionModule(ActionBase):
    """Action plugin of inference.fleet.certificate."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("regression_limit", "reports_dir", "shown", "strict", "this_run"))

    def run(self, tmp=None, task_vars=None):
        """Returns {changed, certificate, fleet_page, fleet_report, reports_dir}; see modules/certificate.py."""
        result = super().run(tmp, task_vars)
        given = self._task.args.get
        try:
            percent = compare.limit(given("regression_limit"))
        except FleetError as error:
            raise AnsibleActionFail(error.message) from error
        folder = reports_folder(given("reports_dir"), task_vars, self._templar)
        result.update(changed=False, certificate=None, reports_dir=folder)
        if self._task.check_mode:
            return result
        if not folder:
            raise AnsibleActionFail("A certificate is made of reports: set fleet_reports_dir to a folder for them.")
        try:
            made = writing.write(folder, percent, run_id() if boolean(given("this_run", False)) else None)
        except OSError as error:
            raise AnsibleActionFail(
                "The certificate cannot be written to %s: %s." % (folder, error.strerror)
            ) from error
        result.update(certificate=made)
        short = {key: made[key] for key in ("ok", "complete", "generated", "parts")}
        result["ansible_stats"] = {"data": {"fleet_certificate": short}, "per_host": False, "aggregate": False}
        result["fleet_page"] = os.path.join(folder, writing.PAGE)
        if boolean(given("shown", True)):
            rows = certificates.rows(made)
            result["fleet_report"] = {"title": "Certificate", "columns": list(certificates.COLUMNS), "rows": rows}
            show(result["fleet_report"])
        result["msg"] = message(made, result["fleet_page"])
        result["failed"] = boolean(given("strict", False)) and not (made["ok"] or made["complete"])
        return result


def message(made, path):
    """The certificate as lines for a person, with what keeps it from being good."""
    lines = ["%s. %s" % (certificates.headline(made), path)]
    for name, part in made["parts"].items():
        lines.append("%s: %s" % (name, part["summary"]))
        lines += ["  " + reason for reason in part["reasons"] if part["ok"] is not True]
    return "\n".join(lines)
