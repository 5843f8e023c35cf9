# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation doctor: reports what is wrong on a node, with causes and remedies."""

from __future__ import annotations

import re
import time

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.doctor.bundle import masked
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.doctor.checks import row
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.redact import (
    TOKEN_LENGTH,
    TOKEN_LIKE,
    strings,
    url_secrets,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.check import asked_of, looks_of
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.servers import verification_arguments
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import bundle
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show

TITLE, COLUMNS = "Doctor", ["host", "server", "check", "code", "cause"]
ADVICE = "Run site.yml, which runs the steps that cannot be checked."
NOT_SECRET = re.compile(r"_(?:version|file|dir|path|names?)$")  # names of variables


def doctor(action, arguments, task_vars):
    """Return {findings, healthy, fleet_report}; the files for the bundle and the findings are kept."""
    host, wanted = task_vars["inventory_hostname"], boolean(arguments.get("bundle") or False)
    looks, unread, verification, servers = looks_of(action, task_vars, run_look.STEPS[0], every=True, only=())
    if verification:
        full = verification.get("mode") == "full"
        verification = {**verification, "mode": "full" if full else "quick", "reports_dir": None}
        verification = verification_arguments(verification, host, None, True)
    asked = {**asked_of(looks, verification, servers), "bundle": wanted, "now": time.time()}
    try:
        answer = action.call("doctor", asked, task_vars)
    except AnsibleConnectionFailure as error:
        answer = {"unreachable": True, "msg": str(error)}
    files = answer.pop("bundle", None) or {}
    if "findings" in answer:
        # a changed role or a locked vault is no fault; a host without a plan is one
        answer["findings"] += [row("plan", None if servers else False, one["reason"], ADVICE) for one in unread]
        answer["healthy"] = answer["healthy"] and bool(servers or not unread)
    report = {
        "reached": "findings" in answer or (False if answer.get("unreachable") else None),
        "healthy": answer.get("healthy"),
        "findings": answer.get("findings", []),
        "problem": answer.get("msg"),
    }
    bundle.keep(host, report, masked(files, _inventory_secrets(action, task_vars)) if files else {})
    answer["fleet_report"] = table(host, answer)
    show(answer["fleet_report"])
    return answer


def table(host, answer):
    """Return {title, columns, rows} of a host: two lines for each problem, the second with its remedy."""
    found, rows = answer.get("findings"), []
    for one in found or ():
        if one["ok"] is False:
            rows.append([host, one["server"], one["check"], one["code"], one["cause"]])
            if one["remedy"]:
                rows.append(["", "", "", "", "→ " + one["remedy"]])
    if found and not rows:
        words = "nothing is wrong: %d checks, %d not possible" % (len(found), sum(one["ok"] is None for one in found))
        rows.append([host, None, None, None, words])
    if not found:
        rows.append([host, None, None, None, "unreachable" if answer.get("unreachable") else answer.get("msg")])
    return {"title": TITLE, "columns": COLUMNS, "rows": rows}


def _inventory_secrets(action, task_vars):
    """Return the values of variables whose names are those of secrets, and passwords in the addresses of proxies, as
    far as they can be read here."""
    found = set()
    for name in task_vars:
        named = TOKEN_LIKE.search(name) and not NOT_SECRET.search(name)
        if named or "proxy" in name:
            try:
                value = action._templar.template(task_vars[name])
            except Exception:  # the templating engine may raise anything: a locked vault, an undefined variable
                continue
            found |= url_secrets(value) | set(strings(value) if named else ())
    return {one for one in found if len(one) >= TOKEN_LENGTH}
