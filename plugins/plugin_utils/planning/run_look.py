# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stores the results of the operation check for the following plays: where each host has something to do, and whether
servers of a host could not be changed, after which no servers of other hosts are changed.

The results are files in the run's temporary folder, like the plan (run_plan.py), with a line for each check.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil

from ansible import constants as C

NAME = "inference-fleet-look.jsonl"
STOPPED = "inference-fleet-stopped"
VERDICTS = "inference-fleet-verdicts"  # a folder with a file for each host
REPORTED = "inference-fleet-reported"
NOBODY = ["!all"]  # The hosts of a play without hosts. An empty list of patterns would select all hosts.
STEPS = ("preflight", "prepare", "weights", "serve")
VERIFY = "verify"


def note(host, steps, first, serving=True):
    """Store the checked steps of a host, its first step that differs, or None, and whether servers run."""
    line = json.dumps({"host": host, "steps": steps, "first": first, "serving": serving}) + "\n"
    stream = os.open(_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(stream, line.encode())  # a single call, because several processes may write at the same time
    finally:
        os.close(stream)


def forget():
    """Delete the results when another playbook begins."""
    for name in (NAME, STOPPED, REPORTED):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_path(name))
    shutil.rmtree(_path(VERDICTS), ignore_errors=True)


def note_stopped(host):
    """Store that servers of this host could not be changed."""
    with open(_path(STOPPED), "w", encoding="utf-8") as stream:
        stream.write(host)


def stopped():
    """Return the host whose servers could not be changed, None if there is none."""
    try:
        with open(_path(STOPPED), encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def idle(hosts):
    """Return the checked hosts without a running server. Changes there do not interrupt requests."""
    found = _read()
    return [host for host in hosts if not found.get(host, {}).get("serving", True)]


def batches(hosts, serial, together=()):
    """Return the serial of a play for these hosts. Hosts without running servers come first, in one batch; then a
    single host, then batches of `serial` hosts. It is `serial` if servers run only on hosts in `together`, which are
    changed at the same time."""
    serial = list(serial) if isinstance(serial, (list, tuple)) else [serial]
    first = idle(hosts)
    if all(host in first or host in together for host in hosts):
        return serial
    return ([len(first)] if first else []) + [1, *serial]


def due(hosts, step):
    """Return the hosts that have something to do in this step or an earlier step, or that were not checked. For the
    step verify, return the hosts whose verdict is not in the reports yet."""
    if step == VERIFY:
        reported = _reported()
        return [host for host in hosts if host not in reported]
    found, begun = _read(), STEPS[: STEPS.index(step) + 1]
    return [host for host in hosts if host not in found or found[host]["first"] in begun]


def unchanged(host):
    """Return whether the servers of a host were checked, and the run has nothing to do there."""
    found = _read().get(host)
    return found is not None and "serve" in found["steps"] and found["first"] is None


def note_verdict(host, verdict):
    """Store the verification of a host that followed in the same call; verdict: JSON."""
    os.makedirs(_path(VERDICTS), mode=0o700, exist_ok=True)
    with open(_verdict_path(host), "w", encoding="utf-8", opener=_private) as stream:
        json.dump(verdict, stream)


def verdicts():
    """Return {host: verdict} of note_verdict();
    {} if the run changes any host, because the servers of other hosts may answer differently then."""
    looks, found = _read(), {}
    if any(one["first"] is not None for one in looks.values()):
        return {}
    for host in looks:
        with contextlib.suppress(FileNotFoundError), open(_verdict_path(host), encoding="utf-8") as stream:
            found[host] = json.load(stream)
    return found


def note_reported(hosts):
    """Store that the verdicts of these hosts are in the reports."""
    with open(_path(REPORTED), "w", encoding="utf-8") as stream:
        json.dump(sorted(hosts), stream)


def _reported():
    try:
        with open(_path(REPORTED), encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return []


def _verdict_path(host):
    return os.path.join(_path(VERDICTS), hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest())


def _private(path, flags):
    return os.open(path, flags, 0o600)


def _read():
    """Return {host: result that note() stored last}."""
    try:
        with open(_path(), encoding="utf-8") as stream:
            return {one["host"]: one for one in map(json.loads, stream)}
    except FileNotFoundError:
        return {}


def _path(name=NAME):
    return os.path.join(C.DEFAULT_LOCAL_TMP, name)
