# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gathers the status of all hosts of the play on the controller: as a file, and as the run's statistics."""

from __future__ import annotations

import datetime
import json
import os

from ansible.errors import AnsibleActionFail
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.os_errors import remedy
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import clean
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_plan

NOT_ASKED = "not asked: the run ended before; see its output"

ARGUMENTS = {"file": {"type": "path"}, "registered": {"type": "str"}}


def run(action, given, task_vars):
    """Returns {status, ansible_stats}."""
    name = given["registered"]
    hosts, refused = {}, run_plan.refused()
    for host in task_vars["ansible_play_hosts_all"]:
        found = task_vars["hostvars"][host].get(name) if name else None
        hosts[host] = of_host(clean(found, name) if isinstance(found, dict) else None, refused.get(host))
    status = {
        "schema": 1,
        "at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "differs": any(one["differs"] is not False for one in hosts.values()),
        "hosts": hosts,
    }
    path = given["file"]
    if path:
        path = os.path.abspath(os.path.expanduser(path))
        try:
            write_atomic(path, json.dumps(status, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise AnsibleActionFail(
                "fleet_status_file %s cannot be written: %s. %s." % (path, error.strerror, remedy(error))
            ) from error
    stats = {"data": {"fleet_status": status}, "per_host": False, "aggregate": False}
    return {"status": status, "ansible_stats": stats}


def of_host(found, refused=None):
    """{reached, differs, servers, problem} of a host. found: engine_servers_info's result, None where not asked.
    refused: why the host could not be planned."""
    if found is None:
        return {"reached": None, "differs": None, "servers": [], "problem": refused or NOT_ASKED}
    if found.get("unreachable"):
        return {"reached": False, "differs": None, "servers": [], "problem": found.get("msg")}
    if "servers" not in found:
        return {"reached": None, "differs": None, "servers": [], "problem": found.get("msg")}
    return {"reached": True, "differs": bool(found.get("differs")), "servers": found["servers"], "problem": None}
