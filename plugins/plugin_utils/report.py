# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts as files and as text: one file per host, one for the fleet and its page, a table and a message."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import urllib.parse

from ansible_collections.inference.fleet.plugins.module_utils.acceptance import causes
from ansible_collections.inference.fleet.plugins.module_utils.acceptance.runner import all_ok
from ansible_collections.inference.fleet.plugins.module_utils.files import read_json, read_text, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.http_client import cut
from ansible_collections.inference.fleet.plugins.plugin_utils import page
from ansible_collections.inference.fleet.plugins.plugin_utils.plan import ranges

SCHEMA = 1
TITLE = "Verdicts"
COLUMNS = ("host", "server", "port", "verdict", "probes", "details")
WORDS = {True: "ok", False: "FAILED", None: "not verified"}
# Characters of what all passing probes of the fleet sent and got, in verdict.json. What a hundred servers say fits in
# whole; more of them share it, a third for what was sent, so that file and page stay small enough to be opened.
EVIDENCE = 800000
SHORTEST = 60


def now():
    """The time as reports write it: UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def deployed(entries, deployment=None, simulated=""):
    """What was deployed on a host, as its report tells it; of secrets nothing, of commands nothing.

    entries: the host's plan entries; deployment: the recipe as resolved for the host, or None where the caller has no
    more than entries; simulated: what is simulated there, in words. Returns {recipe, description, guide, platform,
    engine, software: [text], model: {id, repo, revision, format, source}, simulated: text or None,
    servers: [{name, role, bind, port, devices, launcher, hash}]}; what is not known is None.
    """
    recipe = deployment if isinstance(deployment, dict) else {}
    entries = [entry for entry in entries if isinstance(entry, dict)]
    first = entries[0] if entries else {}
    model = recipe.get("model") or {}
    return {
        "recipe": recipe.get("name"),
        "description": recipe.get("description"),
        "guide": recipe.get("guide"),
        "platform": recipe.get("platform") or first.get("platform"),
        "engine": recipe.get("engine") or causes.engine_of(first),
        "software": _software(entries, recipe.get("venv") or {}),
        "model": {
            "id": model.get("id") or first.get("model_id"),
            **{key: model.get(key) for key in ("repo", "revision", "format", "source")},
        },
        "simulated": simulated or None,
        "servers": [
            {
                **{key: entry[key] for key in ("name", "role", "bind", "port", "launcher", "hash")},
                "devices": ranges(entry["devices"]),
            }
            for entry in entries
        ],
    }


def _software(entries, venv):
    """Versions as the plan pins them: packages of the environment, images of containers; else where it lies."""
    found = [*(venv.get("packages") or []), *([venv["torch"]] if venv.get("torch") else [])]
    for entry in entries:
        container = entry["container"] or {}
        if container.get("image"):
            digest = container.get("digest")
            found.append(container["image"] + ("@" + digest if digest else ""))
    if not found and venv.get("path"):
        found.append("what is installed in " + venv["path"])
    return list(dict.fromkeys(found))


def host_report(host, mode, verdicts, generated, previous=None, what=None):
    """What hosts/<host>.json holds: {schema, host, ok, generated, mode, deployed, verdicts, last_full}.

    previous: the report that it replaces, or None. A quick run keeps the last full verdicts in last_full
    {ok, generated, verdicts}; a full run is that itself, and has null there. what: deployed(), or None.
    """
    report = {
        "schema": SCHEMA,
        "host": host,
        "ok": all_ok(verdict["ok"] for verdict in verdicts),
        "generated": generated,
        "mode": mode,
        "deployed": what,
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
    In short: what passing probes sent and got is cut to what the fleet leaves to each, see EVIDENCE; all of it is in
    the host's own file.
    """
    known = fleet.get("hosts") if isinstance(fleet, dict) else None
    keep = {*inventory_hosts, report["host"]}
    hosts = {name: value for name, value in (known or {}).items() if name in keep}
    hosts[report["host"]] = report
    passed = sum(bool(probe["ok"]) for value in hosts.values() for probe in _probes(value))
    limit = max(SHORTEST, EVIDENCE // (passed or 1))
    return {
        "schema": SCHEMA,
        # a host without a server of its own (a decode node behind another node's frontend) has nothing to say here
        "ok": all_ok(value["ok"] for value in hosts.values() if value["verdicts"]),
        "generated": generated,
        "hosts": {name: shorten(hosts[name], limit) for name in sorted(hosts)},
    }


def _probes(report):
    """All probes in a host's report, those of the last full run too."""
    for part in (report, report["last_full"] or {"verdicts": []}):
        for verdict in part["verdicts"]:
            yield from verdict["probes"]


def shorten(report, limit):
    """A host's report with at most `limit` characters of what each probe sent and got that did not fail."""
    short = dict(report, verdicts=[_short_verdict(verdict, limit) for verdict in report["verdicts"]])
    full = report["last_full"]
    if full:
        short["last_full"] = dict(full, verdicts=[_short_verdict(verdict, limit) for verdict in full["verdicts"]])
    return short


def _short_verdict(verdict, limit):
    limits = (("sent", limit // 3), ("got", limit - limit // 3))
    return dict(
        verdict,
        probes=[
            probe
            if probe["ok"] is False
            else dict(probe, **{key: cut(probe[key], length) for key, length in limits if probe.get(key)})
            for probe in verdict["probes"]
        ],
    )


def host_path(folder, host):
    """Where the report of a host is below `folder`; a name with slashes stays one file."""
    return os.path.join(folder, "hosts", urllib.parse.quote(host, safe="@:[]+,~ ") + ".json")


def page_path(folder):
    """Where the fleet's page is below `folder`."""
    return os.path.join(folder, "verdict.html")


def write_reports(folder, host, mode, verdicts, inventory_hosts, what=None):
    """Write hosts/<host>.json, merge it into verdict.json and make verdict.html of that, below `folder`.

    what: deployed(), or None. Returns the host's report. Several hosts are reported at once, by processes of their
    own: the fleet's file is changed under a lock. OSError.
    """
    generated = now()
    path = host_path(folder, host)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = host_report(host, mode, verdicts, generated, read_json(path), what)
    write_atomic(path, _text(report))
    with _locked(os.path.join(folder, ".verdict.lock")):
        fleet = os.path.join(folder, "verdict.json")
        write_atomic(fleet, _text(merge(read_json(fleet), report, inventory_hosts, generated)))
    write_page(folder)
    return report


def write_page(folder):
    """Make verdict.html of the verdict.json that is there, unless it is made of that already. OSError.

    Under a lock of its own: of a hundred hosts that report at once, most then find the page made of a verdict.json
    that has theirs in it, instead of each rendering it while the others wait to merge.
    """
    with _locked(os.path.join(folder, ".page.lock")):
        text = read_text(os.path.join(folder, "verdict.json"))
        mark = "<!-- of verdict.json, sha256 %s -->\n" % hashlib.sha256(text.encode("utf-8")).hexdigest()
        before = read_text(page_path(folder))
        if before is None or not before.endswith(mark):
            write_atomic(page_path(folder), page.render(json.loads(text)) + mark)


def _text(value):
    """A report as bytes. Half a character, which a server may send, is written as JSON's own escape for it."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


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
