# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate of the inventory and its page, from the reports on the control node."""

from __future__ import annotations

import os

from ansible.errors import AnsibleActionFail
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate as certificates
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import compare, measured_page
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder, run_id
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show


def certificate(action, given, task_vars):
    """Return {certificate, fleet_page, fleet_report, reports_dir, msg}."""
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    result = {"certificate": None, "reports_dir": folder}
    if action._task.check_mode:
        return result
    if not folder:
        raise AnsibleActionFail("A certificate is made of reports: set fleet_reports_dir to a folder for them.")
    try:
        made = measured_page.write(folder, given["regression_limit"], run_id() if given["this_run"] else None)
    except OSError as error:
        raise AnsibleActionFail("The certificate cannot be written to %s: %s." % (folder, error.strerror)) from error
    result.update(certificate=made)
    short = {key: made[key] for key in ("ok", "complete", "generated", "parts")}
    result["ansible_stats"] = {"data": {"fleet_certificate": short}, "per_host": False, "aggregate": False}
    result["fleet_page"] = os.path.join(folder, measured_page.PAGE)
    if given["shown"]:
        rows = certificates.rows(made)
        result["fleet_report"] = {"title": "Certificate", "columns": list(certificates.COLUMNS), "rows": rows}
        show(result["fleet_report"])
    result["msg"] = message(made, result["fleet_page"])
    result["failed"] = given["strict"] and not (made["ok"] or made["complete"])
    return result


def message(made, path):
    """Return the certificate as lines for people, with the reasons why it is not good."""
    lines = ["%s. %s" % (certificates.headline(made), path)]
    for name, part in made["parts"].items():
        lines.append("%s: %s" % (name, part["summary"]))
        lines += ["  " + reason for reason in part["reasons"] if part["ok"] is not True]
    return "\n".join(lines)


ARGUMENTS = {
    "regression_limit": {"type": "float", "default": compare.LIMIT},
    "reports_dir": {"type": "path"},
    "shown": {"type": "bool", "default": True},
    "strict": {"type": "bool", "default": False},
    "this_run": {"type": "bool", "default": False},
}
KINDS = {"certificate": (ARGUMENTS, certificate)}
