# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a node and its servers: hardware, kernel, clock, disks, services; drift, starts, logs and sampling.

bundle() returns the files of a node that help to find a cause elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from urllib.parse import urlsplit

from .containers.host_settings import DAEMON_JSON
from .engines.registry import engine_of
from .errors import FleetError
from .host.files import existing_parent, names_in, read_bytes, read_end, read_json, readable_json
from .host.python_environment import MARKER
from .host.redact import MASK, TOKEN_LENGTH, Redactor, encoded, url_secrets, variable_secrets
from .host.server_spec import read_entry
from .platforms.base import used
from .platforms.host import run_tool
from .program import own_version
from .servers import causes
from .servers.model import config_path
from .servers.observe import log_tail
from .servers.readiness import CAUSE_LINES
from .supervise import order
from .supervise.state import read_record
from .weights.http import proxy_for

CLOCK_S = 60  # by which the clocks of the control node and of a node may differ, with the time of a call
FULL = 0.02  # share of a disk that is free
FULL_BYTES = 2 << 30
SAMPLE_BYTES, SAMPLE_S, PIECE = 64 << 20, 4.0, 4 << 20  # of a checkpoint that are read
LINE = 300  # characters of a line of the kernel's log

KILLED = r"[Oo]ut of memory: Killed process \d+ \([^)]*\)|oom_reaper: reaped process"
BROKEN_DISK = r"I/O error, dev |EXT4-fs error|XFS \([^)]*\): (?:Corruption|metadata I/O)|[Rr]emounting filesystem " \
              r"read-only|nfs: server \S+ not responding"  # fmt: skip
BROKEN_HARDWARE = r"\[Hardware Error\]|EDAC \S+: \d+ UE|AER:.* [Uu]ncorrect|INFO: task \S+ blocked for more than"


def hardware(case):
    """Faults that the vendor's tool reports, also of devices of running servers."""
    if case.platform is None:
        raise NotChecked("the plan of this host names no platform")
    if not case.platform.present(case.system):
        raise NotChecked("this node has no such hardware; see the check node_preflight")
    for device in used(case.platform.detect(case.system), case.hardware):
        for sentence in getattr(device, "faults", ()):
            yield FleetError("doctor.device-faulty", sentence)


def kernel(case):
    """What the kernel reported in the last day: memory, disks, devices and drivers."""
    lines = kernel_lines(case.system)
    faults = "|".join((BROKEN_HARDWARE, *(case.platform.kernel_faults if case.platform else ())))

    codes = {"doctor.out-of-memory": KILLED, "doctor.disk-error": BROKEN_DISK, "doctor.hardware-error": faults}
    for code, pattern in codes.items():
        found = [line for line in lines if re.search(pattern, line)]
        if found:
            yield FleetError(code, "%s (%d such lines)" % (found[-1].strip()[:LINE], len(found)))


def kernel_lines(system):
    """[line] of the kernel's log of the last day. Raises NotChecked."""
    program = system.program("journalctl")
    asked = [program, "--dmesg", "--since=-24h", "--output=short-iso", "--quiet", "--no-pager"]
    status, text = run_tool(asked) if program else (None, "")
    if status != 0 or not text.strip():
        raise NotChecked("the log of the kernel is empty or cannot be read")
    return text.splitlines()


def clock(case):
    """Certificates, tokens and the order of log lines depend on the clock."""
    if not case.now:
        raise NotChecked("the time of the control node is not known")
    ahead = case.received - case.now
    if abs(ahead) > CLOCK_S:
        yield FleetError("doctor.clock", abs(ahead), "ahead of" if ahead > 0 else "behind")


def disk(case):
    """File systems that the servers write to, and those of checkpoints."""
    paths = (case.paths.lib, case.paths.etc, case.paths.log, case.paths.run, tempfile.gettempdir(), *case.weights)
    seen = set()
    for path in map(existing_parent, paths):
        device, found = os.stat(path).st_dev, os.statvfs(path)
        if device in seen:
            continue
        seen.add(device)
        free = found.f_bavail * found.f_frsize
        if free < min(FULL_BYTES, FULL * found.f_blocks * found.f_frsize) or found.f_favail < FULL * found.f_files:
            yield FleetError("doctor.disk-full", path, free >> 20, found.f_favail)


def reading(case):
    """Whether the disk reads checkpoints fast enough for the servers' start budget."""
    for folder, budget_s in sorted(case.weights.items()):
        files = [one for one in os.scandir(folder) if one.is_file()] if os.path.isdir(folder) else []
        total = sum(one.stat().st_size for one in files)
        if not total:
            continue
        rate = read_rate(max(files, key=lambda one: one.stat().st_size).path)
        if total / rate > budget_s:
            yield FleetError("doctor.disk-slow", folder, rate / 1e6, total / 1e9, total / rate, budget_s)


def read_rate(path):
    """Bytes per second at which the disk reads a file, without the kernel's cache."""
    began, done = time.monotonic(), 0
    with open(path, "rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        while done < SAMPLE_BYTES and time.monotonic() - began < SAMPLE_S:
            piece = stream.read(PIECE)
            if not piece:
                break
            done += len(piece)
    return max(1, done) / max(1e-6, time.monotonic() - began)


def needs(case):
    """Services that servers need, such as etcd and NATS, as this node reaches them."""
    asked = {}
    for name, entry in case.entries.items():
        given = {**entry["environment"], **case.secrets(name)}
        for need in entry["start"].get("needs") or ():
            urls = tuple(need["urls"])
            if urls not in asked:
                asked[urls] = order.away(need, given)
            if asked[urls]:
                yield FleetError("doctor.service-away", need["name"], asked[urls], details={"server": name})


def proxies(case):
    """Proxies of servers that would get requests for services and for the node itself."""
    for name, entry in case.entries.items():
        urls = [url for need in entry["start"].get("needs") or () for url in need["urls"]]
        urls = [re.sub(r"^tcp:", "http:", url) for url in urls] + ["http://127.0.0.1"]
        lost = sorted({urlsplit(url).hostname for url in urls if proxy_for(urlsplit(url), entry["environment"])})
        if lost:
            yield FleetError("doctor.proxy", name, ", ".join(lost), details={"server": name})


# ---- servers


LOOP_STARTS, LOOP_S = 3, 3600
OVERRIDES = ("override-generation-config", "override_generation_config")


def drift(case):
    """How servers differ from the plan; see playbooks/status.yml."""
    for row in case.rows:
        for one in row["differences"] or ():
            yield FleetError("doctor.server-differs", row["name"], one["text"], details={"server": row["name"]})


def restarts(case):
    """Servers that end again and again."""
    for name in case.entries:
        record = read_record(case.paths.server_state(name))
        recent = [one for one in record.get("starts") or () if one > time.time() - LOOP_S]
        if len(recent) >= LOOP_STARTS:
            why = record.get("reason") or record.get("phase") or "no reason is recorded"
            yield FleetError("doctor.restart-loop", name, len(recent), why, details={"server": name})


def logs(case):
    """Known causes in the logs of servers that do not run or do not answer."""
    asked = False
    for row in case.rows:
        entry = case.entries.get(row["name"])
        if entry is None or row["ready"]:
            continue
        asked = True
        lines = log_tail(case.node(), row["name"], CAUSE_LINES)
        cause = causes.log_cause(lines, engine_of(entry).inner(entry))
        if cause:
            yield FleetError("doctor.log", row["name"], *advised(cause), details={"server": row["name"]})
    if not asked:
        raise NotChecked("every server is ready")


def sampling(case):
    """Defaults that make the model repeat itself: gpt-oss requires top_p 1."""
    for name, entry in case.entries.items():
        found = {}
        if entry.get("family"):  # other models have other defaults
            continue
        for folder in entry["weights"][:1]:
            path = os.path.join(folder, "generation_config.json")
            with contextlib.suppress(OSError):
                found[path] = read_json(path, follow=True)  # a link in the cache of a hub's client
        for key in OVERRIDES:
            found[key] = _mapping(entry["arguments"].get(key))
        for where, value in found.items():
            top_p = value.get("top_p") if isinstance(value, dict) else None
            if isinstance(top_p, (int, float)) and top_p < 1:
                yield FleetError("doctor.sampling", name, top_p, where, details={"server": name})


def _mapping(value):
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


CHECKS = {
    "hardware": hardware, "kernel": kernel, "clock": clock, "disk": disk, "read-rate": reading, "services": needs,
    "proxies": proxies, "servers": drift, "restarts": restarts, "logs": logs, "sampling": sampling,
}  # fmt: skip


# ---- findings: what is wrong on a node, why, and what to do


PAGE = "docs/using/errors.md#%s"
SENTENCE = re.compile(r"(?<=[^\s.]{2})\.\s+(?=[A-Z`'])")  # the end of a message's first sentence


class NotChecked(Exception):
    """Why a check is not possible on this node."""


def findings(check, run):
    """[row()] of a check: one for each problem, or a single one with ok true, or with null and the reason if the check
    is not possible.

    run: a function that yields a FleetError for each problem, with the detail `server` for the problem of a server. A
    check that fails is a problem as well, so that the other checks run on a node in any state.
    """
    found = []
    try:
        for error in run():
            found += _rows(check, error)
    except NotChecked as reason:
        found.append(row(check, None, cause=str(reason)))
    except FleetError as error:
        found += _rows(check, error)
    except Exception as error:  # the node may be in any state, and the other checks follow
        unknown = FleetError("doctor.check-failed", check, type(error).__name__, error)
        found += _rows(check, unknown)
    return found or [row(check, True)]


def row(check, ok, cause=None, remedy=None, code=None, server=None):
    """A finding. page: what the documentation has on its code."""
    page = PAGE % re.sub(r"[^a-z0-9-]", "", code) if code else None
    return {"check": check, "ok": ok, "cause": cause, "remedy": remedy, "code": code, "page": page, "server": server}


def _rows(check, error):
    problems = [
        (one["check"], one["message"], one.get("code", error.code)) for one in error.details.get("problems") or ()
    ]
    for name, message, code in problems or [(None, one.message, one.code) for one in error.problems]:
        cause, *more = SENTENCE.split(" ".join(message.split()), maxsplit=1)
        shown = "%s: %s" % (check, name) if name else check
        yield row(shown, False, cause.rstrip("."), more[0] if more else None, code, error.details.get("server"))


def advised(cause):
    """(the cause, its remedy) of a sentence of servers/causes.py or of an engine."""
    words, _colon, remedy = cause.partition(": ")
    return words, remedy or "restart the server with playbooks/restart.yml if it does not recover"


# ---- the bundle

LOG_LINES, MOST = 2000, 4 << 20  # lines of each log, characters or bytes of each file
TOKEN = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}|\b(?:hf_|sk-|nvapi-)[\w-]{8,}")


def bundle(case, servers, found):
    """{name: content} of the files for `-e fleet_bundle=PATH`, without secrets: logs, configuration, versions and plan.

    What cannot be read is left out.
    """
    taken = {"findings.json": _json(found), "plan.json": _json(servers)}
    entries, secrets = list(servers), set()
    for name in names_in(case.paths.servers, suffix=".json"):
        entry = read_entry(case.paths.entry(name))
        entries += [entry] if entry else []
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
            taken["logs/%s.log" % name] = "\n".join(manager.log_tail(name, LOG_LINES))
    with contextlib.suppress(NotChecked, FleetError):
        taken["logs/kernel.log"] = "\n".join(kernel_lines(case.system)[-LOG_LINES:])
    taken["config/daemon.json"] = _text(case.system.sysroot + DAEMON_JSON, follow=True)
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
        "system": _text(case.system.sysroot + "/etc/os-release", follow=True), "environments": {},
    }  # fmt: skip
    for name in names_in(case.paths.venvs):
        marker = readable_json("%s/%s/%s" % (case.paths.venvs, name, MARKER))
        found["environments"][name] = marker.get("packages") if isinstance(marker, dict) else None
    with contextlib.suppress(FleetError, OSError):
        found["accelerators"] = case.platform.detect(case.system).as_dict() if case.platform else None
    return found


def _json(value):
    return json.dumps(value, indent=1, sort_keys=True)


def _text(path, follow=False):
    """The end of a file, or None. follow: follow a link, which only root can make there."""
    with contextlib.suppress(OSError, ValueError):
        data = read_bytes(path, MOST) if follow else read_end(path, MOST)[0]
        return data.decode("utf-8", "replace") if data else None
    return None
