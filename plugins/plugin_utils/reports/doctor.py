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
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import clean
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import bundle
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.reports.verdicts import NOT_ASKED


def doctor(action, given, task_vars):
    """Collect the findings of all hosts of the play, as doctor.json in the folder of the reports and in the bundle
    `file`. Return {doctor, ansible_stats}."""
    hosts, refused = {}, run_plan.refused()
    for host in task_vars["ansible_play_hosts_all"]:
        found = task_vars["hostvars"][host].get(given["registered"]) if given["registered"] else None
        hosts[host] = of_host(clean(found, "doctor") if isinstance(found, dict) else None, refused.get(host))
    collected = {"schema": 1, "at": now(), "healthy": all(one["healthy"] for one in hosts.values()), "hosts": hosts}
    text = json.dumps(collected, indent=2, sort_keys=True) + "\n"
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    if folder:
        _write(os.path.join(folder, "doctor.json"), text)
    if given["file"]:
        _write(os.path.abspath(os.path.expanduser(given["file"])), bundle.archive(text))
    stats = {"data": {"fleet_doctor": collected}, "per_host": False, "aggregate": False}
    return {"doctor": collected, "ansible_stats": stats}


def of_host(found, refused=None):
    """Return {reached, healthy, findings, problem} of a host. found: the result of the operation doctor, or None.
    refused: the reason why the host could not be planned."""
    if found is None or "findings" not in found:
        reached = False if (found or {}).get("unreachable") else None
        problem = refused or NOT_ASKED if found is None else found.get("msg")
        return {"reached": reached, "healthy": None, "findings": [], "problem": problem}
    return {"reached": True, "healthy": found["healthy"], "findings": found["findings"], "problem": None}


def _write(path, data):
    try:
        make_directory(os.path.dirname(path))
        write_atomic(path, data, 0o600)
    except OSError as error:
        raise AnsibleActionFail("%s cannot be written: %s. %s." % (path, error.strerror, remedy(error))) from error


KINDS = {
    "doctor": (
        {"reports_dir": {"type": "path"}, "registered": {"type": "str"}, "file": {"type": "path"}},
        doctor,
    )
}
