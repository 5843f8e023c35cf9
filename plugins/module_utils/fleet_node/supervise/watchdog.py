# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks each server of a node for a completion and restarts those that do not answer.

A server is restarted by ending its engine: its service manager starts it
again, and the guard counts that as a start. Servers that do not run are ignored, and those that have not answered since
their start and are within their start budget.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from ..engines import health_request as asking
from ..host import metrics
from ..host.files import is_locked, names_in
from ..host.http_client import FAILURES
from ..host.paths import NodePaths
from ..host.processes import markers_of, terminate
from ..host.server_spec import answers, health_port, read_entry
from .state import KILL_S, TERM_S, read_record, read_secrets, recorded_pid, say


def fault(entry, secrets, timeout):
    """(why the server does not serve or None, whether it gave the expected answer).

    A server that refuses a request (a status below 500) serves, and so does a busy one, whose count of tokens grows.
    """
    if health_port(entry) is None:
        return None, False
    if answers(entry):
        what, (answer, busy) = "a completion", asking.one_token(entry, timeout, secrets)
    else:
        what, answer, busy = "its health path", asking.health(entry, timeout, secrets), False
    if busy:
        return None, False
    if answer.error is not None:
        late = "no answer within %g s" % timeout
        return "%s: %s" % (what, late if answer.error == "timeout" else answer.detail or FAILURES[answer.error]), True
    if answer.status >= 500:
        return "%s: %s" % (what, answer.describe(200)), True
    return None, answer.healthy


def look(options, memory):
    """Ask each server once. memory: {name: {pid, ticks, answered, failures}} of the last time. Returns it updated."""
    folder, kept, samples = os.path.join(options.etc, "servers"), {}, {}
    for name in names_in(folder, suffix=".json"):
        entry = read_entry(os.path.join(folder, name + ".json"))
        record = read_record(os.path.join(options.state, name + ".json"))
        if entry is None or not {"hash", "health"} <= set(entry):  # it was edited
            continue
        if record.get("phase") != "running" or recorded_pid(record) is None:
            continue
        if markers_of(record["pid"]) != (options.root or "/", name):
            continue  # the server's account writes the record, which may name any process
        known = memory.get(name, {})
        if (known.get("pid"), known.get("ticks")) != (record["pid"], record["ticks"]):
            known = {"pid": record["pid"], "ticks": record["ticks"], "answered": False, "failures": 0}
        kept[name] = known
        secrets = read_secrets(os.path.join(options.etc, "secrets", name + ".json"))
        try:
            reason, asked = fault(entry, secrets, options.timeout)
        except Exception as error:  # of one server, whose answers must not end the watch over the others
            reason, asked = "%s: %s" % (type(error).__name__, error), True
        samples[name] = {
            "fleet_server_answers": reason is None,
            "fleet_server_converged": (record.get("hash") == entry["hash"], {"hash": entry["hash"]}),
        }
        if reason is None:
            known.update(failures=0, answered=known["answered"] or asked)
            continue
        in_budget = time.time() - (record.get("started") or 0) < entry["health"]["budget_s"]
        if in_budget and not known["answered"]:
            continue
        if _changing(options.root):
            continue  # a server that is drained refuses requests until it ends
        known["failures"] += 1
        say("%s does not answer, %d of %d: %s" % (name, known["failures"], options.failures, reason), "watchdog")
        if known["failures"] >= options.failures:
            say("%s is restarted" % name, "watchdog")
            # its service manager starts it again
            if recorded_pid(record) is not None and terminate([record["pid"]], TERM_S, KILL_S):
                say("process %d of %s does not end" % (record["pid"], name), "watchdog")
            del kept[name]
    with contextlib.suppress(OSError):  # servers are restarted with a full disk, too
        metrics.update(NodePaths(options.root).metrics, folder, samples)
    return kept


def _changing(root):
    """Whether a run changes the servers of this root."""
    try:
        return is_locked(NodePaths(root).servers_lock)
    except OSError:
        return False


def watch(options):
    """Ask the servers again and again, until another version of the program is current: the service manager starts that
    then."""
    memory, version = {}, os.path.realpath(sys.argv[0])
    while os.path.realpath(sys.argv[0]) == version:
        memory = look(options, memory)
        time.sleep(options.every)
    return 0
