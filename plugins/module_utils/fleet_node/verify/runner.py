# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts of all servers of a node, which are probed in parallel."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import os
import time

from ..errors import FleetError
from ..host import http_client, metrics
from ..host.redact import Redactor
from ..host.server_spec import answers, check_entries
from ..host.values import all_ok, now
from ..servers import identity
from ..servers.api_keys import client_key
from ..servers.model import Node
from . import families, probes
from .asking import Failed, Options

SCHEMA = 1
NOT_VERIFIED = "not verified (check)"


def verify_servers(entries, options, watch, servers_changed=None, check_mode=False, elsewhere=(), key_of=None):
    """Probe every server of `entries` that has its own port: {"ok": bool|None, "mode", "verdicts": […]}.

    entries: plan entries of one host; options: asking.Options (mode auto is settled here by servers_changed);
    watch: a function of {name: entry} that returns a function of an entry, which describes the process that answers on
    the port, see identity.Watch; it raises identity.Stranger if that is not the planned server;
    servers_changed: whether an earlier task changed the servers, None if that is not known;
    check_mode: servers that are missing or about to change are not verified instead of failed.
    elsewhere: workers of the deployment on other hosts, {host, name, role, bind, ports}; a frontend must find them too.
    key_of: a function of an entry that returns the API key to send; by default that of the options.
    A verdict: {schema, host, server, ok, mode, at, url, model_id, hash, not_verified, probes}. Raises FleetError on bad
    input.
    """
    planned = check_entries(entries)
    entries = list(planned.values())
    if options.mode == "auto":
        options.mode = "quick" if servers_changed is False else "full"
    probed = [entry for entry in entries if answers(entry)]
    if not probed:
        return {"ok": None, "mode": options.mode, "verdicts": []}
    who = watch(planned)
    more = (entries, elsewhere, options, who, servers_changed, check_mode, key_of)
    with concurrent.futures.ThreadPoolExecutor(len(probed)) as pool:
        verdicts = list(pool.map(lambda entry: _verdict(entry, *more), probed))
    return {"ok": all_ok(verdict["ok"] for verdict in verdicts), "mode": options.mode, "verdicts": verdicts}


def verify_from_parameters(parameters, check_mode):
    """verify_servers() with the parameters of the module endpoint_verify; the servers that passed are recorded as seen
    ready, as after a start. Raises FleetError."""
    for name in ("timeout", "quick_timeout"):
        if parameters[name] <= 0:
            raise FleetError("probes.invalid", name, "is %g; allowed: more than 0 seconds" % parameters[name])
    taken = set(probes.NAMES)
    for probe in parameters["probes"]:
        if probe["name"] in taken:
            raise FleetError("probes.invalid", "the probe %s" % probe["name"], "has the name of another probe")
        taken.add(probe["name"])
    names = ("mode", "probes", "effort_parameter", "responses_api", "timeout", "quick_timeout")
    options = Options(**{name: parameters[name] for name in names})
    node = Node.of_parameters(parameters)
    watch = identity.Watch(node)
    result = verify_servers(
        parameters["servers"],
        options,
        watch.over,
        parameters["servers_changed"],
        check_mode,
        parameters.get("workers_elsewhere") or (),
        lambda entry: client_key(node.paths, entry),
    )
    if not check_mode:
        watch.note_ready(verdict["server"] for verdict in result["verdicts"] if verdict["ok"])
        _record(node.paths, result["verdicts"])
        starts = watch.starts() if result["verdicts"] else {}
        for verdict in result["verdicts"]:
            verdict["start"] = starts[verdict["server"]]
    return result


def _record(paths, verdicts):
    """Write the verdicts as metrics. A file system that cannot be written is reported by other checks."""
    samples = {
        verdict["server"]: {
            "fleet_server_verified": verdict["ok"] is True,
            "fleet_server_last_verdict_timestamp_seconds": time.time(),
            "fleet_server_converged": (verdict["not_verified"] is None, {"hash": verdict["hash"]}),
        }
        for verdict in verdicts
    }
    for server, sample in samples.items():
        with contextlib.suppress(OSError):  # a server without keys
            sample["fleet_server_key_timestamp_seconds"] = os.stat(paths.secret(server)).st_mtime
    with contextlib.suppress(OSError):
        metrics.update(paths.metrics, paths.servers, samples)


def _verdict(entry, entries, elsewhere, options, who, servers_changed, check_mode, key_of):
    beside = probes.workers_of(entry, entries)
    others = [{**one, "name": "%(host)s/%(name)s" % one} for one in probes.workers_of(entry, elsewhere)]
    strangers = []  # why it is not the planned server, for each check

    def identify():
        try:
            return "; ".join(who(one) for one in (entry, *beside))
        except identity.Stranger as stranger:
            strangers.append("%s%s" % (stranger, " (since the probes began)" if acceptance.url_asked else ""))
            raise Failed(str(stranger), identity.NOT_VERIFIED + strangers[-1]) from stranger

    options = copy.copy(options)
    options.probes = families.own_probes(options.probes, entry)
    acceptance = probes.Acceptance(entry, [*beside, *others], options, identify)
    if check_mode and (servers_changed or _nothing_listens(acceptance.url) or _about_to(identify, servers_changed)):
        strangers.clear()
        results = [
            {"name": name, "ok": None, "ms": 0, "sent": None, "got": None, "cause": NOT_VERIFIED}
            for name in probes.probe_names(entry, acceptance.workers, options)
        ]
    else:
        if key_of is not None:
            options.api_key = key_of(entry)
        results = acceptance.results()
    measured = [result["ok"] for result in results if result["ok"] is not None]
    return {
        "schema": SCHEMA,
        "host": entry["host"],
        "server": entry["name"],
        "ok": all_ok(measured),
        "mode": options.mode,
        "at": now(),
        "url": acceptance.url,
        "model_id": entry["model_id"],
        "hash": entry["hash"],
        "not_verified": strangers[-1] if strangers else None,
        "probes": Redactor([options.api_key]).value(results) if options.api_key else results,
    }


def _about_to(identify, servers_changed):
    """Whether the servers may change and are not as planned."""
    if servers_changed is not None:
        return False
    try:
        identify()
    except Failed:
        return True
    return False


def _nothing_listens(url):
    """Whether a connection is refused. Any answer, also an error page, is probed."""
    return http_client.request("GET", url + "/", timeout=5).error in ("refused", "unreachable")
