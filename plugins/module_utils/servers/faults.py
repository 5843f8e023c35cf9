# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a server that its service manager takes for running."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time

from ansible_collections.inference.fleet.plugins.module_utils.node import files, processes
from ansible_collections.inference.fleet.plugins.module_utils.node.directories import make_directory
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_json
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import health_port
from ansible_collections.inference.fleet.plugins.module_utils.servers.model import Fault
from ansible_collections.inference.fleet.plugins.module_utils.supervise import asking
from ansible_collections.inference.fleet.plugins.module_utils.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss

HEALTH_S = 10.0  # for a health path that answers in milliseconds
COMPLETION_S = 60.0  # for one token, behind all that a busy server has to do first
RETRY_S = 0.5
THREADS = 32


def late_encodings(entry, state):
    """The Fault of a server whose vocabulary came, or was replaced, after it was started."""
    noted, now = state.get("encodings"), guard_state.encodings_note(entry)
    if noted is None or now is None:
        return None
    late = sorted(name for name in now if noted.get(name) != now[name])
    if not late:
        return None
    folder = entry["environment"][gpt_oss.VOCABULARY_VARIABLE]
    return Fault("the encodings in %s came or changed after its start (%s)" % (folder, ", ".join(late)))


def note_ready(paths, name, state):
    """Remember that the process of this record was ready; it does no harm where that cannot be written."""
    path = paths.ready(name)
    observed = {"pid": state.get("pid"), "ticks": state.get("ticks")}
    if state.get("pid") and read_json(path) != observed:
        with contextlib.suppress(OSError):
            make_directory(os.path.dirname(path))
            files.write_json(path, observed)


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
            if note and not ready and health_port(entry) is not None and _health(entry, 0, observed.secrets).ok:
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
    """What the health path answers, asked again and again for so long unless it is 200."""
    end = time.monotonic() + seconds
    while True:
        answer = asking.health(entry, max(RETRY_S, end - time.monotonic()), secrets)
        if answer.ok or time.monotonic() + RETRY_S > end:
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
