# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a profile of a recipe's `benchmark` to points: one call of a tool each."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.registry import TOOLS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.http_client import base_url
from ansible_collections.inference.fleet.plugins.plugin_utils.base.addresses import address_of
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES

QUICK, GUIDE = "quick", "guide"
ANSWERING = ("server", "frontend")
WILDCARDS = ("0.0.0.0", "::", "[::]", "*", "")
LOOPBACK = ("127.", "localhost", "::1")
WORKLOAD = ("input_tokens", "output_tokens", "concurrency")
OVERHEAD = 256  # tokens that a chat template may add to a request
REQUESTS_PER_USER = 5
SCOPES = ("server", "node", "fleet")


def profile_of(deployment, name=None):
    """(name, profile) of the recipe as resolved for a host; without a name guide, else quick. Raises FleetError."""
    given = deployment.get("benchmark") or {}
    profiles = {key: value for key, value in (given.get("profiles") or {}).items() if value}
    name = name or (GUIDE if GUIDE in profiles else QUICK)
    if name not in profiles:
        raise FleetError(
            "measure.profile-unknown",
            "the recipe %s has no benchmark profile %s; allowed: %s. Set benchmark_profile to one of these.",
            (deployment.get("name"), show(name), ", ".join(profiles) or "none"),
        )
    profile = {**{key: given.get(key) for key in WORKLOAD}, **profiles[name]}
    for key in WORKLOAD[:2]:
        if not profile[key]:
            raise FleetError(
                "measure.no-length",
                "benchmark.profiles.%s.%s is not set, nor is benchmark.%s; allowed: a number of tokens. Set one of "
                "them.",
                (name, key, key),
            )
    return name, profile


def load_of(deployment):
    """What the servers of a deployment are expected to be asked: {input_tokens, output_tokens, concurrency, scope,
    per_server}.

    That of the profile which benchmark.yml takes by default; what stands under `benchmark` itself, such as a site's own
    lengths or those of fleet_tuning, counts before it. concurrency: the most at once, None where it is not limited, or
    more than the servers take is meant or left out. Never an error: what is wrong is said before load is sent.
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
    """[{label, scope, profile, servers: [entries], beside: [entries], elsewhere, point}] in the order in which they are
    run.

    servers: those that are asked, then the workers behind a frontend. beside: the host's others, where the tool starts
    an engine of its own and they stop for it.

    entries: plan entries of the host where the tool runs. elsewhere: [{host, address, entry}] of other hosts, for scope
    fleet. point: the keys of measure.tools.base.Point. Raises FleetError with every mistake, before any load.
    """
    name, profile = profile_of(deployment, name)
    tool = TOOLS[profile["tool"]]
    answering = [entry for entry in entries if entry["role"] in ANSWERING and entry["port"]]
    if not answering:
        raise FleetError(
            "measure.no-server", "%s: no planned server answers requests, so there is nothing to measure.", (name,)
        )
    scope = scope_of(deployment, name)
    if not tool.SEVERAL and scope != "server":
        raise FleetError(
            "measure.one-url",
            "benchmark.profiles.%s: %s takes one address, and scope is %s; allowed: server. Each server is a "
            "point of its own then; another tool takes several at once.",
            (name, tool.NAME, scope),
        )
    _check_tool(name, profile, tool)
    groups = [[entry] for entry in answering] if scope == "server" else [answering]
    if tool.OWN_ENGINE:  # the servers are alike, and each call stops them all
        groups = groups[:1]
    behind = [entry for entry in entries if entry not in answering and answering[0]["role"] == "frontend"]
    others = _reachable(name, answering[0], elsewhere) if scope == "fleet" else []
    found_elsewhere = [one["entry"] for one in elsewhere] if scope == "fleet" else []
    urls = {(one["entry"]["host"], one["entry"]["name"]): _url(one) for one in others}
    found = []
    for group in groups:
        contexts, most = _taken(deployment, [*group, *behind, *found_elsewhere])
        for level, concurrency in enumerate(_levels(profile, most, len(group) + len(others))):
            point = _point(profile, deployment, group, others, concurrency)
            if tool.OWN_ENGINE:
                engine = ENGINES[group[0]["engine"]]
                point["engine_arguments"] = tool.engine_arguments(group[0], engine, point["tokenizer"])
            _check(name, profile, point, contexts, most)
            one = {
                "label": _label(profile, point, group, scope),
                "scope": scope,
                "profile": name,
                "servers": group + behind,
                "beside": [entry for entry in entries if entry not in group] if tool.OWN_ENGINE else [],
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


def _levels(profile, most, servers=1):
    """Numbers of concurrency, one for each point. most: requests that the servers answer at once, None: not known."""
    given = profile.get("concurrency")
    levels = given if isinstance(given, list) else [given]
    if profile.get("per_server"):
        levels = [one and one * servers for one in levels]
    if profile.get("up_to_full") and most and levels != [None]:
        levels = [*(one for one in levels if one < most), most]
    return levels


def _point(profile, deployment, group, others, concurrency):
    urls = [base_url(entry["bind"], entry["port"]) for entry in group]
    urls += [_url(one) for one in others]
    times = len(urls) if profile.get("per_server") else 1
    per_user = profile.get("requests_per_user") or REQUESTS_PER_USER
    rate = profile.get("request_rate")
    return {
        "tool": profile["tool"],
        "model": group[0]["model_id"],
        "tokenizer": deployment["model"]["path"],
        "urls": urls,
        "input_tokens": profile["input_tokens"],
        "output_tokens": profile["output_tokens"],
        "concurrency": concurrency,
        "request_rate": rate and rate * times,
        "requests": profile["requests"] * times if profile.get("requests") else per_user * (concurrency or 1),
        "warmup_requests": profile.get("warmup_requests", 0),
        "seed": profile.get("seed", 0),
        "endpoint": profile.get("endpoint", "/v1/chat/completions"),
        "ignore_eos": profile.get("ignore_eos", True),
        "server_token_count": profile.get("server_token_count", True),
        "sampling": profile.get("sampling") or {},
        "arguments": list(profile.get("arguments") or ()),
        "limits": _limits(profile.get("limits")),
        "timeout_s": profile.get("timeout_s", 3600),
    }


def _url(one):
    return base_url(one["address"], one["entry"]["port"])


def _limits(given):
    return {"ttft_ms": given.get("ttft_ms"), "tpot_ms": given.get("tpot_ms")} if given else None


def _label(profile, point, group, scope):
    load = "%d at once" % point["concurrency"] if point["concurrency"] else "all at once"
    if point["request_rate"]:
        load = "%g/s" % point["request_rate"]
    return "%s, %s, %s" % (profile["tool"], group[0]["name"] if scope == "server" else scope, load)


def _check_tool(name, profile, tool):
    """What a tool cannot be told, which it would leave out without a word."""
    levels, sampling = profile.get("concurrency"), getattr(tool, "SAMPLING", None)
    for key, given, takes, instead in (
        ("concurrency", None in (levels if isinstance(levels, list) else [levels]), not tool.NEEDS_CONCURRENCY,
         "a number: this tool has no other load"),
        ("request_rate", profile.get("request_rate"), tool.TAKES_RATE, "null: this tool's load is concurrency alone"),
        ("limits", profile.get("limits"), tool.TAKES_LIMITS, "null: this tool counts no goodput"),
        ("warmup_requests", profile.get("warmup_requests"), tool.TAKES_WARMUP, "0: this tool has no warm-up"),
        ("sampling", set(profile.get("sampling") or ()) - set(sampling or ()), sampling is None,
         ", ".join(sampling or ()) or "null: this tool sends no requests"),
    ):  # fmt: skip
        if given and not takes:
            raise FleetError(
                "measure.not-of-this-tool",
                "benchmark.profiles.%s.%s is %s, and the tool is %s; allowed: %s. Change it, or choose another tool.",
                (name, key, show(profile.get(key)), tool.NAME, instead),
            )


def _taken(deployment, entries):
    """([(context, whether answers count to it)], requests that are answered at once or None) of servers together.

    A frontend takes what its workers do, and what that is is not known where they are on other hosts.
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
    """What the servers cannot take is a mistake before they are asked."""
    problems = []
    overhead = OVERHEAD if "chat" in point["endpoint"] else 0
    for context, answers in sorted(contexts):
        output = point["output_tokens"] if answers else 0
        wanted = point["input_tokens"] + output + overhead
        if wanted > context:
            problems.append(
                FleetError(
                    "measure.too-long",
                    "benchmark.profiles.%s: %d tokens of input, %d of output and up to %d of the chat template are %d, "
                    "and the servers' context is %d. Lower input_tokens or output_tokens.",
                    (name, point["input_tokens"], output, overhead, wanted, context),
                )
            )
            break
    if point["concurrency"] and most and point["concurrency"] > most and not profile.get("queue"):
        problems.append(
            FleetError(
                "measure.too-many-at-once",
                "benchmark.profiles.%s: concurrency is %d, and the measured servers take %d at once; the rest would "
                "wait in a queue. Lower it, or set queue: true where that is meant.",
                (name, point["concurrency"], most),
            )
        )
    if problems:
        raise FleetError.together(problems)


def scope_of(deployment, name=None):
    """The scope of a profile as points() takes it. Raises FleetError."""
    profile = profile_of(deployment, name)[1]
    return profile.get("scope") or ("node" if TOOLS[profile["tool"]].SEVERAL else "server")


def elsewhere_of(entries, variables_of):
    """[{host, address, entry}] of plan entries of other hosts. variables_of: {host: its variables}.

    The address is the one that a server listens on; of one that listens on all, that which its host declares.
    """
    found = []
    for entry in entries:
        bind = entry["bind"]
        if bind in WILDCARDS:
            bind = address_of(entry["host"], variables_of[entry["host"]])
        found.append({"host": entry["host"], "address": bind, "entry": entry})
    return found


def _reachable(name, first, elsewhere):
    """Those of other hosts that are asked."""
    asked = [one for one in elsewhere if one["entry"]["role"] in ANSWERING and one["entry"]["port"]]
    for one in asked:
        entry = one["entry"]
        if entry["bind"].startswith(LOOPBACK):
            raise FleetError(
                "measure.not-reachable",
                "benchmark.profiles.%s: scope is fleet, and %s of %s listens on %s, where other hosts cannot reach it. "
                "Set fleet_bind_address, or use scope: node.",
                (name, entry["name"], entry["host"], entry["bind"]),
            )
        if entry["model_id"] != first["model_id"]:
            raise FleetError(
                "measure.another-model",
                "benchmark.profiles.%s: scope is fleet, and %s of %s serves %s, but %s of %s serves %s; allowed: one "
                "model. Take the hosts of one with fleet_play_hosts or --limit.",
                (name, entry["name"], entry["host"], entry["model_id"], first["name"], first["host"],
                 first["model_id"]),
            )  # fmt: skip
    return asked
