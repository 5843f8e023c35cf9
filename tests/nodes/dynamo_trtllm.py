# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the engine of a `python3 -m dynamo.trtllm` worker; in an image it is dynamo/trtllm/__main__.py.

Real are Dynamo's package of the image's version with the worker's parser of arguments, its runtime and registration,
and the frontend. The engine is as strict as the release in TENSORRT_LLM_VERSION: keys and values of the YAML, which
wins over the flags, and GPUs, which are opened and held. A decode worker refuses a KV cache of other blocks, another
type or another transceiver. Answers are those of the scripted engine, in tokens of harmony. It proves nothing about
TensorRT-LLM, its memory or its transfers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import types

import scripted_engine
import trtllm_serve
import uvloop
import yaml
from dynamo.common.utils.endpoint_types import parse_endpoint_types
from dynamo.common.utils.graceful_shutdown import install_signal_handlers
from dynamo.common.utils.runtime import create_runtime
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, register_model
from dynamo.runtime.logging import configure_dynamo_logging
from dynamo.trtllm.args import parse_args
from dynamo.trtllm.health_check import TrtllmHealthCheckPayload
from tensorrt_llm.llmapi import llm_args
from tokenizers import Tokenizer

NOT_ENABLED = "Disaggregated serving is not enabled, please check the configuration of cacheTransceiverConfig."
OTHER_CACHE = (  # cpp/tensorrt_llm/batch_manager/dataTransceiver.cpp
    "Disagg server does not currently support these cacheState, please check the cacheState of the context and gen "
    "executors"
)
ENDS = ("<|return|>", "<|call|>", "<|endoftext|>")
DECLARED = re.compile(r"^type (\w+) = \(", re.MULTILINE)
SAID = re.compile(r"<\|start\|>(.*?)<\|message\|>(.*?)(?:<\|end\|>|<\|call\|>)", re.DOTALL)


SAME_NAMES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_num_tokens",
    "enable_attention_dp",
    "max_seq_len",
    "max_beam_width",
    "max_batch_size",
)


def settings_of(config):
    """What the engine runs with: the file over the flags. Raises ValueError as pydantic does."""
    flags = {
        "model": config.model,
        "kv_cache_config": {"free_gpu_memory_fraction": config.free_gpu_memory_fraction},
        "moe_expert_parallel_size": config.expert_parallel_size,
        **{name: getattr(config, name) for name in SAME_NAMES},
    }
    given = {}
    if config.extra_engine_args:
        with open(config.extra_engine_args, encoding="utf-8") as stream:
            given = yaml.safe_load(stream) or {}
    cache = {**flags["kv_cache_config"], **(given.get("kv_cache_config") or {})}
    flags = {name: value for name, value in flags.items() if value is not None}
    return llm_args.TorchLlmArgs(**{**flags, **given, "kv_cache_config": cache}).given


def conversation_of(prompt):
    """The body of the chat request that a template of harmony made this prompt of."""
    body = {"messages": []}
    for header, content in SAID.findall(prompt):
        role, call = header.split("<|channel|>")[0].strip(), re.search(r"to=functions\.(\w+)", header)
        if role == "system":
            body["reasoning_effort"] = re.search(r"Reasoning: (\w+)", content).group(1)
        elif role == "developer":
            instructions, _title, declared = content.partition("# Tools\n")
            text = instructions.partition("# Instructions\n\n")[2].strip()
            body["messages"] += [{"role": "system", "content": text}] if text else []
            body["tools"] = [{"function": {"name": name}} for name in DECLARED.findall(declared)]
        elif role.startswith("assistant") and call:
            function = {"name": call.group(1), "arguments": content}
            body["messages"].append({"role": "assistant", "tool_calls": [{"id": "call-1", "function": function}]})
        elif role.startswith("functions."):
            body["messages"].append({"role": "tool", "content": content})
        else:
            body["messages"].append({"role": role, "content": content})
    return body


def guided_call(schema, function):
    """A call as the frontend's JSON schema for a choice of a tool has it: its arguments, or a list of calls."""
    arguments = json.loads(function["arguments"])
    calls = [{"name": function["name"], "parameters": arguments}]
    return json.dumps(calls if schema.get("type") == "array" else arguments)


class Writer(scripted_engine._Handler):
    """The scripted engine's answers without its server."""

    def __init__(self, engine):
        self.server = types.SimpleNamespace(engine=engine)

    def write(self, prompt, guided):
        """The rest of the prompt, in harmony. guided: the JSON schema of the request's answer, or None; how
        TensorRT-LLM writes then is not known."""
        body = conversation_of(prompt)
        if re.search(r"\d\*\d", scripted_engine.question_of(body)):
            body.pop("tools", None)  # a sum needs none, and a prompt does not contain the choice of a tool
        message, _finish = self.answer(body)
        text = "<|channel|>analysis<|message|>%s<|end|><|start|>assistant" % message["reasoning_content"]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            if guided:
                return text + "<|channel|>final<|message|>%s<|return|>" % guided_call(guided, function)
            return text + "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>" % (
                function["name"], function["arguments"])  # fmt: skip
        return text + "<|channel|>final<|message|>%s<|return|>" % message["content"]


class Worker:
    """A prefill, decode or aggregated worker. settings: of settings_of()."""

    def __init__(self, config, settings):
        self.mode, self.settings = config.disaggregation_mode.value, settings
        self.tokenizer = Tokenizer.from_file(os.path.join(config.model, "tokenizer.json"))
        self.ends = {self.tokenizer.token_to_id(end) for end in ENDS}
        self.interval = settings.get("stream_interval") or 1
        engine = scripted_engine.ScriptedEngine(reasoning_field="reasoning_content", effort="reasoning_effort")
        self.writer = Writer(engine)
        cache, transceiver = settings["kv_cache_config"], settings.get("cache_transceiver_config") or {}
        self.layout = {"tokens_per_block": cache.get("tokens_per_block", 32), "dtype": cache.get("dtype", "auto"),
                       "backend": transceiver.get("backend")}  # fmt: skip

    def refusal(self, request):
        """Why the request cannot be served, or None."""
        if self.mode == "prefill_and_decode":
            return None
        if not self.layout["backend"]:
            return NOT_ENABLED
        if self.mode == "decode":
            came = ((request.get("prefill_result") or {}).get("disaggregated_params") or {}).get("opaque_state")
            if not came:
                return "Disaggregated params are required for decode mode"
            if json.loads(came) != self.layout:
                return OTHER_CACHE
        return None

    async def generate(self, request, context=None):
        """Yield parts of an answer, as HandlerBase.generate_locally of Dynamo does."""
        wrong = self.refusal(request)
        if wrong and len(request["token_ids"]) > 1:  # of one token are the runtime's own health checks
            yield {"finish_reason": {"error": wrong}, "token_ids": []}
            return
        prompt = self.tokenizer.decode(request["token_ids"], skip_special_tokens=False)
        limits = request.get("stop_conditions") or {}
        guided = ((request.get("sampling_options") or {}).get("guided_decoding") or {}).get("json")
        text = self.writer.write(prompt, guided) if "<|message|>" in prompt else "391"
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        most = 1 if self.mode == "prefill" else limits.get("max_tokens") or len(tokens)
        if limits.get("ignore_eos") or limits.get("min_tokens"):
            wanted = most if limits.get("ignore_eos") else limits["min_tokens"]
            filling = [token for token in tokens if token not in self.ends]
            tokens = (filling + filling[-1:] * wanted)[:wanted]
        finish = "stop" if len(tokens) <= most and self.mode != "prefill" else "length"
        tokens = tokens[:most]
        # the first token, then those up to each multiple of stream_interval
        ends = sorted({1, *range(self.interval, len(tokens), self.interval), len(tokens)})
        for begin, end in zip((0, *ends), ends):
            part = {"token_ids": tokens[begin:end]}
            if end == len(tokens):
                part["finish_reason"] = finish
                used = len(request["token_ids"])
                part["completion_usage"] = {"prompt_tokens": used, "completion_tokens": len(tokens),
                                            "total_tokens": used + len(tokens)}  # fmt: skip
                if self.mode == "prefill":
                    part["disaggregated_params"] = {"opaque_state": json.dumps(self.layout)}
            yield part
            await asyncio.sleep(0)


async def register(config, endpoint):
    """As llm_worker.py of Dynamo's version does."""
    runtime_config, more = ModelRuntimeConfig(), {}
    runtime_config.max_num_seqs, runtime_config.max_num_batched_tokens = config.max_batch_size, config.max_num_tokens
    runtime_config.reasoning_parser = config.dyn_reasoning_parser
    runtime_config.tool_call_parser = config.dyn_tool_call_parser
    prefill = config.disaggregation_mode.value == "prefill"
    if config.disaggregation_mode.value != "prefill_and_decode":
        try:
            from dynamo.llm import WorkerType
        except ImportError:  # before 1.3 the type of the model is enough
            pass
        else:
            kinds = (WorkerType.Prefill, WorkerType.Decode) if prefill else (WorkerType.Decode, WorkerType.Prefill)
            more = {"worker_type": kinds[0], "needs": [[kinds[1]]]}
    await register_model(
        ModelInput.Tokens, ModelType.Prefill if prefill else parse_endpoint_types(config.endpoint_types), endpoint,
        config.model, config.served_model_name, kv_cache_block_size=config.kv_block_size,
        runtime_config=runtime_config, **more,
    )  # fmt: skip


async def work():
    config = parse_args()
    settings = settings_of(config)
    sizes = [settings.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    held = trtllm_serve.take_gpus(sizes[0] * sizes[1])
    effective = {"mode": config.disaggregation_mode.value, "settings": settings, "gpus": held}
    print("dynamo.trtllm with TensorRT-LLM %s: %s" % (trtllm_serve.VERSION, json.dumps(effective, sort_keys=True)),
          flush=True)  # fmt: skip
    worker = Worker(config, settings)
    time.sleep(trtllm_serve.LOADING_S)
    runtime, loop = create_runtime(config.discovery_backend, config.request_plane, config.event_plane, False)
    endpoint = runtime.endpoint("%s.%s.%s" % (config.namespace, config.component, config.endpoint))
    install_signal_handlers(loop, runtime, [endpoint], asyncio.Event())  # unregisters at SIGTERM
    await register(config, endpoint)
    await endpoint.serve_endpoint(worker.generate, health_check_payload=TrtllmHealthCheckPayload().to_dict())


if __name__ == "__main__":
    configure_dynamo_logging()
    uvloop.run(work())
