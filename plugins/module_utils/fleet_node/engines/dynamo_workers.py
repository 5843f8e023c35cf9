# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Dynamo frontend and its workers report about disaggregated serving: instances and request counters."""

from __future__ import annotations

import re

from ..host import values

REQUESTS = "dynamo_component_requests_total"
MOVED = "vllm:nixl_bytes_transferred_sum"
ROLES = ("prefill", "decode")
_REQUESTS = re.compile(r"^%s(?:\{([^}]*)\})?\s+([0-9.eE+-]+)\s*$" % REQUESTS, re.MULTILINE)
_MOVED = re.compile(r"^%s(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$" % MOVED, re.MULTILINE)


def count_instances(health):
    """{"prefill": n, "decode": n} registered, from the body of a frontend's /health (Dynamo 0.5 to 1.6).

    Instances differ by component and id; only `generate` endpoints serve. The name of the decode component changes
    with the version (tensorrt_llm, backend), so every other component than prefill is decode. For a body without
    instances, its endpoints are counted: dyn://namespace.component.endpoint.
    """
    seen = {role: set() for role in ROLES}
    instances = values.items_of(values.dig(health, "instances"))
    for number, instance in enumerate(instances):
        if instance.get("endpoint") == "generate":
            role = "prefill" if "prefill" in values.text_of(instance.get("component")) else "decode"
            seen[role].add((instance.get("component"), str(instance.get("instance_id", number))))
    if not instances:
        endpoints = values.dig(health, "endpoints")
        for name in endpoints if isinstance(endpoints, list) else []:
            if isinstance(name, str) and name.endswith(".generate"):
                seen["prefill" if "prefill" in name else "decode"].add(name)
    return {role: len(found) for role, found in seen.items()}


def request_count(metrics):
    """Requests that a worker's generate endpoint has handled, from the content of its /metrics.

    0 if the worker has Dynamo's metrics but not yet this counter; None if it has none of Dynamo's metrics.
    """
    samples = [(labels or "", float(value)) for labels, value in _REQUESTS.findall(metrics)]
    if not samples:
        return 0 if "dynamo_component_" in metrics else None
    serving = [value for labels, value in samples if "dynamo_endpoint" not in labels or '"generate"' in labels]
    return int(sum(serving))


def bytes_moved(metrics):
    """Bytes of KV cache that a worker has fetched from others with NIXL, from the content of its /metrics.

    None if it does not count them: another connector or engine, or a version without this metric.
    """
    found = [float(value) for value in _MOVED.findall(metrics)]
    return int(sum(found)) if found else None
