# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a server that its service manager takes for running."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time

from ..engines import health_request as asking
from ..engines.registry import engine_of
from ..model import gpt_oss
from ..node import files, processes
from ..node.directories import make_directory
from ..node.files import read_json
from ..node.server_spec import health_port
from ..supervise import shared_folder
from ..supervise import state as guard_state
from .model import Fault

HEALTH_S = 10.0  # for a health path that answers in milliseconds
COMPLETION_S = 60.0  # for one token, behind all that a busy server has to do first
RETRY_S = 0.5
THREADS = 32


def late_encodings(entry, state):
    """The Fault of a server whose vocabulary came, or got other bytes, after it was started."""
    noted = state.get("encodings")
    now = guard_state.encodings_note(entry, noted)
    if not isinstance(noted, dict) or now is None:
        return None
    late = sorted(name for name in now if not _same(noted.get(name), now[name]))
    if not late:
        return None
    folder = entry["environment"][gpt_oss.VOCABULARY_VARIABLE]
    return Fault("the encodings in %s came or changed after its start (%s)" % (folder, ", ".join(late)))


def lost_folder(entry, state):
    """The Fault of a server that was started with another folder than the one by which the others find each other."""
    if not state.get("folder") or shared_folder.note(entry) == state["folder"]:
        return None
    folder = engine_of(entry).shared_folder(entry)
    return Fault("%s, by which servers find each other, was removed or replaced after its start" % folder, alone=False)


def _same(noted, now):
    """Whether two notes of a file are of the same bytes: the checksum is their last."""
    return isinstance(noted, list) and noted[-1:] == now[-1:]


def note_ready(paths, name, state, took_s=None):
    """Remember that the process of this record was ready, and how long its start took, or else the one before; it does
    no harm where that cannot be written."""
    path = paths.ready(name)
    if state.get("pid") and not was_ready(paths, name, state):
        took_s = last_start_s(paths, name) if took_s is None else round(took_s)
        observed = {"pid": state["pid"], "ticks": state.get("ticks"), "took_s": took_s}
        with contextlib.suppress(OSError):
            make_directory(os.path.dirname(path))
            files.write_json(path, observed, 0o640)


def was_ready(paths, name, state):
    """Whether the process of this record is known to have been ready."""
    known = read_json(paths.ready(name))
    same = isinstance(known, dict) and (known.get("pid"), known.get("ticks")) == (state.get("pid"), state.get("ticks"))
    return bool(state.get("pid")) and same


def last_start_s(paths, name):
    """Seconds that the server's latest start took that a run waited for, None where none did since the node's boot."""
    known = read_json(paths.ready(name))
    took = known.get("took_s") if isinstance(known, dict) else None
    return took if isinstance(took, int) and not isinstance(took, bool) and took >= 0 else None


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
        if first - start > budget_s + guard_state.RESTART_DELAY_S:
            break
        first = start
    return first


def find_hung(paths, servers, note=True):
    """{name: Fault} of those that hang, all asked at once. servers: {name: (planned entry, Observed)} of running ones.

    note: record which are ready. One that was never seen ready is given its start budget.
    """
    if not servers:
        return {}

    def one(name):
        entry, observed = servers[name]
        budget = entry["health"]["budget_s"]
        began = waiting_since(observed.state, budget)
        ready = observed.was_ready
        over = began is not None and time.time() - began > budget
        words = None
        if ready or over:
            words = _hangs(entry, observed)
        if words is None:
            if note and not ready and health_port(entry) is not None and _health(entry, 0, observed.secrets).healthy:
                note_ready(paths, name, observed.state)
            return None
        if ready:
            return Fault("it was ready and does not answer any more: " + words)
        text = "it does not answer %d s after its start, its start budget is %d s: %s"
        return Fault(text % (time.time() - began, budget, words))

    with concurrent.futures.ThreadPoolExecutor(min(THREADS, len(servers))) as pool:
        found = dict(zip(servers, pool.map(one, servers)))
    return {name: fault for name, fault in found.items() if fault is not None}


def _health(entry, seconds, secrets):
    """What the health path answers, asked again and again for so long unless it is 200 or 204."""
    end = time.monotonic() + seconds
    while True:
        answer = asking.health(entry, max(RETRY_S, end - time.monotonic()), secrets)
        if answer.healthy or time.monotonic() + RETRY_S > end:
            return answer
        time.sleep(RETRY_S)


def _hangs(entry, observed):
    """What a server that should be ready does instead of answering, None where it answers.

    What answers with a refusal lives, and so does one that is busy.
    """
    stopped = [pid for pid in observed.pids if getattr(processes.process(pid), "state", None) == "T"]
    if stopped:
        return "its process %s is stopped by a signal" % ", ".join(map(str, stopped))
    if health_port(entry) is None:
        return None
    answer = _health(entry, HEALTH_S, observed.secrets)
    if answer.status is None or answer.status >= 500:
        return "health: " + answer.describe(200)
    if not asking.completes(entry):
        return None
    answer, busy = asking.one_token(entry, COMPLETION_S, observed.secrets)
    return "completion: " + answer.describe(200) if answer.error == "timeout" and not busy else None
