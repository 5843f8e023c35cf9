# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of doctor.yml: doctor.json, and the bundle of `-e fleet_bundle=PATH`."""

from __future__ import annotations

import json
import os

from ansible.errors import AnsibleActionFail
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import make_directory, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.os_errors import remedy
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.values import now
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import bundle
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reports.verdicts import NOT_ASKED


def doctor(action, given, task_vars):
    """Collect the findings of all hosts of the play, as doctor.json in the folder of the reports and in the bundle
    `file`. Return {doctor, ansible_stats}."""
    refused, kept = run_plan.refused(), bundle.kept()
    known = {host: report for host, report, _files in kept}
    nothing = {"reached": None, "healthy": None, "findings": []}
    hosts = {host: known.get(host) or {**nothing, "problem": refused.get(host) or NOT_ASKED}
             for host in task_vars["ansible_play_hosts_all"]}  # fmt: skip
    collected = {"schema": 1, "at": now(), "healthy": all(one["healthy"] for one in hosts.values()), "hosts": hosts}
    text = json.dumps(collected, indent=2, sort_keys=True) + "\n"
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    if folder:
        _write(os.path.join(folder, "doctor.json"), text)
    if given["file"]:
        _write(os.path.abspath(os.path.expanduser(given["file"])), bundle.archive(text, kept))
    stats = {"data": {"fleet_doctor": collected}, "per_host": False, "aggregate": False}
    return {"doctor": collected, "ansible_stats": stats}


def _write(path, data):
    try:
        make_directory(os.path.dirname(path))
        write_atomic(path, data, 0o600)
    except OSError as error:
        raise AnsibleActionFail("%s cannot be written: %s. %s." % (path, error.strerror, remedy(error))) from error


KINDS = {
    "doctor": (
        {"reports_dir": {"type": "path"}, "file": {"type": "path"}},
        doctor,
    )
}
