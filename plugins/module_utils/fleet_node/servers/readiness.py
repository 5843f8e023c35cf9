# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether servers are ready, by a completion through their port, and whether running servers hang."""

from __future__ import annotations

import concurrent.futures
import time

from ..engines import health_request as asking
from ..engines.registry import engine_of
from ..errors import FleetError, visible
from ..host import http_client, processes
from ..host.server_spec import answers, check_entries, health_port
from ..host.values import utc
from ..model import gpt_oss
from ..supervise import state as guard_state
from . import causes, identity
from .drift import entry_changes
from .model import condition
from .observe import (
    check_only,
    foreign_holders,
    last_start_s,
    log_tail,
    note_ready,
    observe,
    redactor_of,
    row,
)

LOG_LINES = 15
CAUSE_LINES = 200  # an engine's traceback, and those of the processes that died of it
MESSAGE_LINES = 3
IDS = 400  # characters of the models that a server lists
THREADS = 32
HEALTH_S = 10.0  # for a health path that answers in milliseconds
COMPLETION_S = 60.0  # for one token, after all earlier requests of a busy server
RETRY_S = 0.5
UNVERIFIED = "not verified (check)"
BUDGET_WORDS = "that is over its start budget"
NO_WORKERS = "none is"
OPEN = "listens on all addresses"
NO_KEY = "it asks for an API key and none is planned"
UNGUARDED = "it answers without the API key that is planned"
OTHER_KEY = "it refuses the API key that it was started with"


def _in_parallel(function, items):
    """[function(item)] of all items, called in parallel."""
    with concurrent.futures.ThreadPoolExecutor(min(THREADS, max(1, len(items)))) as pool:
        return list(pool.map(function, items))


def probe(entry, timeout, secrets=None):
    """Why the server is not ready, for a person; None if it is.

    The health path answers 200 or 204. A server to which clients send requests also lists its model, only with the API
    key if one is planned, and completes a short chat (16 tokens, temperature 0). timeout: seconds for each request.
    secrets: the server's, which include its API key.
    """
    headers = asking.headers(secrets)
    refusal = OTHER_KEY + "; restart it" if headers else NO_KEY + "; set fleet_api_key to it"
    if health_port(entry) is None:
        return None
    health = asking.health(entry, timeout, secrets)
    if not health.healthy:
        return _lack("health", health, refusal)
    if not answers(entry):
        return None
    base = http_client.base_url(entry["bind"], entry["port"])
    models = http_client.request("GET", base + "/v1/models", timeout=timeout, headers=headers)
    if not models.ok:
        return _lack("models", models, refusal)
    if headers and http_client.request("GET", base + "/v1/models", timeout=timeout).ok:
        return UNGUARDED + ": another server has the port, or a start script lost the key; docs/using/api-keys.md"
    listed = models.json()
    listed = listed.get("data") if isinstance(listed, dict) else None
    ids = [model.get("id") for model in listed or [] if isinstance(model, dict)]
    if entry["model_id"] not in ids:
        listed = ", ".join(visible(str(one)) for one in ids)
        return "models: '%s' is not listed (%s)" % (entry["model_id"], http_client.cut(listed, IDS) or NO_WORKERS)
    path, body = asking.small(entry, 16, "Say hello.")
    answer = http_client.request("POST", base + path, body, timeout=timeout, headers=headers)
    if answer.ok:
        return None
    cause = causes.text_cause(answer.text or "", engine_of(entry), answer.status)
    return _lack("completion", answer, refusal) + (", because %s" % cause if cause else "")


def _lack(what, response, refusal):
    words = "%s: %s" % (what, response.describe(200))
    return "%s: %s" % (refusal, words) if response.status in (401, 403) else words


def _open_to_all(entry, sockets):
    """Why it is wrong that the server listens on all addresses, None if it does not or that is planned."""
    address = processes.open_to_all(entry["bind"], entry["port"], sockets)
    if address is None:
        return None
    return (
        "it %s (%s:%d), the plan binds it to %s; give its command the address (--host), or set fleet_bind_address "
        "to 0.0.0.0 if that is meant" % (OPEN, address, entry["port"], entry["bind"])
    )


def is_permanent(lack):
    """Whether waiting cannot help: the server read a missing or damaged file, listens on another address, or has
    another API key."""
    return any(
        cause in lack for cause in (gpt_oss.ENCODINGS, gpt_oss.DAMAGED_ENCODINGS, OPEN, NO_KEY, OTHER_KEY, UNGUARDED)
    )


def check_ready(node, entries, only=None, timeout=30, check=False, deployed=False, restarts=None):
    """The result of engine_ready: {changed: False, msg, servers: [row]} if all servers are ready.

    restarts: after more restarts, waiting cannot help. deployed: check the deployed entries of the servers in `only`
    instead of the planned entries. Raises FleetError with the details servers and final (waiting cannot help). In check
    mode, {…, skipped_reason} if the running servers differ from the plan.
    """
    planned = check_entries(entries)
    if deployed:
        found = observe(node.paths, node.manager)
        planned = {name: found[name].entry for name in only or () if name in found and found[name].entry}
    observed = observe(node.paths, node.manager, planned)
    check_only(only, planned, observed)
    names = [name for name in planned if only is None or name in only]
    now = {name: condition(observed[name]) for name in names}
    running = [name for name in names if now[name].state == "running" and now[name].hash == planned[name]["hash"]]
    rows = {name: row(node, observed[name]) for name in names}
    if check and len(running) < len(names):
        return {"changed": False, "msg": UNVERIFIED, "skipped_reason": UNVERIFIED, "servers": list(rows.values())}
    lacks = probe_all([planned[name] for name in running], timeout, observed)
    if running:  # a server may have been replaced meanwhile, or another program may have answered
        observed = observe(node.paths, node.manager, planned)
    problems, final, age = [], False, 0
    for name in names:
        one, lack = observed[name], lacks.get(name)
        if name in lacks and lack is None:
            try:
                identity.who_answers(node, planned[name], observed)
            except identity.Stranger as stranger:
                lack = str(stranger)
        if name in lacks and lack is None:
            rows[name]["ready"] = True
            if not check:
                note_ready(node.paths, name, one.state, _took(planned[name], condition(one)))
            continue
        words, hopeless, log = _not_ready(node, planned[name], observed, lack, restarts)
        final = final or hopeless
        since = condition(one).since
        age = max(age, time.time() - since) if since else age
        progress = None if hopeless else _progress(planned[name], one, lack, last_start_s(node.paths, name))
        rows[name].update(ready=False, reason=visible(words), progress=progress, log_tail=log)
        if log:
            words += ". Last log lines: " + " | ".join(line.strip() for line in log[-MESSAGE_LINES:])
        problems.append("%s: %s." % (name, words.rstrip(".")))
    count = "%d of %d servers ready" % (len(names) - len(problems), len(names))
    if problems:
        raise FleetError(
            "readiness.not-ready",
            count,
            age,
            " ".join(problems),
            details={"final": final, "servers": list(rows.values())},
        )
    return {"changed": False, "msg": count + ".", "servers": list(rows.values())}


def _not_ready(node, entry, observed, lack, restarts):
    """(why a server is not ready, whether waiting cannot help, the end of its log)."""
    one = observed[entry["name"]]
    now = condition(one)
    words, hopeless = _problem(entry, one, lack)
    hopeless = hopeless or (restarts is not None and (now.restarts or 0) > restarts)
    containers = {name: seen.containers for name, seen in observed.items()}
    held = foreign_holders(node.paths.root, [entry], containers)
    words = "; ".join([words, *(clause for _name, _holder, clause in held)])
    log = log_tail(node, one.name, CAUSE_LINES)
    # during a server's first start, the log is that of an earlier server
    if BUDGET_WORDS in words or now.restarts or now.state == "failed":
        cause = causes.log_cause(log, engine_of(entry).inner(entry))
        words = "%s, because %s" % (words.rstrip("."), cause) if cause else words
    return words, hopeless, log[-LOG_LINES:]


def _took(entry, now):
    """Seconds of a start that has ended; None if the server may have been ready long before this check."""
    seconds = None if now.since is None else time.time() - now.since
    return seconds if seconds is not None and 0 <= seconds <= entry["health"]["budget_s"] else None


def _progress(entry, observed, lack, last):
    """The progress of a start in a few words: "loading, 47 s of at most 300 (last time 159)"; None for a server that
    does not start. last: seconds of its last start, or None."""
    now = condition(observed)
    if now.state != "running" or now.since is None or observed.was_ready or lack is None:
        return None
    what = doing(observed) if observed.state.get("artifact") else "loading"
    if NO_WORKERS in lack and entry.get("role") == "frontend":
        what = "waiting for workers"
    words = "%s, %d s of at most %d%s%s" % (
        what, time.time() - now.since, entry["health"]["budget_s"],
        "" if last is None else " (last time %d)" % last, _restarts_words(now),
    )  # fmt: skip
    # while a server loads, nothing answers, or it answers that it is not ready
    usual = any(one in lack for one in (http_client.FAILURES["refused"], "HTTP 503", NO_WORKERS))
    return words if usual else "%s: %s" % (words, lack)


def _restarts_words(now):
    return ", %d restart%s" % (now.restarts, "" if now.restarts == 1 else "s") if now.restarts else ""


def probe_all(entries, timeout, observed):
    """{name: why it is not ready, without its secrets, or None}, all probed in parallel. observed: {name: Observed}."""

    def probed(entry):
        secrets = observed[entry["name"]].secrets
        lack = probe(entry, timeout, secrets)
        return lack and redactor_of(secrets).text(lack)

    found = _in_parallel(probed, entries)
    sockets = processes.listening_sockets()
    return {entry["name"]: lack or _open_to_all(entry, sockets) for entry, lack in zip(entries, found)}


def doing(observed):
    """The activity of a server that runs and does not answer yet, or does not answer any more."""
    if observed.was_ready:
        return "it was ready and does not answer any more"
    return {"compiles": "compiling", "loads": "loading its artifact"}.get(observed.state.get("artifact"), "starting")


def _problem(entry, observed, lack):
    """(why the server is not ready, whether waiting cannot help)."""
    now = condition(observed)
    if observed.entry is not None and observed.entry.get("hash") != entry["hash"]:
        fields = ", ".join(change[0] for change in entry_changes(observed.entry, entry))
        words = (
            "another entry than the planned one is deployed, it differs in %s; run engine_servers to deploy this one"
        )
        return words % fields, True
    age = "" if now.since is None else " since %s (%d s)" % (utc(now.since)[11:], time.time() - now.since)
    if now.state in ("missing", "stopped"):
        return "%s; run engine_servers to start it" % (now.reason or "it is stopped"), True
    if now.state == "failed":
        return "failed%s: %s" % (age, now.reason), True
    if observed.faults and lack is None:
        return "%s; run engine_servers to restart it" % observed.faults[0], True
    if now.hash is not None and now.hash != entry["hash"]:
        return "it runs another entry than the planned one; run engine_servers to restart it", True
    if now.state == "waiting":
        return "%s%s" % (now.reason, age), False
    words = "%s%s, %s%s" % (doing(observed), age, lack or "and its entry is not known", _restarts_words(now))
    if entry.get("role") == "frontend" and observed.was_ready:
        return words, is_permanent(words)  # it waits for workers, which may have started long after it
    budget = entry["health"]["budget_s"]
    if overdue(observed.state, budget):
        return "%s; %s of %d s" % (words, BUDGET_WORDS, budget), True
    return words, is_permanent(words)


# -- servers that hang -------------------------------------------------------------------------------------------------


def overdue(state, budget_s):
    """Seconds since the current series of starts began, if that is over the start budget; 0 otherwise.

    Starts that follow each other within the start budget are one attempt to become ready. A server that dies again and
    again uses up one budget, and a server that ran for days gets a new budget.
    """
    first = None
    for start in reversed(state.get("starts") or []):
        if first is not None and first - start > budget_s + guard_state.RESTART_DELAY_S:
            break
        first = start
    seconds = 0 if first is None else time.time() - first
    return seconds if seconds > budget_s else 0


def find_hung(entries, observed):
    """Add the fault of each of these servers ([entry]) that runs as planned and hangs; all are asked in parallel. A
    server that was never seen ready is given its start budget."""

    def asked(entry):
        one, budget = observed[entry["name"]], entry["health"]["budget_s"]
        late = overdue(one.state, budget)
        words = _hangs(entry, one) if one.was_ready or late else None
        if words and one.was_ready:
            one.faults = ["it was ready and does not answer any more: " + words]
        elif words:
            text = "it does not answer %d s after its start, its start budget is %d s: %s"
            one.faults = [text % (late, budget, words)]

    def as_planned(entry):
        one = observed.get(entry["name"])
        if one is None or not one.fresh or one.faults:
            return False
        now = condition(one)
        return (now.state, now.hash) == ("running", entry["hash"])

    _in_parallel(asked, list(filter(as_planned, entries)))


def _hangs(entry, observed):
    """Why a server that should be ready does not answer, None if it answers.

    A server that answers with a refusal is alive, and so is a busy one.
    """
    stopped = [pid for pid in observed.pids if getattr(processes.process(pid), "state", None) == "T"]
    if stopped:
        return "its process %s is stopped by a signal" % ", ".join(map(str, stopped))
    if health_port(entry) is None:
        return None
    end = time.monotonic() + HEALTH_S
    while True:
        answer = asking.health(entry, max(RETRY_S, end - time.monotonic()), observed.secrets)
        if answer.healthy or time.monotonic() + RETRY_S > end:
            break
        time.sleep(RETRY_S)
    if answer.status is None or answer.status >= 500:
        return "health: " + answer.describe(200)
    if not answers(entry):
        return None
    answer, busy = asking.one_token(entry, COMPLETION_S, observed.secrets)
    return "completion: " + answer.describe(200) if answer.error == "timeout" and not busy else None
