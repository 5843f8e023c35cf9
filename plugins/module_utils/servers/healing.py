# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be wrong with a server that its service manager takes for running: it lost its record, it was started before
its encodings were there, or it was ready and hangs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time

from ansible_collections.inference.fleet.plugins.module_utils.node import http_client, processes
from ansible_collections.inference.fleet.plugins.module_utils.node.directories import make_directory
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_json
from ansible_collections.inference.fleet.plugins.module_utils.servers import api_keys
from ansible_collections.inference.fleet.plugins.module_utils.supervise import guard

HEALTH_S = 10.0  # for a health path that answers in milliseconds
COMPLETION_S = 60.0  # for one token, behind all that a busy server has to do first
METRICS_S = 5.0
RETRY_S = 0.5
CLOCK_S = 2.0  # how far the time of a file and that of a process may be apart
THREADS = 32
ASKED = ("server", "frontend")  # roles that answer completions


class Ailment:
    """What is wrong with a running server. reason: for a person; record: the record that mends it without a restart."""

    def __init__(self, reason, record=None):
        self.reason = reason
        self.record = record


# ---- a record that is gone


def lost_record(paths, name, entry, service, state):
    """The Ailment of an engine that runs without a record of its start, None where it has one or is no engine yet.

    entry: as deployed; service: its services.Status; state: the record that is there, {} without one.
    """
    pid = service.pid if service is not None else None
    found = guard.process(pid) if pid else None
    if found is None or (state.get("pid"), state.get("ticks")) == (pid, found.ticks):
        return None
    script = paths.lib + "/lib/guard.py"
    if guard.markers_of(pid) != (paths.root or "/", name) or script in processes.argv(pid):
        return None  # a guard writes the record before it becomes the engine
    try:
        record = _rebuilt(paths, name, entry, pid, found.ticks)
    except OSError:
        return None  # it has ended meanwhile
    return Ailment("the record of its start is gone" + (", and was made anew" if record else ""), record)


def _rebuilt(paths, name, entry, pid, ticks):
    """The record of a process, None where it may have been started from anything else than what is deployed now."""
    with open("/proc/uptime", encoding="ascii") as stream:
        booted = time.time() - float(stream.read().split()[0])
    started = round(booted + ticks / os.sysconf("SC_CLK_TCK"), 3)
    entry = entry or {}
    files = [paths.entry(name), paths.secret(name), (entry.get("config") or {}).get("path")]
    files += [os.path.join(folder, guard.WEIGHT_MANIFEST) for folder in entry.get("weights", ())]
    encodings = guard.encodings_note(entry) if entry.get("environment") is not None else None
    written = [os.stat(path).st_mtime for path in filter(None, files) if os.path.exists(path)]
    written += [nanoseconds / 1e9 for _size, nanoseconds in (encodings or {}).values()]
    if not entry.get("hash") or any(moment > started + CLOCK_S for moment in written):
        return None
    artifact = guard.artifact_of(entry)
    compiled = read_json(os.path.join(artifact, guard.ARTIFACT_RECORD)) if artifact else None
    compiles = isinstance(compiled, dict) and (compiled.get("pid"), compiled.get("ticks")) == (pid, ticks)
    return {
        "name": name,
        "hash": entry["hash"],
        "user": processes.user_name(os.stat("/proc/%d" % pid).st_uid),
        "pid": pid,
        "ticks": ticks,
        "phase": "running",
        "since": started,
        "started": started,
        "starts": [started],
        "count": 1,
        "reason": None,
        "artifact": ("compiles" if compiles else "loads") if artifact else None,
        "weights": {folder: guard.weights_note(folder) for folder in entry.get("weights", ())},
        "encodings": encodings,
    }


def write_record(paths, record):
    """Put a record where the guard would have; it belongs to the server's user, who writes the next. Raises OSError."""
    path = paths.server_state(record["name"])
    owner = os.stat("/proc/%d" % record["pid"])
    with guard.folder_lock(os.path.dirname(path)):
        guard.write_json(path, record)
        if os.getuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)


# ---- encodings


def late_encodings(entry, state):
    """The Ailment of a server whose vocabulary came, or was replaced, after it was started."""
    noted, now = state.get("encodings"), guard.encodings_note(entry)
    if noted is None or now is None:
        return None
    late = sorted(name for name in now if noted.get(name) != now[name])
    if not late:
        return None
    folder = entry["environment"][guard.ENCODINGS_VARIABLE]
    return Ailment("the encodings in %s came or changed after its start (%s)" % (folder, ", ".join(late)))


# ---- servers that hang


def note_ready(paths, name, state):
    """Remember that the process of this record was ready; where that cannot be written it is not known, that is all."""
    path = paths.ready(name)
    seen = {"pid": state.get("pid"), "ticks": state.get("ticks")}
    if state.get("pid") and read_json(path) != seen:
        with contextlib.suppress(OSError):
            make_directory(os.path.dirname(path))
            guard.write_json(path, seen)


def was_ready(paths, name, state):
    """Whether the process of this record is known to have been ready."""
    known = read_json(paths.ready(name))
    return bool(state.get("pid")) and known == {"pid": state["pid"], "ticks": state.get("ticks")}


def waiting_since(state, budget_s):
    """When the current series of starts began (epoch seconds), None before the first.

    Starts that follow each other within the start budget are one attempt to become ready, so that a server that dies
    and is restarted again and again uses up one budget, and one that ran for days and is restarted gets a new one.
    """
    starts = state.get("starts") or []
    if not starts:
        return None
    first = starts[-1]
    for start in reversed(starts[:-1]):
        if first - start > budget_s + guard.RESTART_DELAY_S:
            break
        first = start
    return first


def find_hung(paths, servers, note=True):
    """{name: Ailment} of those that hang, all asked at once. servers: {name: (planned entry, Seen)} of running ones.

    note: write down which are ready. One that was never seen ready is given its start budget.
    """
    if not servers:
        return {}

    def one(name):
        entry, seen = servers[name]
        budget = entry["health"]["budget_s"]
        began = waiting_since(seen.state, budget)
        ready = seen.was_ready
        over = began is not None and time.time() - began > budget
        words = None
        if ready or over:
            words = _hangs(entry, seen)
        if words is None:
            if note and not ready and _health_port(entry) is not None and _health(entry, 0).ok:
                note_ready(paths, name, seen.state)
            return None
        if ready:
            return Ailment("it was ready and does not answer any more: " + words)
        return Ailment("it does not answer %d s after its start, its start budget is %d s: %s"
                       % (time.time() - began, budget, words))  # fmt: skip

    with concurrent.futures.ThreadPoolExecutor(min(THREADS, len(servers))) as pool:
        found = dict(zip(servers, pool.map(one, servers)))
    return {name: ailment for name, ailment in found.items() if ailment is not None}


def _health(entry, seconds):
    """What the health path answers, asked again and again for so long unless it is 200."""
    end = time.monotonic() + seconds
    url = http_client.base_url(entry["bind"], _health_port(entry)) + entry["health"]["path"]
    while True:
        answer = http_client.request("GET", url, timeout=max(RETRY_S, end - time.monotonic()))
        if answer.ok or time.monotonic() + RETRY_S > end:
            return answer
        time.sleep(RETRY_S)


def _health_port(entry):
    return entry["port"] or entry["ports"].get("system")


def _hangs(entry, seen):
    """What a server that should be ready does instead of answering, None where it answers.

    What answers with a refusal lives. A completion may take its time on a busy server: one that goes on counting tokens
    meanwhile is busy.
    """
    stopped = [pid for pid in seen.pids if getattr(guard.process(pid), "state", None) == "T"]
    if stopped:
        return "its process %s is stopped by a signal" % ", ".join(map(str, stopped))
    if _health_port(entry) is None:
        return None
    answer = _health(entry, HEALTH_S)
    if answer.status is None or answer.status >= 500:
        return "health: " + answer.describe(200)
    if entry["role"] not in ASKED or entry["port"] is None:
        return None
    base = http_client.base_url(entry["bind"], entry["port"])
    body = {"model": entry["model_id"], "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
    before = _tokens(base)
    answer = http_client.request(
        "POST", base + "/v1/chat/completions", body, timeout=COMPLETION_S, headers=api_keys.headers(seen.secrets)
    )
    if answer.error != "timeout" or (before is not None and _tokens(base) not in (None, before)):
        return None
    return "completion: " + answer.describe(200)


def _tokens(base):
    """The engine's counters of tokens as it shows them, None where it shows none."""
    answer = http_client.request("GET", base + "/metrics", timeout=METRICS_S)
    lines = [line for line in answer.text.splitlines() if "tokens_total" in line and not line.startswith("#")]
    return lines or None if answer.ok else None
