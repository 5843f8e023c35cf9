# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether servers are ready, which is a completion through their port, and whether servers that run have hung."""

from __future__ import annotations

import concurrent.futures
import time

from ..engines import health_request as asking
from ..engines.registry import engine_of
from ..errors import FleetError
from ..host import http_client, processes
from ..host.server_spec import check_entries, health_port
from ..model import gpt_oss
from ..supervise import state as guard_state
from ..visible import visible
from . import causes, identity
from .drift import entry_changes
from .model import Fault, condition
from .observe import check_only, last_start_s, log_tail, note_ready, observe, read_secrets, redactor_of, row, utc
from .ports import port_holders

LOG_LINES = 15
CAUSE_LINES = 200  # an engine's traceback, and those of the processes that died of it
MESSAGE_LINES = 3
IDS = 400  # characters of the models that a server lists
THREADS = 32
HEALTH_S = 10.0  # for a health path that answers in milliseconds
COMPLETION_S = 60.0  # for one token, behind all that a busy server has to do first
RETRY_S = 0.5
UNVERIFIED = "not verified (check)"
BUDGET_WORDS = "that is over its start budget"
NO_WORKERS = "none is"
OPEN = "listens on all addresses"
NO_KEY = "it asks for an API key and none is planned"
UNGUARDED = "it answers without the API key that is planned"
OTHER_KEY = "it refuses the API key that it was started with"


def all_answer(entries, timeout, paths):
    """Whether the server of each entry answers its health path well, and at its address alone: a hint that saves
    waiting, no verdict."""
    sockets = processes.listening_sockets()

    def answers(entry):
        if health_port(entry) is None:
            return True
        secrets = read_secrets(paths, entry["name"])
        return asking.health(entry, timeout, secrets).healthy and _open_to_all(entry, sockets) is None

    with concurrent.futures.ThreadPoolExecutor(min(THREADS, max(1, len(entries)))) as pool:
        return all(pool.map(answers, entries))


def probe(entry, timeout, secrets=None):
    """None where the server is ready, else what it lacks, for a person.

    The health path answers 200 or 204; a server that clients talk to also lists its model, not without the API key
    where one is planned, and completes one short chat (16 tokens, temperature 0). timeout: seconds for each request.
    secrets: the server's, which hold its API key.
    """
    headers = asking.headers(secrets)
    refusal = OTHER_KEY + "; restart it" if headers else NO_KEY + "; set fleet_api_key to it"
    if health_port(entry) is None:
        return None
    health = asking.health(entry, timeout, secrets)
    if not health.healthy:
        return _lack("health", health, refusal)
    if not asking.completes(entry):
        return None
    base = http_client.base_url(entry["bind"], entry["port"])
    models = http_client.request("GET", base + "/v1/models", timeout=timeout, headers=headers)
    if not models.ok:
        return _lack("models", models, refusal)
    if headers and http_client.request("GET", base + "/v1/models", timeout=timeout).ok:
        return UNGUARDED + ": another server has the port, or a start script lost the key; docs/using/api-keys.md"
    listed = models.json()
    data = listed.get("data") if isinstance(listed, dict) else None
    ids = [model.get("id") for model in data or [] if isinstance(model, dict)]
    if entry["model_id"] not in ids:
        listed = ", ".join(visible(str(one)) for one in ids)
        return "models: '%s' is not listed (%s)" % (entry["model_id"], http_client.cut(listed, IDS) or NO_WORKERS)
    body = {
        "model": entry["model_id"],
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 16,
        "temperature": 0,
    }
    answer = http_client.request("POST", base + "/v1/chat/completions", body, timeout=timeout, headers=headers)
    if answer.ok:
        return None
    cause = causes.text_cause(answer.text or "", engine_of(entry), answer.status)
    return _lack("completion", answer, refusal) + (", because %s" % cause if cause else "")


def _lack(what, response, refusal):
    words = "%s: %s" % (what, response.describe(200))
    return "%s: %s" % (refusal, words) if response.status in (401, 403) else words


def _open_to_all(entry, sockets):
    """What is wrong where the server listens on all addresses though it is bound to one, else None."""
    address = processes.open_to_all(entry["bind"], entry["port"], sockets)
    if address is None:
        return None
    return (
        "it %s (%s:%d), the plan binds it to %s; let its command take the address (--host), or set fleet_bind_address "
        "to 0.0.0.0 if that is meant" % (OPEN, address, entry["port"], entry["bind"])
    )


def is_permanent(lack):
    """Whether what a server lacks cannot come by waiting: a file that it read once and found missing or broken, an
    address that it was not given, or another API key."""
    return any(
        cause in lack for cause in (gpt_oss.ENCODINGS, gpt_oss.DAMAGED_ENCODINGS, OPEN, NO_KEY, OTHER_KEY, UNGUARDED)
    )


def check_ready(node, entries, only=None, timeout=30, check=False, deployed=False, restarts=None):
    """The result of engine_ready: {changed: False, msg, servers: [row]} when all are ready.

    restarts: waiting is no use for a server that restarted more often than that. deployed: what counts of the servers
    in `only` is what is deployed of them, whatever the plan has. FleetError otherwise, with details servers and final
    (true: more waiting is no use). In check mode, where what runs is not what is planned, {…, skipped_reason} instead.
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
    if running:  # what was asked may have been replaced meanwhile, and who answered may be somebody else
        observed = observe(node.paths, node.manager, planned)
        now = {name: condition(observed[name]) for name in names}
    problems, final, age = [], False, 0
    for name in names:
        words, hopeless = _replaced(node, planned[name], observed[name])
        if words is None and name in lacks and lacks[name] is None:
            lacks[name] = _stranger(node, planned[name], observed)
            if lacks[name] is None:
                rows[name]["ready"] = True
                if not check:
                    note_ready(node.paths, name, observed[name].state, _took(planned[name], now[name]))
                continue
        if words is None:
            words, hopeless = _problem(planned[name], observed[name], lacks.get(name))
            hopeless = hopeless or (restarts is not None and (now[name].restarts or 0) > restarts)
            held = port_holders(node, {name: planned[name]}, observed).get(name)
            words = "; ".join([words, *(held or [])])
        final = final or hopeless
        since = now[name].since
        age = max(age, time.time() - since) if since else age
        log = log_tail(node.paths, node.manager, name, CAUSE_LINES)
        late = BUDGET_WORDS in words
        cause = causes.log_cause(log, engine_of(planned[name]), late)
        # Of one that starts for the first time the log is that of the start before.
        if cause and (late or now[name].restarts or now[name].state == "failed"):
            words = "%s, because %s" % (words.rstrip("."), cause)
        tail = log[-LOG_LINES:]
        last = last_start_s(node.paths, name)
        progress = None if hopeless else _progress(planned[name], observed[name], lacks.get(name), last)
        rows[name].update(ready=False, reason=visible(words), progress=progress, log_tail=tail)
        if tail:
            words += ". Last log lines: " + " | ".join(line.strip() for line in tail[-MESSAGE_LINES:])
        problems.append("%s: %s." % (name, words.rstrip(".")))
    count = "%d of %d servers ready" % (len(names) - len(problems), len(names))
    if problems:
        raise FleetError(
            "readiness.not-ready",
            "%s after %d s. %s See playbooks/logs.yml.",
            (count, age, " ".join(problems)),
            details={"final": final, "servers": list(rows.values())},
        )
    return {"changed": False, "msg": count + ".", "servers": list(rows.values())}


def _took(entry, now):
    """Seconds that a start took which is ready now; None where it may have been ready long before anybody looked."""
    seconds = None if now.since is None else time.time() - now.since
    return seconds if seconds is not None and 0 <= seconds <= entry["health"]["budget_s"] else None


def _progress(entry, observed, lack, last):
    """How far a start is, in a few words: "loading, 47 s of at most 300 (last time 159)"; None for what is no start.

    last: seconds of the start before, None where that is not known.
    """
    now = condition(observed)
    if now.state != "running" or now.since is None or observed.was_ready or lack is None:
        return None
    what = {"compiles": "compiling", "loads": "loading its artifact"}.get(observed.state.get("artifact"), "loading")
    if NO_WORKERS in lack and entry["role"] == "frontend":
        what = "waiting for workers"
    words = "%s, %d s of at most %d" % (what, time.time() - now.since, entry["health"]["budget_s"])
    words += "" if last is None else " (last time %d)" % last
    if now.restarts:
        words += ", %d restart%s" % (now.restarts, "" if now.restarts == 1 else "s")
    # that nothing answers yet, or says that it is not ready, is what loading means
    usual = any(one in lack for one in (http_client.FAILURES["refused"], "HTTP 503", NO_WORKERS))
    return words if usual else "%s: %s" % (words, lack)


def _replaced(node, entry, one):
    """(why what is deployed is not this run's plan, True), or (None, False)."""
    if one.entry is None or one.entry.get("hash") == entry["hash"]:
        return None, False
    fields = ", ".join(change[0] for change in entry_changes(one.entry, entry))
    words = "another entry than the planned one is deployed%s, it differs in %s; run engine_servers to deploy this one"
    return words % (identity.deployer_words(node, one), fields), True


def _stranger(node, entry, observed):
    """Why it is not the planned server that answers, None where it is."""
    try:
        identity.who_answers(node, entry, observed)
    except identity.Stranger as stranger:
        return str(stranger)
    return None


def probe_all(entries, timeout, observed):
    """{name: None or what it lacks, without its secrets}, all probed at once. observed: {name: Observed}."""
    if not entries:
        return {}
    with concurrent.futures.ThreadPoolExecutor(min(THREADS, len(entries))) as pool:
        answers = list(pool.map(lambda entry: _probe_one(entry, timeout, observed[entry["name"]].secrets), entries))
    sockets = processes.listening_sockets()
    return {entry["name"]: lack or _open_to_all(entry, sockets) for entry, lack in zip(entries, answers)}


def _probe_one(entry, timeout, secrets):
    lack = probe(entry, timeout, secrets)
    return lack and redactor_of(secrets).text(lack)


def doing(observed):
    """What a server does that runs and does not answer yet, or any more."""
    if observed.was_ready:
        return "it was ready and does not answer any more"
    return {"compiles": "compiling", "loads": "loading its artifact"}.get(observed.state.get("artifact"), "starting")


def _problem(entry, observed, lack):
    """(why the server is not ready, whether waiting is no use)."""
    now = condition(observed)
    if observed.fault is not None and lack is None:
        return "%s; run engine_servers to restart it" % observed.fault.reason, True
    age = "" if now.since is None else " since %s (%d s)" % (utc(now.since)[11:], time.time() - now.since)
    if now.state in ("missing", "stopped"):
        return "%s; run engine_servers to start it" % (now.reason or "it is stopped"), True
    if now.state == "failed":
        return "failed%s: %s" % (age, now.reason), True
    if now.hash is not None and now.hash != entry["hash"]:
        return "it runs another entry than the planned one; run engine_servers to restart it", True
    if now.state == "waiting":
        return "%s%s" % (now.reason, age), False
    words = "%s%s, %s" % (doing(observed), age, lack or "and nothing says which entry it runs")
    if now.restarts:
        words += ", %d restart%s" % (now.restarts, "" if now.restarts == 1 else "s")
    if entry["role"] == "frontend" and observed.was_ready:
        return words, is_permanent(words)  # it waits for workers, which may have started long after it
    budget = entry["health"]["budget_s"]
    began = waiting_since(observed.state, budget)
    if began is not None and time.time() - began > budget:
        return "%s; %s of %d s" % (words, BUDGET_WORDS, budget), True
    return words, is_permanent(words)


# -- servers that hang -------------------------------------------------------------------------------------------------


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
