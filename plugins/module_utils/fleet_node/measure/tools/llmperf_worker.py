# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs LLMPerf with the Neuron SDK's patches, and fixes at run time what they leave:

- the given tokenizer is used for everything, by AutoTokenizer; if the tool is imported offline, its own default ends it
  or is empty
- `reasoning` counts as a token, as `reasoning_content` does
- each client starts at another address; otherwise all would send requests to the same server at the same time
- the environment, which contains the API key, is in no argument and no log of Ray's processes
- a failed request and an answer of one token are recorded, and do not end the thread that sends the next requests

The interpreter of the tool's environment runs it: python PROGRAM work
measure.tools.llmperf_worker SCRIPT and the tool's own options. OPENAI_API_BASE contains the addresses, separated by
";".
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import sys
import time

PARTS = ("content", "reasoning_content", "reasoning")
TIMEOUT = (10, 180)  # seconds to connect, and between two parts of an answer
MESSAGE = 300


def main():
    """The tool's main program with its surroundings replaced."""
    script = sys.argv[1]
    sys.argv[:2] = [script]
    with open(script, encoding="utf-8") as stream:
        if "--tokenizer" not in stream.read():
            raise SystemExit("%s is without the Neuron SDK's patches: it has no --tokenizer." % script)
    import transformers  # here: they are in the tool's environment only

    path = sys.argv[sys.argv.index("--tokenizer") + 1]
    transformers.LlamaTokenizerFast = one_tokenizer(transformers.AutoTokenizer, path)
    import llmperf.common
    import ray
    from llmperf.ray_llm_client import LLMClient

    ray.init = without_environment(ray.init)
    llmperf.common.OpenAIChatCompletionsClient = Clients(ray.remote(actor(LLMClient)))
    runpy.run_path(script, run_name="__main__")


def without_environment(init):
    """ray.init() without the environment: its processes have it anyway, and would also have it, with the API key, in
    their arguments and logs."""

    def begin(**_given):
        return init(include_dashboard=False)

    return begin


def one_tokenizer(loader, path):
    """A class that returns this tokenizer for every name."""

    class Tokenizer:
        """The part of LlamaTokenizerFast that the tool uses."""

        @staticmethod
        def from_pretrained(name, *given, **more):
            """The tokenizer, whatever is asked for."""
            return loader.from_pretrained(path)

    return Tokenizer


class Clients:
    """Makes clients, each of which starts at the next address."""

    def __init__(self, remote):
        self.made, self.numbers = remote, itertools.count()

    def remote(self):
        """A new client."""
        return self.made.remote(next(self.numbers))


def actor(base):
    """The class of a client. It is made here so that Ray sends its definition and looks for no module."""
    parts, limits, longest = PARTS, TIMEOUT, MESSAGE

    class Client(base):
        """Sends one request at a time, to one address after another."""

        def __init__(self, number):
            self.number = number

        def llm_request(self, request_config):
            """(metrics, text, request_config) as the tool expects them."""
            import numpy
            import requests

            prompt, length = request_config.prompt
            addresses = [one for one in os.environ["OPENAI_API_BASE"].split(";") if one]
            address = addresses[self.number % len(addresses)].rstrip("/") + "/chat/completions"
            self.number += 1
            body = {
                "model": request_config.model,
                "messages": [{"role": "system", "content": ""}, {"role": "user", "content": prompt}],
                "stream": True,
                **(request_config.sampling_params or {}),
            }
            headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
            text, gaps, first, code, message = "", 0.0, 0.0, None, ""
            began = last = time.monotonic()
            try:
                with requests.post(address, json=body, headers=headers, stream=True, timeout=limits) as response:
                    if response.status_code != 200:
                        code = response.status_code
                        raise RuntimeError(response.text)
                    for line in response.iter_lines(chunk_size=None):
                        line = line.strip()
                        if not line.startswith(b"data: ") or line == b"data: [DONE]":
                            continue
                        data = json.loads(line[len(b"data: ") :])
                        if "error" in data:
                            code = data["error"].get("code")
                            raise RuntimeError(data["error"].get("message"))
                        delta = (data.get("choices") or [{}])[0].get("delta") or {}
                        part = next((delta[name] for name in parts if delta.get(name)), None)
                        if part is None:
                            continue
                        now = time.monotonic()
                        if first:
                            gaps += now - last
                        else:
                            first = now - began
                        last, text = now, text + part
                if not text:
                    raise RuntimeError("the answer was empty")
            except Exception as error:  # any exception is a failed request
                code, message = code or -1, " ".join(str(error).split())[:longest]
                sys.stdout.write("Request failed: %s %s\n" % (code, message))
            seconds = max(time.monotonic() - began, 1e-6)
            # a numpy number divides by 0 without an error, and the tool omits the result
            metrics = {
                "error_code": code, "error_msg": message, "inter_token_latency_s": numpy.float64(gaps),
                "ttft_s": first, "end_to_end_latency_s": seconds, "request_output_throughput_token_per_s": 0,
                "number_total_tokens": length, "number_output_tokens": 0, "number_input_tokens": length,
            }  # fmt: skip
            return metrics, text, request_config

    return Client
