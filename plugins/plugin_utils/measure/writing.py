# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""certificate.json and report.html in an inventory's folder of reports, from what lies there."""

from __future__ import annotations

import json
import os
import time

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import readable_json, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import certificate as certificates
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import measured_page

PAGE = "report.html"


def write(folder, percent, run_id=None):
    """The certificate of the inventory whose reports are in `folder`; written there with its page. OSError.

    percent: compare.limit(). run_id: only what was verified and
    measured since the run of that id began counts; None: the newest there is.
    """
    fleet = readable_json(os.path.join(folder, "verdict.json"))
    fleet = fleet if isinstance(fleet, dict) else None
    results, problems = result.history(folder)
    inventory = os.path.basename(os.path.normpath(folder))
    generated = result.now()
    began = _began(fleet, run_id)
    since = began or generated if run_id else None
    kept = {one["id"] for one in results if _kept(folder, one["id"]) >= began} if began else ()
    made = certificates.assemble(fleet, results, generated, inventory, percent, since, kept)
    others = [one for path in _siblings(folder) for one in result.history(path)[0]]
    page = measured_page.render(made, results, fleet, problems, others)
    os.makedirs(folder, exist_ok=True)
    for name, text in ((certificates.FILE, json.dumps(made, indent=1) + "\n"), (PAGE, page)):
        write_atomic(os.path.join(folder, name), text)
    return made


def _began(fleet, run_id):
    run = (fleet or {}).get("run") or {}
    return run.get("began") if run.get("id") == run_id else None


def _kept(folder, identity):
    """When a result was added to the history, by this machine's clock: a node's may differ."""
    try:
        return time.strftime(result.TIME, time.gmtime(os.path.getmtime(result.path_of(folder, identity))))
    except OSError:
        return ""


def _siblings(folder):
    """The folders of other inventories' reports: those beside this one that have a history."""
    above, own = os.path.split(os.path.normpath(folder))
    try:
        names = sorted(os.listdir(above))
    except OSError:
        return []
    paths = [os.path.join(above, name) for name in names if name != own]
    return [path for path in paths if os.path.isdir(os.path.join(path, result.FOLDER))]
