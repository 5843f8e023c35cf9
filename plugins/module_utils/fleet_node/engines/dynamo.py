# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: the causes behind the answers of its frontend."""

from __future__ import annotations

import re
import sys

from ..host import values
from ..model import gpt_oss
from . import base, nixl_waits, stays_registered, text_only, trtllm, vllm

TOOL_CALL_PARSER = "--dyn-tool-call-parser " + gpt_oss.TOOL_CALL_PARSERS["dynamo"]
REASONING_PARSER = "--dyn-reasoning-parser " + gpt_oss.REASONING_PARSERS["dynamo"]
# Its parsers only warn then, and since 1.6 the frontend removes what they leave of the format.
NO_VOCABULARY = "the frontend has no %s where %s points" % (gpt_oss.VOCABULARY_FILE, gpt_oss.VOCABULARY_VARIABLE)

# The parsers of Dynamo's programs. From TensorRT-LLM they need only the defaults of four flags.
PARSE = (
    vllm.AS_CPU
    + """

def parser_of(program):
    if program == "dynamo.vllm":
        from dynamo.vllm import args

        return args._parse_cli_args if hasattr(args, "_parse_cli_args") else args.parse_args
    if program == "dynamo.trtllm":
        import pydantic

        class BuildConfig(pydantic.BaseModel):
            max_batch_size: int = 2048
            max_num_tokens: int = 8192
            max_seq_len: int = None
            max_beam_width: int = 1

        package, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")
        package.llmapi, llmapi.BuildConfig = llmapi, BuildConfig
        sys.modules.update({"tensorrt_llm": package, "tensorrt_llm.llmapi": llmapi})
        from dynamo.trtllm import args

        return args.parse_args
    from dynamo.frontend import main

    return lambda words: main.parse_args()


def prepare(one):
    parse = parser_of(one["program"])
    sys.argv = [one["program"], *one["words"]]
    return lambda: parse(one["words"])


judge(prepare, ValueError)
os._exit(0)
"""
)
PROGRAMS = ("dynamo.frontend", "dynamo.vllm", "dynamo.trtllm")
# What workers of a deployment have in common: the model, the engine's version, the KV cache and how it moves.
ARGUMENTS = ("block-size", "kv-cache-dtype", "kv-transfer-config", "connector", "disaggregation-mode", "model",
             "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-prefix-caching",
             "disable-hybrid-kv-cache-manager", "quantization", "dtype")  # fmt: skip


class Dynamo(base.Engine):
    name = "dynamo"
    modules = tuple((module.MODULE, module) for module in (text_only, nixl_waits, stays_registered))
    streamed_call_ends = ("tool_calls",)
    same_call_ids = True  # call-1 in each answer
    batch = "max-num-seqs"  # of its workers with vLLM
    workers = sys.modules[__name__]
    counted = ("dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests",
               "dynamo_component_inflight_requests")  # fmt: skip
    residue = "%s tokens reach the client: the workers were started without `%s %s`, or without %s in %s" % (
        gpt_oss.FORMAT,
        REASONING_PARSER,
        TOOL_CALL_PARSER,
        gpt_oss.VOCABULARY_FILE,
        gpt_oss.VOCABULARY_VARIABLE,
    )
    no_models = (
        "no model is listed (`data: []`): no decode worker has registered, a prefill worker is missing, or the "
        "frontend cannot load the model's files (see its log)"
    )
    dropped_tool_call = "the workers were started without `%s`; or, where no reasoning comes either, %s" % (
        TOOL_CALL_PARSER,
        NO_VOCABULARY,
    )
    no_reasoning = "the workers were started without `%s`; or, where no tool call comes either, %s" % (
        REASONING_PARSER,
        NO_VOCABULARY,
    )
    config_verdict = trtllm.ENGINE.config_verdict  # messages of pydantic in one line; others unchanged
    http = (
        (
            r"(?i)no instances found|no responders|no endpoints available|is not ready to serve requests",
            "the frontend lists the model but no worker answers for it: a worker is gone or not ready",
        ),
        (
            r"Disaggregated params are required",
            "the frontend sends requests to decode workers without prefill: no prefill worker is registered, or the "
            "frontend did not find it again after all decode workers were away (dynamo#8965, seen with Dynamo 1.0.0); "
            "restart the frontend, which fleet_watchdog does",
        ),
    )

    def shared_folder(self, entry):
        environment = entry["environment"]
        return environment.get("DYN_FILE_KV") if environment.get("DYN_DISCOVERY_BACKEND") == "file" else None

    def inner(self, entry):
        """A worker's log is that of the engine in it."""
        engines = {"dynamo.trtllm": trtllm.ENGINE, "dynamo.vllm": vllm.ENGINE}
        return next((engine for program, engine in engines.items() if program in entry["command"]), self)

    def config_check(self, entry):
        """A worker's file is that of the engine in it; of those only TensorRT-LLM has one."""
        inner = self.inner(entry)
        return None if inner is self else inner.config_check(entry)

    def command_check(self, entry, config):
        words = entry["command"]
        program = next((word for word in words if word in PROGRAMS), None)
        return program and (PARSE, {"program": program, "words": words[words.index(program) + 1 :]})

    def changes_together(self, before, after):
        """Prefill and decode workers read each other's KV cache, so its layout and its transport must be the same. A
        new frontend answers only with all workers."""
        return before is None or (after["role"] in ROLES and _layout(before) != _layout(after))


def _layout(entry):
    arguments, container = entry.get("arguments") or {}, entry.get("container") or {}
    return [
        (entry.get("command") or [None])[0],  # its environment has the versions in its path
        *(container.get(key) for key in ("image", "digest")),
        *(entry.get(key) for key in ("config", "weights", "model_id")),
        *(arguments.get(key) for key in ARGUMENTS),
    ]


# ---- instances and request counters of a frontend and its workers


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


ENGINE = Dynamo()
