# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a profile of a recipe's `benchmark` to points: one call of a tool each."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.measure.tools.registry import TOOLS
from ansible_collections.inference.fleet.plugins.module_utils.node.http_client import base_url
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import show

QUICK, GUIDE = "quick", "guide"
ANSWERING = ("server", "frontend")
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


def points(entries, deployment, name=None, elsewhere=()):
    """[{label, scope, profile, servers: [entries], elsewhere, point}] in the order in which they are run.

    servers: those that are asked, then the workers behind a frontend.

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
    scope = profile.get("scope") or ("node" if tool.SEVERAL else "server")
    if not tool.SEVERAL and scope != "server":
        raise FleetError(
            "measure.one-url",
            "benchmark.profiles.%s: %s takes one address, and scope is %s; allowed: server. Each server is a "
            "point of its own then; another tool takes several at once.",
            (name, tool.NAME, scope),
        )
    groups = [[entry] for entry in answering] if scope == "server" else [answering]
    behind = [entry for entry in entries if entry not in answering and answering[0]["role"] == "frontend"]
    others = _reachable(name, answering, elsewhere) if scope == "fleet" else []
    found = []
    for concurrency in _levels(profile):
        for group in groups:
            point = _point(profile, deployment, group, others, concurrency)
            _check(name, profile, point, group, len(others))
            found.append(
                {
                    "label": _label(profile, point, group, scope),
                    "scope": scope,
                    "profile": name,
                    "servers": group + behind,
                    "elsewhere": [{key: one["entry"][key] for key in ("host", "name", "hash")} for one in others],
                    "point": point,
                }
            )
    return found


def _levels(profile):
    given = profile.get("concurrency")
    return given if isinstance(given, list) else [given]


def _point(profile, deployment, group, others, concurrency):
    urls = [base_url(entry["bind"], entry["port"]) for entry in group]
    urls += [base_url(one["address"], one["entry"]["port"]) for one in others]
    per_user = profile.get("requests_per_user", REQUESTS_PER_USER)
    return {
        "tool": profile["tool"],
        "model": group[0]["model_id"],
        "tokenizer": deployment["model"]["path"],
        "urls": urls,
        "input_tokens": profile["input_tokens"],
        "output_tokens": profile["output_tokens"],
        "concurrency": concurrency,
        "request_rate": profile.get("request_rate"),
        "requests": profile.get("requests") or per_user * (concurrency or 1),
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


def _limits(given):
    return {"ttft_ms": given.get("ttft_ms"), "tpot_ms": given.get("tpot_ms")} if given else None


def _label(profile, point, group, scope):
    load = "%d at once" % point["concurrency"] if point["concurrency"] else "%g/s" % (point["request_rate"] or 0)
    return "%s, %s, %s" % (profile["tool"], group[0]["name"] if scope == "server" else scope, load)


def _check(name, profile, point, group, more):
    """What the servers cannot take is a mistake before they are asked."""
    problems = []
    taken = [ENGINES[entry["engine"]].takes(entry) for entry in group]
    context = min((one["context"] for one in taken if one["context"]), default=None)
    overhead = OVERHEAD if "chat" in point["endpoint"] else 0
    wanted = point["input_tokens"] + point["output_tokens"] + overhead
    if context and wanted > context:
        problems.append(
            FleetError(
                "measure.too-long",
                "benchmark.profiles.%s: %d tokens of input, %d of output and up to %d of the chat template are %d, and "
                "the servers' context is %d. Lower input_tokens or output_tokens.",
                (name, point["input_tokens"], point["output_tokens"], overhead, wanted, context),
            )
        )
    sequences = [one["sequences"] for one in taken if one["sequences"]]
    most = sum(sequences) + more * min(sequences, default=0)
    if (
        point["concurrency"]
        and len(sequences) == len(taken)
        and point["concurrency"] > most
        and not profile.get("queue")
    ):
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


def _reachable(name, answering, elsewhere):
    bound = [
        entry for entry in (*answering, *(one["entry"] for one in elsewhere)) if entry["bind"].startswith(LOOPBACK)
    ]
    if bound and elsewhere:
        raise FleetError(
            "measure.not-reachable",
            "benchmark.profiles.%s: scope is fleet, and %s of %s listens on %s, where other hosts cannot reach it. Set "
            "fleet_bind_address, or use scope: node.",
            (name, bound[0]["name"], bound[0]["host"], bound[0]["bind"]),
        )
    return [one for one in elsewhere if one["entry"]["role"] in ANSWERING and one["entry"]["port"]]
