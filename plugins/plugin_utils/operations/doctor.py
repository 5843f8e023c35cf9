# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation doctor reports what is wrong on a node, with causes and remedies. The report of doctor.yml follows when
all hosts were asked: doctor.json, and the bundle of `-e fleet_bundle=PATH`, from files in a temporary folder."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import tarfile
import time
from urllib.parse import quote

from ansible import __version__ as ansible_version
from ansible import constants as C
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean

from ...module_utils.fleet_node.doctor import masked, row
from ...module_utils.fleet_node.host.files import write_atomic
from ...module_utils.fleet_node.host.redact import TOKEN_LENGTH, TOKEN_LIKE, strings, url_secrets
from ...module_utils.fleet_node.host.values import now
from ..planning import run_look
from ..reporting.runs import reports_folder
from ..reporting.screen import show
from .check import asked_of, looks_of
from .servers import readable, verification_arguments
from .verdicts import by_host, statistics, write

TITLE, COLUMNS = "Doctor", ["host", "server", "check", "code", "cause"]
ADVICE = "Run site.yml, which runs the steps that cannot be checked."
KEPT = "inference-fleet-bundle-%s.json"
NOT_SECRET = re.compile(r"_(?:version|file|dir|path|names?)$")  # names of variables


def doctor(action, arguments, task_vars):
    """Return {findings, healthy, fleet_report}; the files for the bundle are kept."""
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
    if files:
        keep(host, masked(files, _inventory_secrets(action, task_vars)))
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
            value = readable(action, task_vars, name)
            found |= url_secrets(value) | set(strings(value) if named else ())
    return {one for one in found if len(one) >= TOKEN_LENGTH}


def keep(host, files):
    """Keep the files of a host for the bundle, {name: content}, which contain no secrets."""
    path = os.path.join(C.DEFAULT_LOCAL_TMP, KEPT % quote(host, safe=""))
    write_atomic(path, json.dumps([host, files]), 0o600)


def archive(findings):
    """Return a tar.gz of the findings and the kept files."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as packed:
        _add(packed, "control-node.json", json.dumps({"ansible-core": ansible_version, "time": now()}))
        _add(packed, "doctor.json", findings)
        for path in sorted(glob.glob(os.path.join(glob.escape(C.DEFAULT_LOCAL_TMP), KEPT % "*"))):
            with open(path, encoding="utf-8") as stream:
                host, files = json.load(stream)
            for name, text in sorted(files.items()):
                _add(packed, "%s/%s" % (host.replace("/", "_"), name), text)
    return output.getvalue()


def _add(packed, name, text):
    # names come from nodes
    parts = [re.sub(r"[^\w.-]", "_", part) for part in name.split("/") if part.strip(".")]
    data = str(text).encode("utf-8", "surrogatepass")
    member = tarfile.TarInfo("/".join(["bundle", *parts]))
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    packed.addfile(member, io.BytesIO(data))


def doctor_report(action, given, task_vars):
    """Collect the findings of all hosts of the play, as doctor.json in the folder of the reports and in the bundle
    `file`. Return {doctor, ansible_stats}."""
    hosts = by_host(task_vars, given["registered"], "healthy", "findings")
    collected = {"schema": 1, "at": now(), "healthy": all(one["healthy"] for one in hosts.values()), "hosts": hosts}
    text = json.dumps(collected, indent=2, sort_keys=True) + "\n"
    folder = reports_folder(given["reports_dir"], task_vars, action._templar)
    if folder:
        write("", os.path.join(folder, "doctor.json"), text, 0o600)
    if given["file"]:
        write("", given["file"], archive(text), 0o600)
    return {"doctor": collected, "ansible_stats": statistics("fleet_doctor", collected)}


GIVEN = {"reports_dir": {"type": "path"}, "file": {"type": "path"}, "registered": {"type": "str"}}
KINDS = {"doctor": (GIVEN, doctor_report)}
