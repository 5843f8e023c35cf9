# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a node for `-e fleet_bundle=PATH`: logs, configuration, versions and plan, without secrets."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys

from ..containers.host_settings import DAEMON_JSON
from ..errors import FleetError
from ..host.files import names_in, read_json, read_text, readable_json
from ..host.redact import MASK, TOKEN_LENGTH, Redactor, encoded, url_secrets, variable_secrets
from ..program import own_version
from ..servers.model import config_path
from .checks import NotChecked, kernel_lines

LINES, MOST = 2000, 4 << 20  # lines of each log, characters of each file
TOKEN = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}|\b(?:hf_|sk-|nvapi-)[\w-]{8,}")


def files(case, servers, found):
    """{name: content} of the files, masked. What cannot be read is left out."""
    taken = {"findings.json": _json(found), "plan.json": _json(servers)}
    entries, secrets = list(servers), set()
    for name in names_in(case.paths.servers, suffix=".json"):
        entry = readable_json(case.paths.entry(name))
        entries += [entry] if isinstance(entry, dict) else []
        taken["deployed/%s.json" % name] = _text(case.paths.entry(name))
        taken["records/%s.json" % name] = _text(case.paths.server_state(name))
    for name in names_in(case.paths.secrets, suffix=".json"):
        secrets |= set(case.secrets(name).values())
    names = {one.get("name") for one in entries} - {None}
    for path in sorted({config_path(one) for one in entries} - {None}):
        taken["config/" + os.path.basename(path)] = _text(path)
    manager = None
    with contextlib.suppress(FleetError):
        manager = case.node().manager
    for name in sorted(names) if manager else ():
        taken["services/" + name] = _text(manager.definition_path(name))
        with contextlib.suppress(FleetError, OSError):
            taken["logs/%s.log" % name] = "\n".join(manager.log_tail(name, LINES))
    with contextlib.suppress(NotChecked, FleetError):
        taken["logs/kernel.log"] = "\n".join(kernel_lines(case.system)[-LINES:])
    taken["config/daemon.json"] = _text(case.system.sysroot + DAEMON_JSON)
    taken["versions.json"] = _json(_versions(case))
    taken = {name: text[-MOST:] for name, text in taken.items() if text}
    for entry in entries:
        secrets |= variable_secrets(entry.get("environment"))
    for value in (case.given["secrets"] or {}).values():
        secrets |= set(map(str, value if isinstance(value, list) else [value]))
    return masked(taken, secrets | url_secrets(taken))


def masked(files, secrets):
    """{name: content} without these secrets, their base64 and pieces of both, and without what looks like a token."""
    known = {one.strip() for one in secrets} - {""}
    redactor = Redactor({*known, *(form for one in known if len(one) >= TOKEN_LENGTH for form in encoded(one))})

    def mask(text):
        return TOKEN.sub(lambda match: (match.group(1) or "") + MASK, redactor.text(text))

    return {name: mask(text) for name, text in files.items()}


def _versions(case):
    """Versions of this collection's program, of the node and its environments."""
    found = {
        "program": own_version(), "python": sys.version, "kernel": platform.release(), "machine": platform.machine(),
        "system": _text(case.system.sysroot + "/etc/os-release"), "environments": {},
    }  # fmt: skip
    for name in names_in(case.paths.venvs):
        marker = read_json("%s/%s/.inference-fleet.json" % (case.paths.venvs, name))
        found["environments"][name] = (marker or {}).get("packages")
    with contextlib.suppress(FleetError, OSError):
        found["accelerators"] = case.platform.detect(case.system).as_dict() if case.platform else None
    return found


def _json(value):
    return json.dumps(value, indent=1, sort_keys=True)


def _text(path):
    with contextlib.suppress(OSError, ValueError):
        return read_text(path)
    return None
