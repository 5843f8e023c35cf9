# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Converts a profile of a recipe's `benchmark` into points. A tool is called once for each point."""

from __future__ import annotations

import functools
import json
import os

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.http_client import base_url
from ...module_utils.fleet_node.host.server_spec import answers
from ...module_utils.fleet_node.measure.tools.reading import placeholders
from ..base.checks import address_of
from ..base.words import show
from ..engines import ENGINES

QUICK, GUIDE = "quick", "guide"
PROFILES = "benchmark.profiles."
WILDCARDS = ("0.0.0.0", "::", "[::]", "*", "")
LOOPBACK = ("127.", "localhost", "::1")
WORKLOAD = ("input_tokens", "output_tokens", "concurrency")
OVERHEAD = 256  # tokens that a chat template may add to a request
REQUESTS_PER_USER = 5
# Options that not all tools have, with their defaults.
DEFAULTS = {"endpoint": "/v1/chat/completions", "ignore_eos": True, "seed": 0, "server_token_count": True}
SPEC = ("program", "template", "environment", "clean", "files", "statistics", "goodput", "metrics")  # for the node
TABLE = os.path.join(os.path.dirname(__file__), "tools.json")


def engine_arguments(entry, engine, model):
    """Return the argv of an engine like that of a server's plan entry.
    engine: plugin_utils.engines'; model: the weights."""
    argv = ["--model", model]
    for name, value in entry["arguments"].items():
        plain = name[3:] if name.startswith("no-") else name
        if plain not in tools("arguments of servers only") and not plain.startswith(("ssl-", "allowed-")):
            argv += ["--no-" + name] if value is False else engine.flag_argv(name, value)
    return argv


def profile_of(deployment, name=None):
    """Return (name, profile) of the recipe as resolved for a host. Without a name, guide is used, else quick.
    Raises FleetError."""
    given = deployment.get("benchmark") or {}
    profiles = {key: value for key, value in (given.get("profiles") or {}).items() if value}
    name = name or (GUIDE if GUIDE in profiles else QUICK)
    if name not in profiles:
        raise FleetError("measure.profile-unknown", deployment.get("name"), show(name), ", ".join(profiles) or "none")
    profile = {**{key: given.get(key) for key in WORKLOAD}, **profiles[name]}
    for key in WORKLOAD[:2]:
        if not profile[key]:
            raise _invalid(PROFILES + name, key, None, "a number of tokens, here or as benchmark." + key)
    return name, profile


def load_of(deployment):
    """Return the expected load of a deployment's servers:
    {input_tokens, output_tokens, concurrency, scope, per_server}.

    Keys of `benchmark` itself, such as a site's lengths or those of fleet_tuning, take precedence over the profile that
    benchmark.yml uses by default. concurrency: the maximum, None if it is unlimited or not known. Raises nothing: an
    invalid profile is reported by the play that measures it.
    """
    given = deployment.get("benchmark") or {}
    try:
        profile = profile_of(deployment)[1]
        scope = scope_of(deployment)
    except (FleetError, KeyError):
        profile, scope = {}, "node"
    expected = {key: profile.get(key) if given.get(key) is None else given[key] for key in WORKLOAD}
    levels = expected["concurrency"]
    levels = [one for one in (levels if isinstance(levels, list) else [levels]) if isinstance(one, int)]
    own = given.get("concurrency") is not None
    if not own and (profile.get("up_to_full") or profile.get("queue")):
        levels = []
    return {
        **expected,
        "concurrency": max(levels, default=None),
        "scope": "node" if own else scope,
        "per_server": not own and bool(profile.get("per_server")),
    }


def points(entries, deployment, name=None, elsewhere=()):
    """Return [{label, scope, profile, servers: [entries], beside: [entries], elsewhere, point}]
    in the order of the measurements.

    servers: the measured servers, then the workers of a frontend. beside: the other servers of the host, which stop if
    a tool starts an engine.

    entries: plan entries of the host where the tool runs. elsewhere: [{host, address, entry}] of other hosts, for scope
    fleet. point: of _point(). Raises FleetError, before any load is sent.
    """
    name, profile = profile_of(deployment, name)
    tool = _check_profile(name, profile)
    asked = answering(name, entries)
    scope = _scope(profile, tool)
    if not tool.get("several") and scope != "server":
        allowed = "server: %s accepts one address, and each server is a point" % profile["tool"]
        raise _invalid(PROFILES + name, "scope", scope, allowed)
    own_engine = tool["program"][0] == "instead"
    groups = [[entry] for entry in asked] if scope == "server" else [asked]
    if own_engine:  # the servers are alike, and each call stops them all
        groups = groups[:1]
    behind = [entry for entry in entries if entry not in asked and asked[0]["role"] == "frontend"]
    others = _reachable(name, asked[0], elsewhere) if scope == "fleet" else []
    found_elsewhere = [one["entry"] for one in elsewhere] if scope == "fleet" else []
    urls = {(one["entry"]["host"], one["entry"]["name"]): _url(one) for one in others}
    found = []
    for group in groups:
        contexts, most = _limits_of(deployment, [*group, *behind, *found_elsewhere])
        for level, concurrency in enumerate(_levels(profile, most, len(group) + len(others))):
            point = _point(profile, tool, deployment, group, others, concurrency)
            if profile["tool"] == "command":
                point["tool"] = "command:" + name
            if own_engine:
                engine = ENGINES[group[0]["engine"]]
                point["engine_arguments"] = engine_arguments(group[0], engine, point["tokenizer"])
            _check(name, profile, point, contexts, most)
            one = {
                "label": _label(point, group, scope),
                "scope": scope,
                "profile": name,
                "servers": group + behind,
                "beside": [entry for entry in entries if entry not in group] if own_engine else [],
                "elsewhere": [
                    {
                        **{key: one[key] for key in ("host", "name", "hash", "devices")},
                        "url": urls.get((one["host"], one["name"])),
                    }
                    for one in found_elsewhere
                ],
                "point": point,
            }
            found.append((level, one))
    return [one for level, one in sorted(found, key=lambda item: item[0])]


def answering(name, entries):
    """Return the entries whose servers answer requests. name: of the measurement.
    Raises FleetError if there are none."""
    found = [entry for entry in entries if answers(entry)]
    if not found:
        raise FleetError("measure.no-server", name)
    return found


@functools.cache
def tools(kind="benchmarks"):
    """Return the table of tools: {name: {program, template, environment, files, metrics, …}}; or another part of the
    file: placeholders of a recipe's commands; arguments of a server for its clients or for several engines, which
    tools that start an engine do not accept (the short ones: of Python)."""
    with open(TABLE, encoding="utf-8") as stream:
        return json.load(stream)[kind]


def tool_of(profile):
    """Return the entry of a profile's tool. A recipe's command is a tool whose options are its placeholders."""
    if profile["tool"] != "command":
        return tools()[profile["tool"]]
    used = placeholders(_words(profile["command"]))
    return {
        **_of_command(profile["command"]),
        "several": "urls" in used,
        "takes_rate": "request_rate" in used,
        "takes_warmup": "warmup_requests" in used,
        "sampling": [],
        "ignores": [key for key in DEFAULTS if key not in used],
    }


def evaluation_tool(name, command=None):
    """Return the tool of an evaluation, with its name. command: of the recipe's evaluate.commands.
    Raises FleetError."""
    if command:
        used = placeholders(_words(command))
        known = tools("placeholders of evaluations")
        if used - set(known):
            raise _invalid("evaluate.commands." + name, "argv", "${%s}" % min(used - set(known)), ", ".join(known))
        return {**_of_command(command), "name": "command:" + name, "several": "urls" in used}
    table = tools("evaluations")
    found = [{**tool, "name": key} for key, tool in table.items() if name in tool["evals"]]
    if not found:
        known = sorted(one for tool in table.values() for one in tool["evals"])
        raise _invalid("evaluate", "evals", name, ", ".join(known) + ", and the names in commands")
    return found[0]


def _words(command):
    return [*command["argv"], *(command.get("environment") or {}).values()]


def _of_command(command):
    """Return a recipe's program as an entry of the table of tools. Its words are not split."""
    found = {key: command.get(key) for key in ("environment", "files", "metrics")}
    return {**found, "program": ["node"], "template": [[word] for word in command["argv"]]}


def _invalid(place, key, value, allowed):
    return FleetError("measure.profile-invalid", place, key, show(value), allowed)


def _levels(profile, most, servers=1):
    """Return the concurrencies, one for each point.
    most: concurrent requests that the servers support, None if not known."""
    given = profile.get("concurrency")
    levels = given if isinstance(given, list) else [given]
    if profile.get("per_server"):
        levels = [one and one * servers for one in levels]
    if profile.get("up_to_full") and most and levels != [None]:
        levels = [*(one for one in levels if one < most), most]
    return levels


def _point(profile, tool, deployment, group, others, concurrency):
    urls = [base_url(entry["bind"], entry["port"]) for entry in group]
    urls += [_url(one) for one in others]
    times = len(urls) if profile.get("per_server") else 1
    per_user = profile.get("requests_per_user") or REQUESTS_PER_USER
    rate, limits = profile.get("request_rate"), profile.get("limits")
    return {
        "tool": profile["tool"],
        "spec": {key: tool.get(key) for key in SPEC},
        "model": group[0]["model_id"],
        "tokenizer": deployment["model"]["path"],
        "urls": urls,
        "input_tokens": profile["input_tokens"],
        "output_tokens": profile["output_tokens"],
        "concurrency": concurrency,
        "request_rate": rate and rate * times,
        "requests": profile["requests"] * times if profile.get("requests") else per_user * (concurrency or 1),
        "warmup_requests": profile.get("warmup_requests", 0),
        **{key: profile.get(key, default) for key, default in DEFAULTS.items()},
        "sampling": profile.get("sampling") or {},
        "arguments": list(profile.get("arguments") or ()),
        "limits": {key: limits.get(key) for key in ("ttft_ms", "tpot_ms")} if limits else None,
        "timeout_s": profile.get("timeout_s", 3600),
    }


def _url(one):
    return base_url(one["address"], one["entry"]["port"])


def _label(point, group, scope):
    load = "%d at once" % point["concurrency"] if point["concurrency"] else "all at once"
    if point["request_rate"]:
        load = "%g/s" % point["request_rate"]
    return "%s, %s, %s" % (point["tool"], group[0]["name"] if scope == "server" else scope, load)


def _check_profile(name, profile):
    """Return the tool of a profile. Raises FleetError if the recipe's command is not complete, or for options that a
    tool does not support and would silently ignore."""
    kind, command, levels = profile["tool"], profile.get("command") or {}, profile.get("concurrency")
    unlimited = None in (levels if isinstance(levels, list) else [levels])
    rate, known = profile.get("request_rate"), tools("placeholders of benchmarks")
    if (kind == "command") != bool(command):
        raise _invalid(PROFILES + name, "command", profile.get("command"), "a mapping if tool is command, else null")
    used = sorted(placeholders(_words(command))) if command else []
    metrics = sorted(command.get("metrics", ()))
    tool = tool_of(profile)
    sampling = tool.get("sampling")
    number = "a number, because the command contains it"
    for key, given, wrong, allowed in (
        *(("command", "${%s}" % one, one not in known, ", ".join(known)) for one in used),
        ("concurrency", None, "concurrency" in used and unlimited, number),
        ("request_rate", None, "request_rate" in used and not rate, number),
        ("arguments", profile.get("arguments"), command and profile.get("arguments"), "null: add them to command.argv"),
        ("command.metrics", metrics, command and not {"completed", "output_tokens_per_s"}.issubset(metrics),
         "at least completed and output_tokens_per_s"),
        ("concurrency", levels, unlimited and tool.get("needs_concurrency"), "a number: %s has no other load" % kind),
        ("request_rate", rate, rate and not tool.get("takes_rate"), "null: %s has no request rate" % kind),
        ("limits", profile.get("limits"), profile.get("limits") and not tool.get("goodput"),
         "null: %s counts no goodput" % kind),
        ("warmup_requests", profile.get("warmup_requests"),
         profile.get("warmup_requests") and not tool.get("takes_warmup"), "0: %s has no warm-up" % kind),
        ("sampling", profile.get("sampling"),
         sampling is not None and set(profile.get("sampling") or ()) - set(sampling),
         "%s for %s" % (", ".join(sampling or ()) or "null", kind)),
        *((key, profile.get(key), profile.get(key, DEFAULTS[key]) != DEFAULTS[key],
           "%s: %s has no such option" % (show(DEFAULTS[key]), kind)) for key in tool.get("ignores") or ()),
    ):  # fmt: skip
        if wrong:
            raise _invalid(PROFILES + name, key, given, allowed)
    return tool


def _limits_of(deployment, entries):
    """Return ([(context, whether it includes answers)], concurrent requests or None) for all servers together.

    A frontend has the limits of its workers, which are not known if they are on other hosts.
    """
    backend = deployment.get("backend")
    workers = [one for one in entries if one["role"] != "frontend"]
    found = [(one["role"], ENGINES[one["engine"]].running(backend).takes(one)) for one in workers]
    contexts = [(one["context"], role != "prefill") for role, one in found if one["context"]]
    at_once = [one["sequences"] for role, one in found if role != "prefill"]
    if not at_once or None in at_once:
        return contexts, None
    return contexts, sum(at_once)


def _check(name, profile, point, contexts, most):
    """Raises FleetError if the servers do not accept the lengths or the concurrency."""
    overhead = OVERHEAD if "chat" in point["endpoint"] else 0
    for context, with_output in sorted(contexts):
        output = point["output_tokens"] if with_output else 0
        if point["input_tokens"] + output + overhead > context:
            allowed = "a context of at most %d tokens, with %d of output and up to %d of the chat template"
            raise _invalid(
                PROFILES + name, "input_tokens", point["input_tokens"], allowed % (context, output, overhead)
            )
    if point["concurrency"] and most and point["concurrency"] > most and not profile.get("queue"):
        allowed = "at most %d, or more with queue: true, which lets requests wait" % most
        raise _invalid(PROFILES + name, "concurrency", point["concurrency"], allowed)


def scope_of(deployment, name=None):
    """Return the scope of a profile as points() uses it. Raises FleetError."""
    name, profile = profile_of(deployment, name)
    return _scope(profile, _check_profile(name, profile))


def _scope(profile, tool):
    return profile.get("scope") or ("node" if tool.get("several") else "server")


def elsewhere_of(entries, variables_of):
    """Return [{host, address, entry}] of plan entries of other hosts. variables_of: {host: its variables}.

    The address is the server's listen address or, if the server listens on all addresses, the declared address of its
    host.
    """
    found = []
    for entry in entries:
        bind = entry["bind"]
        if bind in WILDCARDS:
            bind = address_of(entry["host"], variables_of[entry["host"]])
        found.append({"host": entry["host"], "address": bind, "entry": entry})
    return found


def _reachable(name, first, elsewhere):
    """Return the measured servers of other hosts. Raises FleetError for a server that is not reachable."""
    asked = [one for one in elsewhere if answers(one["entry"])]
    for one in asked:
        entry, why = one["entry"], None
        if entry["bind"].startswith(LOOPBACK):
            why = "listens on %s, which other hosts cannot reach" % entry["bind"]
        elif entry["model_id"] != first["model_id"]:
            why = "serves %s, but %s of %s serves %s" % (
                entry["model_id"], first["name"], first["host"], first["model_id"]
            )  # fmt: skip
        if why:
            raise FleetError("measure.not-together", name, entry["name"], entry["host"], why)
    return asked
