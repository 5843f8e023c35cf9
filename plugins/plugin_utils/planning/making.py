# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a run, made: all that inference.fleet.plan has to say of a fleet, where no earlier run has said it."""

from __future__ import annotations

import os

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.files import readable_json
from ansible_collections.inference.fleet.plugins.plugin_utils import seen_files
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show, some
from ansible_collections.inference.fleet.plugins.plugin_utils.models import FAMILIES
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet, tables

LOCAL = ("local", "ansible.builtin.local")


def check_only(play_hosts, others):
    """(answer, True) where nothing is wrong with the variables of these hosts; see make()."""
    fleet.check_hosts(play_hosts, others)
    return {"plan": {"hosts": {}, "of": [], "names": {}, "workers": []}, "warnings": [], "report": None}, True


def make(hosts, play_hosts, ours, others, run_plan, options):
    """({plan, warnings, report}, whether all hosts could be planned). Raises FleetError.

    hosts: to be planned. play_hosts: those of them that --limit leaves. ours: those with a recipe. others: Hosts.
    run_plan: RunPlan that takes the plan. options: the arguments of inference.fleet.plan.
    """
    reasons = {}
    if options["strict"]:
        planned = fleet.plan_hosts(hosts, others, True, run_plan, play_hosts)
        for host, item in planned.items():
            if item["deployment"] and others(host).peek("ansible_connection") in LOCAL:
                check_models(host, item["deployment"]["models"])
    else:
        each = fleet.plan_each(hosts, others, run_plan, reasons)
        planned = {host: item for host, item in each.items() if item}
        run_plan.refuse({host: why for host, why in reasons.items() if host in play_hosts})
    if options["secrets"]:
        fleet.check_secrets(planned, play_hosts, others)
    if options["restarts"]:
        fleet.check_restarted(planned, [host for host in play_hosts if host in ours], options["restart"])
    warnings = fleet.host_warnings(hosts, others)
    outside = [host for host in hosts if host not in planned and host not in play_hosts]
    if outside:
        warnings.append("%s: outside of --limit, and cannot be planned. plan.yml says why." % some(outside))
    warnings += [*tables.capacity_warnings(planned), *tables.exposed_warnings(planned)]
    report = None
    if options["report"]:
        report = [tables.plan_table(planned), *tables.tuning_tables(planned), tables.capacity_table(planned)]
    return {"plan": run_plan.packed(), "warnings": warnings, "report": report}, len(planned) == len(hosts)


def check_models(host, models):
    """Checkpoints in directories of this machine are of a family that is served. Raises FleetError.

    What else is wrong with them is found where they are read in full.
    """
    for model in models:
        path = os.path.join(model.get("source_path") or model["path"], "config.json")
        config = None
        if model["source"] == "path":
            seen_files.note_content(path)
            config = readable_json(path)
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind is not None and kind not in FAMILIES:
            raise FleetError(
                "plan.model-unsupported",
                "%s: model_type in %s is %s; allowed: %s. Set model.path, or model.source_path, to such a checkpoint.",
                (host, path, show(kind), ", ".join(FAMILIES)),
            )
