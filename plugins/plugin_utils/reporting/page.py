# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's verdicts as an HTML page that needs no other files, no network and no script."""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import json
import math
import os
import shlex
import urllib.parse

from ...module_utils.fleet_node.errors import UNSEEN
from ...module_utils.fleet_node.errors import visible as text_visible
from ...module_utils.fleet_node.host.server_spec import answers
from ...module_utils.fleet_node.host.values import TIME, items_of, mapping_of
from ...module_utils.fleet_node.model import gpt_oss
from ..base.words import natural, some
from ..engines import ENGINES
from ..platforms import PLATFORMS
from .runs import host_path

try:
    import jinja2
except ImportError:
    HAS_JINJA = False  # only if the sanity tests import this file: ansible-core requires jinja2
else:
    HAS_JINJA = True

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"
ORDER = {FAILED: 0, UNKNOWN: 1, PASSED: 2}
ROOMY = 24  # up to this number, each server has a cell with its name; otherwise the overview is a grid of signs
OPEN = 4  # up to this number, all servers are opened
LONGEST, CAUSE = 4000, 1000  # characters
CARDS, PLACES = 40, 24  # kinds of failures with a card; servers that a card names
DECADE = 20  # percent of a probe's bar for a factor of ten, from 1 ms
SCALE = ((20, "10 ms"), (40, "0.1 s"), (60, "1 s"), (80, "10 s"))

MODES = {"full": "full sequence", "quick": "quick check"}
WORDS = {PASSED: "verified", FAILED: "failed", UNKNOWN: "not verified"}
RESIDUE = "no tokens of %s or of other models in any answer" % gpt_oss.FORMAT
with open(os.path.join(os.path.dirname(TEMPLATES), "probes.json"), encoding="utf-8") as _stream:
    # The meaning of each probe; docs/using/verification.md describes them.
    PROVES = {**json.load(_stream), gpt_oss.RESIDUE_PROBE: RESIDUE}


def _label(registry, name):
    return registry[name].label if name in registry else name


def render(report):
    """The page of a fleet's report (verdict.json, see report.merge) as the content of an HTML file.

    Pure. All strings in the report are escaped; values that are missing or of another form are left out.
    """
    return template("verdict.html.j2").render(view(report))


@functools.lru_cache(maxsize=2)
def template(name):
    """Return a page's template, which escapes values and makes invisible characters visible."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        finalize=visible,  # of each value that is printed, before it is escaped
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=_compiled(),
    )
    environment.filters["sha256"] = _sha256
    environment.filters["code"] = lambda text: list(enumerate(text.split("`")))
    return environment.get_template(name)


def _compiled():
    """Return the cache of compiled templates in a folder of this user, or None."""
    try:
        return jinja2.FileSystemBytecodeCache()
    except RuntimeError:  # the folder of that name belongs to another account
        return None


def _sha256(text):
    """Return the hash of a style or script for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


# -- what the template shows -------------------------------------------------------------------------------------------


def view(report):
    """Return the values of the template: strings, numbers, and lists and mappings of them."""
    report = mapping_of(report)
    names = sorted(mapping_of(report, "hosts"), key=natural)
    hosts = [_host(name, mapping_of(report, "hosts", name), number) for number, name in enumerate(names)]
    servers = [server for host in hosts for server in host["servers"]]
    for number, server in enumerate(servers):
        server["id"] = "s%d" % number
    counts = {state: sum(server["state"] == state for server in servers) for state in ORDER}
    passed = bool(servers) and counts[PASSED] == len(servers) and not any(host["missing"] for host in hosts)
    failed = counts[FAILED] or any(host["state"] == FAILED for host in hosts)
    return {
        "state": FAILED if failed else PASSED if passed else UNKNOWN,
        "headline": "%d of %s verified" % (counts[PASSED], counted(len(servers), "server")),
        "counts": counts,
        "total": len(servers),
        "passed": sum(server["passed"] for server in servers),
        "measured": sum(server["measured"] for server in servers),
        "generated": moment(report.get("generated")),
        "on": _on(hosts, servers),
        "notes": _notes(hosts, servers, report),
        "problems": _problems(hosts),
        **_failures(servers),
        # the overview has the order of the inventory, so that the position of a host is stable
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
        "SCALE": SCALE,
        "WORDS": WORDS,
    }


def _host(name, report, number):
    deployed = mapping_of(report, "deployed")
    planned = {cut(entry.get("name")): entry for entry in items_of(deployed.get("servers"))}
    full = mapping_of(report, "last_full")
    before = {cut(verdict.get("server")): verdict for verdict in items_of(full.get("verdicts"))}
    model = mapping_of(deployed, "model")
    missing = mapping_of(report, "missing")
    verdicts = items_of(report.get("verdicts"))
    if missing:
        verdicts = [_not_asked(entry, model) for entry in planned.values() if answers(entry)]
    servers = []
    for verdict in verdicts:
        key = cut(verdict.get("server"))
        servers.append(_server(name, verdict, planned.pop(key, {})))
        servers[-1]["full"] = None
        if key in before:  # the last full verdict of a server whose last verification was quick
            same = before[key].get("hash") == verdict.get("hash")
            servers[-1]["full"] = {
                **_server(name, before[key], {}), "when": moment(full.get("generated")), "same": same
            }  # fmt: skip
    problem = cut(report.get("problem"), LONGEST)
    last = mapping_of(missing, "last")
    return {
        "id": "h%d" % number,
        "name": cut(name),
        # the address of its file, as on the disk; a longer name is no file's
        "file": urllib.parse.quote(host_path("", name)) if len(name) <= NAME and (last or not missing) else "",
        "state": FAILED if problem else min((server["state"] for server in servers), key=ORDER.get, default=UNKNOWN),
        "problem": problem,
        "missing": cut(missing.get("cause"), LONGEST) if missing else "",
        "began": moment(missing.get("began")),
        "last": "%s, %s" % (WORDS[state_of(last.get("ok"))], moment(last.get("generated"))) if last else "",
        "passed": sum(server["state"] == PASSED for server in servers),
        "servers": servers,
        "when": moment(report.get("generated")),
        "mode": MODES.get(cut(report.get("mode")), cut(report.get("mode"))),
        "recipe": cut(deployed.get("recipe")),
        "description": cut(deployed.get("description"), LONGEST),
        "engine": _label(ENGINES, cut(deployed.get("engine"))),
        "platform": _label(PLATFORMS, cut(deployed.get("platform"))),
        "software": [cut(item) for item in items(deployed.get("software"))],
        "memory_gib": deployed.get("memory_gib"),
        "simulated": cut(deployed.get("simulated"), LONGEST) if deployed.get("simulated") is not True else "yes",
        "model": {key: cut(model.get(key)) for key in ("id", "repo", "revision", "format")},
        "standin": model.get("source") == "standin" or any(server["standin"] for server in servers),
        # prefill and decode workers answer through a frontend, so they have no verdict
        "others": [
            {"name": other, "role": cut(entry.get("role")), "devices": cut(entry.get("devices"))}
            for other, entry in planned.items()
        ],
    }


def _not_asked(entry, model):
    """Return the verdict of a planned server that was not verified."""
    return {
        "server": entry.get("name"),
        "url": "%s:%s" % (cut(entry.get("bind")), cut(entry.get("port"))),
        "model_id": model.get("id"),
        "hash": entry.get("hash"),
    }


def _server(host, verdict, entry):
    probes = [_probe_view(probe) for probe in items_of(verdict.get("probes"))]
    model = cut(verdict.get("model_id"))
    url = cut(verdict.get("url"))
    role = cut(entry.get("role"))
    void, stranger = cut(verdict.get("void"), CAUSE), cut(verdict.get("not_verified"), CAUSE)
    if void:
        probes = [dict(probe, state=UNKNOWN) for probe in probes]
    return {
        "note": void or ("not verified: " + stranger if stranger else ""),
        "word": WORDS[UNKNOWN if stranger else state_of(verdict.get("ok"))],
        "host": cut(host),
        "name": cut(verdict.get("server")),
        "state": state_of(verdict.get("ok")),
        "address": url.partition("://")[2] or url,
        "url": url,
        "port": url.rpartition(":")[2],
        "model": model,
        "standin": gpt_oss.is_standin(model),
        "mode": MODES.get(cut(verdict.get("mode")), cut(verdict.get("mode"))),
        "when": moment(verdict.get("at")),
        "hash": cut(verdict.get("hash")),
        "role": "" if role == "server" else role,
        "devices": cut(entry.get("devices")),
        "start": mapping_of(verdict, "start"),
        "probes": probes,
        "passed": sum(probe["state"] == PASSED for probe in probes),
        "measured": sum(probe["state"] != UNKNOWN for probe in probes),
        "took": duration(sum(probe["ms"] for probe in probes)),
    }


def _probe_view(probe):
    ms = probe.get("ms")
    ms = ms if isinstance(ms, (int, float)) and 0 <= ms < 1e12 else 0
    return {
        "name": cut(probe.get("name")),
        "state": state_of(probe.get("ok")),
        "ms": ms,
        "took": duration(ms),
        "length": round(min(100, DECADE * math.log10(max(1, ms))), 1),
        "cause": cut(probe.get("cause"), CAUSE),
        "card": "",
        **{key: cut(probe.get(key), LONGEST) for key in ("sent", "got")},
    }


def _failures(servers):
    """Equal failures of several servers once, the most frequent first: {failures: [{…}], more_failures: number}."""
    failed = ((server, probe) for server in servers for probe in server["probes"] if probe["state"] == FAILED)
    found = grouped(((probe["name"], probe["cause"]), (server, probe)) for server, probe in failed)
    failures = []
    for (name, cause), hits in list(found.items())[:CARDS]:
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
                **{key: shown[key] for key in ("sent", "got")},
                "total": len(hits),
                "servers": [hit[0] for hit in hits[:PLACES]],
                "logs": "ansible-playbook playbooks/logs.yml -i INVENTORY --limit %s -e fleet_log_server=%s"
                % (quoted(first["host"]), quoted(first["name"])),
                "again": "ansible-playbook playbooks/verify.yml -i INVENTORY %s-e fleet_verify=full"
                % ("--limit %s " % quoted(",".join(hosts)) if len(hosts) <= 5 else ""),
            }
        )
    return {"failures": failures, "more_failures": len(found) - len(failures)}


def _problems(hosts):
    """Return failures of hosts before their servers were verified, with equal failures merged: [{text, hosts}]."""
    found = grouped((host["problem"], host) for host in hosts if host["problem"])
    return [{"text": text, "hosts": where[:PLACES], "total": len(where)} for text, where in list(found.items())[:CARDS]]


def _notes(hosts, servers, report):
    """Notes above the results: [{title, text}]."""
    notes = []
    missing = grouped(((host["missing"], host["began"]), host["name"]) for host in hosts if host["missing"])
    for (cause, run), names in missing.items():
        when = " The run began on %s." % run if run else ""
        notes.append(("Not verified", "%s: %s%s" % (some(names), cause, when)))
    began = time_of(mapping_of(report, "run").get("began"))
    verified = {name: time_of(mapping_of(host).get("generated")) for name, host in mapping_of(report, "hosts").items()}
    older = sorted((name for name, time in verified.items() if began and time and time < began), key=natural)
    if older:
        text = "%s: verified before the last run, which was for other hosts." % some(older)
        notes.append(("Older verdicts", text))
    standins = sorted({server["model"] for server in servers if server["standin"]})
    if standins or any(host["standin"] for host in hosts):
        text = (
            "%s is a stand-in, trained to answer in form only. These verdicts prove the plumbing, from recipe to "
            "answer. They show nothing about the quality or the speed of %s."
        )
        notes.append(("Stand-in checkpoint", text % (", ".join(standins) or "The model", gpt_oss.NAME)))
    simulated = grouped((host["simulated"], host["name"]) for host in hosts if host["simulated"])
    for what, names in simulated.items():
        parts = "" if what == "yes" else ": " + what
        text = "On %s the platform is simulated%s. Nothing here was seen on hardware."
        notes.append(("Simulated", text % (some(names), parts)))
    return [{"title": title, "text": text} for title, text in notes]


def grouped(pairs):
    """Return {key: values}, the key with the most values first."""
    found = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _on(hosts, servers):
    """Return a line on the verified servers: models, recipes, modes."""
    models = sorted({server["model"] for server in servers if server["model"]})
    recipes = sorted({host["recipe"] for host in hosts if host["recipe"]})
    modes = sorted({server["mode"] for server in servers if server["mode"]})
    return [
        some(models),
        *(["recipe " + some(recipes)] if recipes else []),
        counted(len(hosts), "host") if len(hosts) != 1 else "host " + hosts[0]["name"],
        some(modes),
    ]


def state_of(value):
    return PASSED if value is True else FAILED if value is False else UNKNOWN


MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905 - twelve lines otherwise
NAME = 200  # longest name, address or version


def visible(value):
    """Return a string with its invisible characters made visible; other values unchanged."""
    return text_visible(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


def items(value):
    return value if isinstance(value, list) else []


def cut(value, limit=NAME):
    """Return a string of at most `limit` characters; empty for values that are neither strings nor numbers."""
    if not limit:
        return ""
    text = str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def quoted(text):
    """Return a word for a shell, with ? in place of control characters."""
    return shlex.quote(UNSEEN.sub("?", text).replace("\n", "?"))


def counted(number, noun):
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")


def time_of(text):
    try:
        return datetime.datetime.strptime(text, TIME)
    except (TypeError, ValueError):
        return None


def moment(text):
    """Return a report's time for people; other strings unchanged."""
    time = time_of(text)
    if time is None:
        return cut(text)
    return "%d %s %d, %s UTC" % (time.day, MONTHS[time.month - 1], time.year, time.strftime("%H:%M:%S"))


def duration(ms):
    if ms < 1000:
        return "%d ms" % ms
    return "%.1f s" % (ms / 1000) if ms < 60000 else "%d min %d s" % divmod(ms // 1000, 60)
