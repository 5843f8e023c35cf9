# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a run has something to do on each host, as the operation check found it, for the plays that follow; and whether
servers of a host could not be changed, after which no others are.

These are files in the run's temporary folder, as the plan is (run_plan.py), with a line for each look.
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
NOBODY = ["!all"]  # the hosts of a play for nobody: an empty list of patterns would be everybody
STEPS = ("preflight", "prepare", "weights", "serve")
VERIFY = "verify"


def note(host, steps, first, serving=True):
    """Keep which steps were looked at on a host, the first that differs, None for none, and whether servers run."""
    line = json.dumps({"host": host, "steps": steps, "first": first, "serving": serving}) + "\n"
    stream = os.open(_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(stream, line.encode())  # one call: hosts that end together have a process each
    finally:
        os.close(stream)


def forget():
    """What was found is no longer true: another playbook begins."""
    for name in (NAME, STOPPED, REPORTED):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_path(name))
    shutil.rmtree(_path(VERDICTS), ignore_errors=True)


def note_stopped(host):
    """Servers of this host could not be changed."""
    with open(_path(STOPPED), "w", encoding="utf-8") as stream:
        stream.write(host)


def stopped():
    """The host whose servers could not be changed, None if there is none."""
    try:
        with open(_path(STOPPED), encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def idle(hosts):
    """Those of the hosts that were looked at and run no server: what is changed there disturbs nobody."""
    found = _read()
    return [host for host in hosts if not found.get(host, {}).get("serving", True)]


def batches(hosts, serial, together=()):
    """The serial of a play for these hosts, of which those that run no server come first: they are taken all at once,
    then one alone, then as many at a time as `serial` says. It is `serial` where servers run only on hosts in
    `together`, which are changed at once."""
    serial = list(serial) if isinstance(serial, (list, tuple)) else [serial]
    first = idle(hosts)
    if all(host in first or host in together for host in hosts):
        return serial
    return ([len(first)] if first else []) + [1, *serial]


def due(hosts, step):
    """Those of the hosts that have something to do in this step or an earlier one, or were not checked; with the step
    verify those whose verdict is not in the reports yet."""
    if step == VERIFY:
        reported = _reported()
        return [host for host in hosts if host not in reported]
    found, begun = _read(), STEPS[: STEPS.index(step) + 1]
    return [host for host in hosts if host not in found or found[host]["first"] in begun]


def unchanged(host):
    """Whether the servers of a host were looked at, and the run has nothing to do there."""
    found = _read().get(host)
    return found is not None and "serve" in found["steps"] and found["first"] is None


def note_verdict(host, verdict):
    """Keep the verification of a host that followed in the same call; verdict: JSON."""
    os.makedirs(_path(VERDICTS), mode=0o700, exist_ok=True)
    with open(_verdict_path(host), "w", encoding="utf-8", opener=_private) as stream:
        json.dump(verdict, stream)


def verdicts():
    """{host: verdict} of note_verdict(); {} if the run has something to do on any host, since the servers of the others
    may answer in another way by now."""
    looks, found = _read(), {}
    if any(one["first"] is not None for one in looks.values()):
        return {}
    for host in looks:
        with contextlib.suppress(FileNotFoundError), open(_verdict_path(host), encoding="utf-8") as stream:
            found[host] = json.load(stream)
    return found


def note_reported(hosts):
    """The verdicts of these hosts are in the reports."""
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
    """{host: what note() kept last}."""
    try:
        with open(_path(), encoding="utf-8") as stream:
            return {one["host"]: one for one in map(json.loads, stream)}
    except FileNotFoundError:
        return {}


def _path(name=NAME):
    return os.path.join(C.DEFAULT_LOCAL_TMP, name)
