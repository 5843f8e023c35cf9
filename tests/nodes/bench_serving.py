# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for TensorRT-LLM's benchmark_serving and for `vllm bench`: their flags, output and result files.

Requests are real, but small and not streamed, and lengths are not measured. Each call is a line in `bench-calls` of the
working directory: the process, the concurrency. A call waits while `bench-hold` contains its concurrency.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
import sys
import time
import urllib.request

NUMBERS = {
    "max-concurrency": int, "num-prompts": int, "request-rate": float, "burstiness": float, "seed": int,
    "random-input-len": int, "random-output-len": int, "random-range-ratio": float, "random-prefix-len": int,
    "temperature": float, "top-k": int, "top-p": float, "min-p": float, "logprobs": int, "port": int,
}  # fmt: skip
STRINGS = (
    "model", "backend", "base-url", "host", "endpoint", "dataset-name", "dataset-path", "tokenizer", "metadata",
    "result-dir", "result-filename", "percentile-metrics", "metric-percentiles", "served-model-name",
)  # fmt: skip
SWITCHES = ("ignore-eos", "save-result", "save-detailed", "disable-tqdm", "profile", "trust-remote-code")
# What only one of the two programs has.
TENSORRT_LLM = ("random-ids", "tokenize-on-client", "no-test-input")
VLLM = {"num-warmups": int, "ready-check-timeout-sec": int, "frequency-penalty": float, "presence-penalty": float,
        "repetition-penalty": float}  # fmt: skip
SHARES = (50, 90, 95, 99)


def serving_parser(program, numbers, switches):
    """Return the parser of a program that sends load to a server. Abbreviations are allowed, as in both programs."""
    parser = argparse.ArgumentParser(prog=program)
    for name, kind in {**NUMBERS, **numbers}.items():
        parser.add_argument("--" + name, type=kind)
    for name in STRINGS:
        parser.add_argument("--" + name)
    for name in (*SWITCHES, *switches):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--goodput", nargs="+")
    return parser


def noted(concurrency):
    """Write down the call, and wait while it is held."""
    with open("bench-calls", "a", encoding="utf-8") as stream:
        stream.write("%d %s\n" % (os.getpid(), concurrency))
    while os.path.exists("bench-hold"):
        with open("bench-hold", encoding="utf-8") as stream:
            if stream.read().strip() != str(concurrency):
                return
        time.sleep(0.1)


def send(url, body):
    """Return the seconds of a request, None if it failed."""
    began = time.monotonic()
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    except OSError:
        return None
    return time.monotonic() - began


def serve(options):
    """Send the load; print and write what the programs do. Return the exit status, 0 even if requests fail."""
    noted(options.max_concurrency)
    base = options.base_url or "http://%s:%d" % (options.host, options.port)
    body = {"model": options.served_model_name or options.model, "max_tokens": options.random_output_len}
    body.update({"prompt": "x"} if "chat" not in options.endpoint else {"messages": [{"role": "user", "content": "x"}]})
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.max_concurrency or options.num_prompts) as pool:
        times = list(pool.map(lambda _number: send(base + options.endpoint, body), range(options.num_prompts)))
    duration, came = time.monotonic() - began, [1000 * one for one in times if one is not None]
    tokens = (len(came) * options.random_input_len, len(came) * options.random_output_len)
    document = {
        "backend": options.backend, "model_id": options.model, "num_prompts": options.num_prompts,
        "max_concurrency": options.max_concurrency, "duration": duration, "completed": len(came),
        "total_input_tokens": tokens[0], "total_output_tokens": tokens[1], "request_throughput": len(came) / duration,
        "output_throughput": tokens[1] / duration, "total_token_throughput": sum(tokens) / duration,
    }  # fmt: skip
    shares = statistics.quantiles(came * 2, n=100, method="inclusive") if came else [0.0] * 99
    for name in ("ttft", "tpot", "itl", "e2el"):
        document["mean_%s_ms" % name] = statistics.mean(came or [0])
        document["median_%s_ms" % name] = statistics.median(came or [0])
        document.update(("p%d_%s_ms" % (one, name), shares[one - 1]) for one in SHARES)
    if "vllm" in options.program:
        document["failed"] = len(times) - len(came)
    print("============ Serving Benchmark Result ============")
    print("Successful requests:                     %d" % len(came))
    print("Benchmark duration (s):                  %.2f" % duration)
    print("==================================================", flush=True)
    if options.save_result:
        with open(os.path.join(options.result_dir, options.result_filename), "w", encoding="utf-8") as stream:
            json.dump(document, stream)
    return 0


def main(words):
    """TensorRT-LLM's program."""
    program = "tensorrt_llm.serve.scripts.benchmark_serving"
    options = serving_parser(program, {}, TENSORRT_LLM).parse_args(words, argparse.Namespace(program=program))
    return serve(options)


def vllm(words):
    """`vllm bench serve`; the other subcommands are the engine's."""
    program = "vllm bench serve"
    options = serving_parser(program, VLLM, ()).parse_args(words, argparse.Namespace(program=program))
    return serve(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
