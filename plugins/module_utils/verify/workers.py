# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Dynamo frontend and its workers tell about disaggregated serving: instances and request counters."""

from __future__ import annotations

import re

from ansible_collections.inference.fleet.plugins.module_utils.verify import chat

ROLES = ("prefill", "decode")
METRIC = "dynamo_component_requests_total"
MOVED = "vllm:nixl_bytes_transferred_sum"
LATE_S = 12  # a worker's counters follow up to 10 seconds later
_SAMPLE = re.compile(r"^%s(?:\{([^}]*)\})?\s+([0-9.eE+-]+)\s*$" % METRIC, re.MULTILINE)
_MOVED = re.compile(r"^%s(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$" % MOVED, re.MULTILINE)


def workers_of(entry, entries):
    """The prefill and decode workers in `entries` that a frontend is in front of; [] for any other role."""
    if entry["role"] != "frontend":
        return []
    return [other for other in entries if other["role"] in ROLES]


def count_instances(health):
    """{"prefill": n, "decode": n} registered, by the body of a frontend's /health (Dynamo 0.5 to 1.6).

    Instances differ by component and id; only `generate` endpoints serve. The decode component has another name
    with each version (tensorrt_llm, backend), so whatever is not prefill is decode. Bodies without instances count
    their endpoints, dyn://namespace.component.endpoint.
    """
    seen = {role: set() for role in ROLES}
    instances = chat.items_of(chat.dig(health, "instances"))
    for number, instance in enumerate(instances):
        if instance.get("endpoint") == "generate":
            role = "prefill" if "prefill" in chat.text_of(instance.get("component")) else "decode"
            seen[role].add((instance.get("component"), str(instance.get("instance_id", number))))
    if not instances:
        endpoints = chat.dig(health, "endpoints")
        for name in endpoints if isinstance(endpoints, list) else []:
            if isinstance(name, str) and name.endswith(".generate"):
                seen["prefill" if "prefill" in name else "decode"].add(name)
    return {role: len(found) for role, found in seen.items()}


def request_count(metrics):
    """Requests that a worker's generate endpoint has handled, by the text of its /metrics.

    0 where the worker has Dynamo's metrics but not this one yet; None where it has none of Dynamo's metrics.
    """
    samples = [(labels or "", float(value)) for labels, value in _SAMPLE.findall(metrics)]
    if not samples:
        return 0 if "dynamo_component_" in metrics else None
    serving = [value for labels, value in samples if "dynamo_endpoint" not in labels or '"generate"' in labels]
    return int(sum(serving))


def bytes_moved(metrics):
    """Bytes of KV cache that a worker has fetched from others with NIXL, by the text of its /metrics.

    None where it does not count them: another connector or engine, or a version without this metric.
    """
    found = [float(value) for value in _MOVED.findall(metrics)]
    return int(sum(found)) if found else None


class Seen:
    """What a worker's counters say: requests and moved, both None where they say nothing."""

    def __init__(self, metrics=""):
        self.requests = request_count(metrics)
        self.moved = bytes_moved(metrics)


def idle(before, after, roles):
    """Names of the workers of those roles of which none has handled a request between two looks ({name: Seen}): a
    router may well leave one of several alone. Workers that do not count are left out. roles: {name: role}."""
    known = [name for name in after if None not in (after[name].requests, before[name].requests)]
    busy = {roles[name] for name in known if after[name].requests > before[name].requests}
    return [name for name in known if roles[name] not in busy]


def still(before, after, fetching):
    """Names of those workers of `fetching` that have handled requests between two looks and moved no bytes, though
    they count them."""
    return [
        name for name in fetching
        if after[name].moved is not None and after[name].moved <= (before[name].moved or 0)
        and (after[name].requests or 0) > (before[name].requests or 0)
    ]  # fmt: skip
