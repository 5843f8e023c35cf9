# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's verdicts as one HTML page that a person reads: a file that needs nothing else, no network, no script."""

from __future__ import annotations

import base64
import bisect
import datetime
import functools
import hashlib
import os
import re
import shlex
import urllib.parse

from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.verify.runner import PROBED_ROLES
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS

try:
    import jinja2
except ImportError:
    HAS_JINJA = False  # only where the sanity tests import this alone: ansible-core needs it everywhere else
else:
    HAS_JINJA = True

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"
ORDER = {FAILED: 0, UNKNOWN: 1, PASSED: 2}
ROOMY = 24  # up to so many servers each has a cell with its name; beyond that the overview is a grid of signs
OPEN = 4  # up to so many servers all are shown opened
# Characters of what all failing probes sent and got, on the whole page. Each text has its share of it; where that is
# shorter than is of use, what the first of equal failures sent and got has to do, and the hosts' own files.
EVIDENCE = 1000000
LONGEST, SHORTEST = 4000, 100
CAUSE = 1000
NAME = 200  # longest name, address or version; what is longer is no such thing
CARDS, PLACES = 40, 24  # so many kinds of failures are shown one by one, so many servers are named with each
SIZES = (0, 30, 100, 300, 1000, 3000, 10000)  # ms up to which the bar of a probe's time has its lengths
OLD = datetime.timedelta(hours=1)  # where the report knows of no run, a verdict so much older than the newest is old
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905 - twelve lines otherwise
DATE = "%Y-%m-%dT%H:%M:%SZ"

# What no text may do to the page: end it, hide, or turn the direction of what stands beside it.
UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff]"
)
MODES = {"full": "full sequence", "quick": "quick check"}
WORDS = {PASSED: "verified", FAILED: "failed", UNKNOWN: "not verified"}
# What a probe proves, in the words of docs/using/verification.md.
PROVES = {
    "identity": "the planned entry's own process holds the port, before and after the probes",
    "alive": "the process answers",
    "census": "as many workers are registered as planned",
    "model-id": "the planned model name is listed",
    "completion": "a completion comes back through the server's own port",
    "warm-up": "the engine computes, the model's vocabulary is there",
    "chat": "the right answer, which ends by itself",
    gpt_oss.RESIDUE_PROBE: "no %s tokens in any answer" % gpt_oss.FORMAT,
    "reasoning": "reasoning is in a field of its own",
    "effort": "high effort makes the model think longer",
    "tool-call": "a call with the right name and JSON arguments",
    "tool-round-trip": "an answer after the tool's result",
    "tool-arguments": "the arguments of a call come back as they were asked for",
    "tool-result": "the answer holds what only the tool's result said",
    "system-message": "an instruction in the system message is followed",
    "long-prompt": "a fact in more than 4000 characters is found",
    "sampling": "right at other temperatures, and with the server's own defaults",
    "responses": "the right answer from /v1/responses, completed",
    "streaming": "the same streamed, text and tool calls, up to [DONE]",
    "unbuffered": "events come while the model writes",
    "concurrent": "each of four requests at once gets its own right answer",
    "still-right": "what was right at the beginning is right at the end",
    "disaggregation": "each worker took part",
}


def _label(registry, name):
    return registry[name].label if name in registry else name


def render(report):
    """The page of a fleet's report (verdict.json, see report.merge) as text of an HTML file.

    Pure: the same report gives the same page. Whatever stands in the report ends up as text on the page; what is
    missing or of another form is left out.
    """
    return _template().render(view(report))


@functools.lru_cache(maxsize=1)
def _template():
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        finalize=visible,  # of each value that is printed, before it is escaped
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sha256"] = _sha256
    environment.filters["code"] = lambda text: list(enumerate(text.split("`")))
    return environment.get_template("verdict.html.j2")


def _sha256(text):
    """The source of a style or script as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def visible(value):
    """A text with what is unseen in it made visible: a control character as its picture, others by their number."""
    if not isinstance(value, str) or hasattr(value, "__html__") or not UNSEEN.search(value):
        return value
    return UNSEEN.sub(_picture, value)


def _picture(match):
    number = ord(match.group())
    if number < 0x20:
        return chr(0x2400 + number)
    return "\u2421" if number == 0x7F else "\u27e8U+%04X\u27e9" % number


# -- what the template shows -------------------------------------------------------------------------------------------


def view(report):
    """What the page says, in the order in which it says it; every value is a string, a number, or a list of such."""
    report = _mapping(report)
    names = sorted(_mapping(report.get("hosts")), key=_natural)
    reports = {name: _mapping(report["hosts"][name]) for name in names}
    limit = _failed_limit(reports.values())
    newest = max(filter(None, (_time(value.get("generated")) for value in reports.values())), default=None)
    began = _time(_mapping(report.get("run")).get("began"))
    latest, grace = (began, datetime.timedelta()) if began else (newest, OLD)
    hosts = []
    for name in names:
        hosts.append(_host(name, reports[name], len(hosts), latest, grace, limit))
    servers = [server for host in hosts for server in host["servers"]]
    for number, server in enumerate(servers):
        server["id"] = "s%d" % number
    counts = {state: sum(server["state"] == state for server in servers) for state in ORDER}
    passed = bool(servers) and counts[PASSED] == len(servers) and not any(host["missing"] for host in hosts)
    failed = counts[FAILED] or any(host["state"] == FAILED for host in hosts)
    return {
        "state": FAILED if failed else PASSED if passed else UNKNOWN,
        "headline": "%d of %s verified" % (counts[PASSED], _count(len(servers), "server")),
        "counts": counts,
        "total": len(servers),
        "passed": sum(server["passed"] for server in servers),
        "measured": sum(server["measured"] for server in servers),
        "generated": _when(report.get("generated")),
        "on": _on(hosts, servers),
        "notes": _notes(hosts, servers, began),
        "problems": _problems(hosts),
        **_failures(servers),
        # the overview keeps the inventory's order, so that a host is where it was the last time
        "overview": [host for host in hosts if host["servers"]],
        "hosts": sorted(
            ({**host, "servers": sorted(host["servers"], key=lambda one: ORDER[one["state"]])} for host in hosts),
            key=lambda host: ORDER[host["state"]],
        ),
        "roomy": len(servers) <= ROOMY,
        "OPEN": OPEN,
        "proves": {
            probe["name"]: PROVES[probe["name"]]
            for server in servers
            for probe in server["probes"] + (server["full"]["probes"] if server["full"] else [])
            if probe["name"] in PROVES
        },
        "own": "a request of the recipe",
        "WORDS": WORDS,
    }


def _host(name, report, number, latest, grace, limit):
    deployed = _mapping(report.get("deployed"))
    planned = {_text(entry.get("name")): entry for entry in _mappings(deployed.get("servers"))}
    full = _mapping(report.get("last_full"))
    before = {_text(verdict.get("server")): verdict for verdict in _mappings(full.get("verdicts"))}
    model = _mapping(deployed.get("model"))
    missing = _mapping(report.get("missing"))
    verdicts = _mappings(report.get("verdicts"))
    if missing:
        verdicts = [
            _not_asked(entry, model)
            for entry in planned.values()
            if entry.get("port") and _text(entry.get("role")) in PROBED_ROLES
        ]
    servers = []
    for verdict in verdicts:
        key = _text(verdict.get("server"))
        servers.append(_server(name, verdict, _mapping(planned.pop(key, None)), limit))
        servers[-1]["full"] = _full(full, before[key], verdict, limit) if key in before else None
    time = _time(report.get("generated"))
    problem = _text(report.get("problem"), LONGEST)
    last = _mapping(missing.get("last"))
    return {
        "id": "h%d" % number,
        "name": _text(name),
        "file": _file(name) if last or not missing else "",
        "state": FAILED if problem else min((server["state"] for server in servers), key=ORDER.get, default=UNKNOWN),
        "problem": problem,
        "missing": _text(missing.get("cause"), LONGEST) if missing else "",
        "began": _when(missing.get("began")),
        "last": "%s, %s" % (WORDS[_state(last.get("ok"))], _when(last.get("generated"))) if last else "",
        "passed": sum(server["state"] == PASSED for server in servers),
        "servers": servers,
        "when": _when(report.get("generated")),
        "older": latest - time if time and latest and latest - time > grace else None,
        "mode": MODES.get(_text(report.get("mode")), _text(report.get("mode"))),
        "recipe": _text(deployed.get("recipe")),
        "description": _text(deployed.get("description"), LONGEST),
        "engine": _label(ENGINES, _text(deployed.get("engine"))),
        "platform": _label(PLATFORMS, _text(deployed.get("platform"))),
        "software": [_text(item) for item in _list(deployed.get("software"))],
        "simulated": _text(deployed.get("simulated"), LONGEST) if deployed.get("simulated") is not True else "yes",
        "model": {key: _text(model.get(key)) for key in ("id", "repo", "revision", "format")},
        "standin": model.get("source") == "standin" or any(server["standin"] for server in servers),
        # prefill and decode workers: they answer through a frontend, so they have no verdict of their own
        "others": [
            {"name": other, "role": _text(entry.get("role")), "devices": _text(entry.get("devices"))}
            for other, entry in planned.items()
        ],
    }


def _not_asked(entry, model):
    """A planned server as a verdict that says nothing of it."""
    return {
        "server": entry.get("name"),
        "url": "%s:%s" % (_text(entry.get("bind")), _text(entry.get("port"))),
        "model_id": model.get("id"),
        "hash": entry.get("hash"),
    }


def _file(name):
    """The address of a host's own file beside the page; empty where no file can have such a name."""
    if len(name) > NAME:
        return ""
    on_disk = urllib.parse.quote(name.encode("utf-8", "replace"), safe="@:[]+,~ ")  # as report.host_path() has it
    return "hosts/" + urllib.parse.quote(on_disk) + ".json"


def _server(host, verdict, entry, limit):
    probes = [_probe_view(probe, limit) for probe in _mappings(verdict.get("probes"))]
    model = _text(verdict.get("model_id"))
    url = _text(verdict.get("url"))
    role = _text(entry.get("role"))
    void, stranger = _text(verdict.get("void"), CAUSE), _text(verdict.get("not_verified"), CAUSE)
    if void:  # what was true before
        probes = [dict(probe, state=UNKNOWN) for probe in probes]
    return {
        "note": void or ("not verified: " + stranger if stranger else ""),
        "word": WORDS[UNKNOWN if stranger else _state(verdict.get("ok"))],
        "host": _text(host),
        "name": _text(verdict.get("server")),
        "state": _state(verdict.get("ok")),
        "address": url.partition("://")[2] or url,
        "url": url,
        "port": url.rpartition(":")[2],
        "model": model,
        "standin": gpt_oss.is_standin(model),
        "mode": MODES.get(_text(verdict.get("mode")), _text(verdict.get("mode"))),
        "when": _when(verdict.get("at")),
        "hash": _text(verdict.get("hash")),
        "role": "" if role == "server" else role,
        "devices": _text(entry.get("devices")),
        **_sums(probes),
    }


def _full(full, verdict, now, limit):
    """The last full verdict of a server that was asked quickly this time."""
    probes = [_probe_view(probe, limit) for probe in _mappings(verdict.get("probes"))]
    if verdict.get("void"):
        probes = [dict(probe, state=UNKNOWN) for probe in probes]
    return {
        "state": _state(verdict.get("ok")),
        "when": _when(full.get("generated")),
        "same": verdict.get("hash") == now.get("hash"),
        **_sums(probes),
    }


def _sums(probes):
    """The probes, and what they add up to."""
    return {
        "probes": probes,
        "passed": sum(probe["state"] == PASSED for probe in probes),
        "measured": sum(probe["state"] != UNKNOWN for probe in probes),
        "took": _duration(sum(probe["ms"] for probe in probes)),
    }


def _probe_view(probe, limit):
    state = _state(probe.get("ok"))
    length = limit if state == FAILED else LONGEST  # those that passed are cut in verdict.json already
    ms = probe.get("ms")
    ms = ms if isinstance(ms, (int, float)) and 0 <= ms < 1e12 else 0
    return {
        "name": _text(probe.get("name")),
        "state": state,
        "ms": ms,
        "took": _duration(ms),
        "size": bisect.bisect_left(SIZES, ms),
        "cause": _text(probe.get("cause"), CAUSE),
        "card": "",
        **{key: _text(probe.get(key), length) for key in ("sent", "got")},
        "whole": {key: _text(probe.get(key), LONGEST) for key in ("sent", "got")},
    }


def _failures(servers):
    """Equal failures of several servers once, the commonest first: {failures: [{…}], more_failures: number}."""
    found = {}
    for server in servers:
        for probe in server["probes"]:
            if probe["state"] == FAILED:
                found.setdefault((probe["name"], probe["cause"]), []).append((server, probe))
    failures = []
    for (name, cause), hits in sorted(found.items(), key=lambda item: -len(item[1]))[:CARDS]:
        first, shown = hits[0]
        hosts = list(dict.fromkeys(hit[0]["host"] for hit in hits))
        number = "f%d" % len(failures)
        for hit in hits:
            hit[1]["card"] = number
        failures.append(
            {
                "id": number,
                "probe": name,
                "cause": cause,
                "proves": PROVES.get(name, ""),
                "first": first,
                "took": shown["took"],
                **shown["whole"],
                "total": len(hits),
                "servers": [hit[0] for hit in hits[:PLACES]],
                "logs": "ansible-playbook playbooks/logs.yml -i INVENTORY --limit %s -e fleet_log_server=%s"
                % (_quote(first["host"]), _quote(first["name"])),
                "again": "ansible-playbook playbooks/verify.yml -i INVENTORY %s-e fleet_verify=full"
                % ("--limit %s " % _quote(",".join(hosts)) if len(hosts) <= 5 else ""),
            }
        )
    return {"failures": failures, "more_failures": len(found) - len(failures)}


def _problems(hosts):
    """What went wrong on hosts before their servers were asked, equal ones once: [{text, hosts}]."""
    found = {}
    for host in hosts:
        if host["problem"]:
            found.setdefault(host["problem"], []).append(host)
    return [
        {"text": text, "hosts": where[:PLACES], "total": len(where)}
        for text, where in sorted(found.items(), key=lambda item: -len(item[1]))[:CARDS]
    ]


def _notes(hosts, servers, began):
    """What a reader must know before believing the rest: [{title, text}]."""
    notes = []
    missing = {}
    for host in hosts:
        if host["missing"]:
            missing.setdefault((host["missing"], host["began"]), []).append(host["name"])
    for (cause, run), names in missing.items():
        when = " The run began on %s." % run if run else ""
        notes.append({"title": "Not verified", "text": "%s: %s%s" % (_some(names), cause, when)})
    standins = sorted({server["model"] for server in servers if server["standin"]})
    if standins or any(host["standin"] for host in hosts):
        notes.append(
            {
                "title": "Stand-in checkpoint",
                "text": "%s is a stand-in, trained to answer in form only. These verdicts prove the plumbing, from "
                "recipe to answer. They say nothing about the quality or the speed of %s."
                % (", ".join(standins) or "The model", gpt_oss.NAME),
            }
        )
    simulated = {}
    for host in hosts:
        if host["simulated"]:
            simulated.setdefault(host["simulated"], []).append(host["name"])
    for what, names in sorted(simulated.items()):
        notes.append(
            {
                "title": "Simulated",
                "text": "On %s the platform is simulated%s. Nothing here was seen on hardware."
                % (_some(names), "" if what == "yes" else ": " + what),
            }
        )
    old = [host for host in hosts if host["older"] is not None]
    if old:
        than = "the last run, which was for other hosts"
        if not began:
            than = "the newest verdict. The last run may not have reached " + ("it" if len(old) == 1 else "them")
        notes.append(
            {
                "title": "Older verdicts",
                "text": "%s: %s%s older than %s."
                % (
                    _some([host["name"] for host in old]),
                    "up to " if len(old) > 1 else "",
                    _age(max(host["older"] for host in old)),
                    than,
                ),
            }
        )
    return notes


def _on(hosts, servers):
    """On what the servers were verified, in a line: models, recipes, modes."""
    models = sorted({server["model"] for server in servers if server["model"]})
    recipes = sorted({host["recipe"] for host in hosts if host["recipe"]})
    modes = sorted({server["mode"] for server in servers if server["mode"]})
    return [
        _some(models),
        *(["recipe " + _some(recipes)] if recipes else []),
        _count(len(hosts), "host") if len(hosts) != 1 else "host " + hosts[0]["name"],
        _some(modes),
    ]


# -- values ------------------------------------------------------------------------------------------------------------


def _mapping(value):
    return value if isinstance(value, dict) else {}


def _list(value):
    return value if isinstance(value, list) else []


def _mappings(value):
    return [item for item in _list(value) if isinstance(item, dict)]


def _text(value, limit=NAME):
    """A text of at most `limit` characters; empty for None and for what is neither text nor number."""
    if not limit:
        return ""
    text = str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def _quote(text):
    """A word for a shell; with a mark in the place of what a terminal would act on."""
    return shlex.quote(UNSEEN.sub("?", text).replace("\n", "?"))


def _state(value):
    return PASSED if value is True else FAILED if value is False else UNKNOWN


def _natural(name):
    """node-2 before node-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(len(part.lstrip("0")), part) if number % 2 else (0, part) for number, part in enumerate(parts)]


def _count(number, noun):
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")


def _some(names):
    """Up to three names, and how many more there are."""
    return ", ".join(names[:3]) + (" and %d more" % (len(names) - 3) if len(names) > 3 else "")


def _time(text):
    try:
        return datetime.datetime.strptime(text, DATE)
    except (TypeError, ValueError):
        return None


def _when(text):
    """A report's time for people; whatever else it is, as it is."""
    time = _time(text)
    if time is None:
        return _text(text)
    return "%d %s %d, %s UTC" % (time.day, MONTHS[time.month - 1], time.year, time.strftime("%H:%M:%S"))


def _age(delta):
    """A long time in words: 50 min, 3 h, 2 days."""
    minutes = int(delta.total_seconds() // 60)
    if minutes < 120:
        return "%d min" % max(1, minutes)
    return "%d h" % (minutes // 60) if minutes < 2880 else "%d days" % (minutes // 1440)


def _duration(ms):
    if ms < 1000:
        return "%d ms" % ms
    return "%.1f s" % (ms / 1000) if ms < 60000 else "%d min %d s" % divmod(ms // 1000, 60)


def _failed_limit(reports):
    """Characters of each text of a failing probe, so that all of them keep within EVIDENCE."""
    failed = 0
    for report in reports:
        for part in (report, _mapping(report.get("last_full"))):
            for verdict in _mappings(part.get("verdicts")):
                failed += sum(probe.get("ok") is False for probe in _mappings(verdict.get("probes")))
    limit = min(LONGEST, EVIDENCE // (2 * failed or 1))
    return limit if limit >= SHORTEST else 0
