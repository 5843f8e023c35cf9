# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts as files and as text: one file per host, one for the fleet, a table and a message for people."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import urllib.parse

from ansible_collections.inference.fleet.plugins.module_utils.acceptance.runner import all_ok
from ansible_collections.inference.fleet.plugins.module_utils.files import read_json, write_atomic

SCHEMA = 1
TITLE = "Verdicts"
COLUMNS = ("host", "server", "port", "verdict", "probes", "details")
WORDS = {True: "ok", False: "FAILED", None: "not verified"}


def now():
    """The time as reports write it: UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def host_report(host, mode, verdicts, generated, previous=None):
    """What hosts/<host>.json holds: {schema, host, ok, generated, mode, verdicts, last_full}.

    previous: the report that it replaces, or None. A quick run keeps the last full verdicts in last_full
    {ok, generated, verdicts}; a full run is that itself, and has null there.
    """
    report = {
        "schema": SCHEMA,
        "host": host,
        "ok": all_ok(verdict["ok"] for verdict in verdicts),
        "generated": generated,
        "mode": mode,
        "verdicts": verdicts,
        "last_full": None,
    }
    if mode != "full":
        report["last_full"] = last_full(previous)
    return report


def last_full(report):
    """The full verdicts that a host's report holds, {ok, generated, verdicts}; None where it has none."""
    if not isinstance(report, dict):
        return None
    if report.get("mode") == "full":
        return {key: report.get(key) for key in ("ok", "generated", "verdicts")}
    return report.get("last_full")


def settle_auto(servers_changed, servers, previous):
    """quick or full, for mode auto.

    quick is enough only where nothing changed, the last report of the host is good and the last full one is good for
    these very servers. A server that never passed in full must not look well because it can still say hello.
    """
    full = last_full(previous)
    if servers_changed is not False or not full or not full.get("ok") or previous.get("ok") is not True:
        return "full"
    verified = {verdict.get("server"): verdict.get("hash") for verdict in full.get("verdicts") or []}
    wanted = {
        entry.get("name"): entry.get("hash")
        for entry in servers
        if entry.get("role") in ("server", "frontend") and entry.get("port")
    }
    return "quick" if verified == wanted else "full"


def merge(fleet, report, inventory_hosts, generated):
    """What verdict.json holds after `report` of one host: {schema, ok, generated, hosts: {name: report in short}}.

    fleet: its content before, or None. Hosts that the inventory no longer has are dropped; the report's own stays.
    In short: sent and got stand only where a probe failed; all of it is in the host's own file.
    """
    known = fleet.get("hosts") if isinstance(fleet, dict) else None
    keep = {*inventory_hosts, report["host"]}
    hosts = {name: value for name, value in (known or {}).items() if name in keep}
    hosts[report["host"]] = shorten(report)
    return {
        "schema": SCHEMA,
        # a host without a server of its own (a decode node behind another node's frontend) has nothing to say here
        "ok": all_ok(value["ok"] for value in hosts.values() if value["verdicts"]),
        "generated": generated,
        "hosts": {name: hosts[name] for name in sorted(hosts)},
    }


def shorten(report):
    """A host's report without what was sent and what came back in probes that did not fail."""
    short = dict(report, verdicts=[_short_verdict(verdict) for verdict in report["verdicts"]])
    if report["last_full"]:
        short["last_full"] = dict(
            report["last_full"], verdicts=[_short_verdict(verdict) for verdict in report["last_full"]["verdicts"]]
        )
    return short


def _short_verdict(verdict):
    return dict(
        verdict,
        probes=[
            probe if probe["ok"] is False else {key: probe[key] for key in ("name", "ok", "ms", "cause")}
            for probe in verdict["probes"]
        ],
    )


def host_path(folder, host):
    """Where the report of a host is below `folder`; a name with slashes stays one file."""
    return os.path.join(folder, "hosts", urllib.parse.quote(host, safe="@:[]+,~ ") + ".json")


def write_reports(folder, host, mode, verdicts, inventory_hosts):
    """Write hosts/<host>.json and merge it into verdict.json, below `folder`. Returns the host's report.

    Several hosts are reported at once, by processes of their own: the fleet's file is changed under a lock. OSError.
    """
    generated = now()
    path = host_path(folder, host)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = host_report(host, mode, verdicts, generated, read_json(path))
    write_atomic(path, _text(report))
    with _locked(os.path.join(folder, ".verdict.lock")):
        fleet = os.path.join(folder, "verdict.json")
        write_atomic(fleet, _text(merge(read_json(fleet), report, inventory_hosts, generated)))
    return report


def _text(value):
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _locked(path):
    with open(path, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # goes with the descriptor, also when the process is killed
        yield


def table(host, verdicts):
    """{title, columns, rows} of a host's verdicts, for the screen."""
    return {"title": TITLE, "columns": list(COLUMNS), "rows": [_row(host, verdict) for verdict in verdicts]}


def _row(host, verdict):
    probes = verdict["probes"]
    passed = [probe for probe in probes if probe["ok"]]
    measured = [probe for probe in probes if probe["ok"] is not None]
    failed = [probe["name"] for probe in probes if probe["ok"] is False]
    missing = [probe["name"] for probe in probes if probe["ok"] is None]
    if not measured:
        details = probes[0]["cause"] if probes else ""
    else:
        parts = []
        if failed:
            parts.append("failed: " + ", ".join(failed))
        else:
            slowest = max(passed, key=lambda probe: probe["ms"])
            parts.append("slowest: %s %d ms" % (slowest["name"], slowest["ms"]))
        if missing:
            parts.append("not measured: " + ", ".join(missing))
        details = "; ".join(parts)
    return [
        host,
        verdict["server"],
        urllib.parse.urlsplit(verdict["url"]).port,
        WORDS[verdict["ok"]],
        "%d/%d" % (len(passed), len(measured)),
        details,
    ]


def failure_message(host, verdicts):
    """Lines for a person: the servers that did not pass, and of each failing probe what was sent, came back and why."""
    bad = [verdict for verdict in verdicts if verdict["ok"] is False]
    lines = ["%d of %d servers on %s did not pass the verification." % (len(bad), len(verdicts), host)]
    for verdict in bad:
        failed = [probe for probe in verdict["probes"] if probe["ok"] is False]
        skipped = [probe["name"] for probe in verdict["probes"] if str(probe["cause"]).startswith("not run: ")]
        lines.append("%s at %s (%s), %s:" % (verdict["server"], verdict["url"], verdict["model_id"], verdict["mode"]))
        for probe in failed:
            lines.append("  %s failed after %d ms" % (probe["name"], probe["ms"]))
            lines += ["    %-6s %s" % (key + ":", probe[key]) for key in ("sent", "got", "cause") if probe[key]]
        if skipped:
            lines.append("  not run after that: " + ", ".join(skipped))
    return "\n".join(lines)
