# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for trtllm-serve, as strict as the release in TENSORRT_LLM_VERSION, around the scripted engine.

Flags and keys of the YAML are those of trtllm_fields.json. The YAML goes over the flags. It takes the GPUs whose device
files are there, each for itself; its port is bound before it is ready, with 503 meanwhile; it fetches the vocabulary at
the first chat; a streamed tool call ends with the reason "stop". It proves nothing about TensorRT-LLM.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import sys
import threading
import time

import scripted_engine
import yaml
from tensorrt_llm.llmapi import llm_args

VERSION = os.environ["TENSORRT_LLM_VERSION"]
LOADING_S = 2
FILES = ("extra_llm_api_options", "config")
# Flags that are fields of the YAML under another name.
FIELDS = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size", "ep_size": "moe_expert_parallel_size"}
SWITCHES = ("trust_remote_code", "enable_chunked_prefill")


def parse(words):
    """(model, {flag: value}); SystemExit 2 with click's words for what is no option."""
    known = {name.replace("-", "_") for name in llm_args.taken(llm_args.fields(), VERSION, "--")}
    options, model, words = {}, None, list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            model = word
            continue
        name, equals, value = word[2:].partition("=")
        if name.replace("-", "_") not in known or "-" in name:
            print("Usage: trtllm-serve serve [OPTIONS] MODEL\n\nError: No such option: --%s" % name, file=sys.stderr)
            raise SystemExit(2)
        options[name] = True if name in SWITCHES else value if equals else words.pop(0)
    return model, options


def take_gpus(wanted):
    """Open and hold each GPU of this container, of those in CUDA_VISIBLE_DEVICES where it is set, and return their
    numbers; SystemExit where one is held, or there are fewer than wanted."""
    numbers = sorted(int(path[len("/dev/nvidia") :]) for path in glob.glob("/dev/nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        numbers = [int(one) for one in chosen.split(",") if one and int(one) in numbers]
    for number in numbers:
        os.open("/dev/nvidia%d" % number, os.O_RDWR)
        # the node's folder: ipc is the host's
        held = os.open("/dev/shm/simulated-gpu-%d" % number, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit("torch.OutOfMemoryError: CUDA out of memory: another process has /dev/nvidia%d" % number
                             ) from None  # fmt: skip
    if len(numbers) < wanted:
        raise SystemExit("ValueError: world size %d is larger than the %d GPUs that are there" % (wanted, len(numbers)))
    return numbers


class VocabularyLater(frozenset):
    """Faults of the engine: those of before, and the missing vocabulary where it is not there when it is asked for."""

    def __contains__(self, fault):
        if fault == "vocab-missing":
            folder = os.environ.get("TIKTOKEN_ENCODINGS_BASE", "")
            return not os.path.exists(folder + "/o200k_base.tiktoken")
        return super().__contains__(fault)


def main(words):
    model, options = parse(words[1:] if words[:1] == ["serve"] else words)
    given = {}
    for name in FILES:
        if name in options:
            with open(options[name], encoding="utf-8") as stream:
                given = yaml.safe_load(stream) or {}
    flags = {FIELDS[name]: int(value) for name, value in options.items() if name in FIELDS}
    try:
        settings = llm_args.TorchLlmArgs(**{"model": model, **flags, **given}).given
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    sizes = [int(settings.get(name) or 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    gpus = take_gpus(sizes[0] * sizes[1])
    scripted_engine.PORTS = [int(options.get("port", 8000))]
    tool_stop = scripted_engine.Fault("finish", "stream tools", value="stop")
    engine = scripted_engine.ScriptedEngine(
        faults=["health-503", "engine-dead"], model=os.path.basename(model.rstrip("/")),
        reasoning_field="reasoning_content",
    )  # fmt: skip
    effective = json.dumps({"settings": settings, "version": VERSION, "gpus": len(gpus)}, sort_keys=True)
    engine.pages["/simulated"] = effective  # what it runs with, for tests
    print("trtllm-serve %s: %s" % (VERSION, effective), flush=True)
    with engine:
        time.sleep(LOADING_S)
        engine.faults = VocabularyLater([tool_stop])
        print("Application startup complete.", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
