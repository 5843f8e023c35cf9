# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for measuring tools, as wheels and as LLMPerf's source, for nodes that reach no package index.

The roles install them with the versions that they pin. Each stand-in accepts only its tool's options, sends real
requests and writes the tool's files, in the form of the recordings in tests/unit/fixtures/measure. It measures nothing.
"""

from __future__ import annotations

import hashlib
import io
import tarfile

from ansible_collections.inference.fleet.tests.nodes import package_indexes

# Requests of all stand-ins: the standard library, no streaming.
REQUESTS = '''
import json
import os
import time
import urllib.request


def ask(base, model, text, **more):
    """Return (seconds, answer, reasoning) of a chat completion."""
    began = time.monotonic()
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        message = json.loads(answer.read())["choices"][0]["message"]
    return time.monotonic() - began, message.get("content") or "", message.get("reasoning_content") or "-"
'''
AIPERF = """
import argparse
import itertools
import json
import os

import fleet_requests

VALUES = ("model", "tokenizer", "endpoint-type", "endpoint", "url-strategy", "synthetic-input-tokens-mean",
          "synthetic-input-tokens-stddev", "output-tokens-mean", "output-tokens-stddev", "concurrency", "request-rate",
          "request-count", "warmup-request-count", "random-seed", "goodput", "ui-type", "artifact-dir",
          "num-dataset-entries")


def main():
    parser = argparse.ArgumentParser(prog="aiperf", allow_abbrev=False)
    parser.add_argument("command", choices=["profile"])
    for name in VALUES:
        parser.add_argument("--" + name)
    for name in ("streaming", "use-server-token-count", "no-gpu-telemetry", "no-server-metrics"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--url", action="append")
    parser.add_argument("--extra-inputs", action="append")
    parser.add_argument("-H", action="append")
    given = parser.parse_args()
    urls, count = itertools.cycle(given.url), int(given.request_count)
    times = [1000 * fleet_requests.ask(next(urls) + "/v1", given.model, "x")[0] for _number in range(count)]
    found = {"avg": sum(times) / count, **dict.fromkeys(("p50", "p90", "p95", "p99"), max(times))}
    document = {"request_count": {"avg": float(count)}, "is_complete": True, "request_latency": found,
                "time_to_first_token": found, "output_token_throughput": {"avg": 1000 * count / sum(times)}}
    with open(os.path.join(given.artifact_dir, "profile_export_aiperf.json"), "w") as stream:
        json.dump(document, stream)
"""
EVALS_TYPES = """
class SamplerResponse:
    def __init__(self, response_text, response_metadata, actual_queried_message_list):
        self.response_text, self.actual_queried_message_list = response_text, actual_queried_message_list
"""
SAMPLER = """
import time

import fleet_requests
from gpt_oss.evals.types import SamplerResponse


class Client:
    def __init__(self, base_url):
        self.base_url = base_url

    def with_options(self, base_url):
        return Client(base_url)


class ChatCompletionsSampler:
    def __init__(self, model, reasoning_effort, temperature, base_url, max_tokens=131072):
        self.given = {"reasoning_effort": reasoning_effort, "temperature": temperature, "max_tokens": max_tokens}
        self.model, self.client = model, Client(base_url)

    def __call__(self, messages):
        url = str(self.client.base_url)
        _seconds, answer, _reasoning = fleet_requests.ask(url, self.model, messages[-1]["content"], **self.given)
        return SamplerResponse(answer, {"usage": None}, messages)
"""
EVALS = """
import argparse
import json
import time

import pandas
from gpt_oss.evals.chat_completions_sampler import ChatCompletionsSampler

URL = "https://openaipublic.blob.core.windows.net/simple-evals/gpqa_diamond.csv"
AIME = "https://huggingface.co/datasets/opencompass/AIME2025/raw/main/aime2025-I.jsonl"


class Eval:
    def __init__(self, n_repeats=8, num_examples=None):
        rows = self.rows()
        self.questions = (rows[:num_examples] if num_examples else rows) * n_repeats


class GPQAEval(Eval):
    def rows(self):
        return ["%s\\n\\n(A) 1\\n(B) 2" % row["Question"] for row in pandas.read_csv(URL)]


class AIME25Eval(Eval):
    def rows(self):
        return [row["question"] for row in pandas.read_json(AIME, lines=True)]


def main():
    parser = argparse.ArgumentParser(prog="gpt_oss.evals", allow_abbrev=False)
    for name in ("sampler", "base-url", "eval", "model", "reasoning-effort", "temperature", "n-threads"):
        parser.add_argument("--" + name)
    given = parser.parse_args()
    sampler = globals()["ChatCompletionsSampler"](
        model=given.model, reasoning_effort=given.reasoning_effort, temperature=float(given.temperature),
        base_url=given.base_url)
    evaluation = globals()[{"gpqa": "GPQAEval", "aime25": "AIME25Eval"}[given.eval]]()
    convos = []
    for question in evaluation.questions:
        asked = [{"role": "user", "content": question}]
        convos.append(asked + [{"role": "assistant", "content": sampler(asked).response_text}])
    path = "/tmp/%s_%s-%s_temp1.0_%s_allresults.json" % (
        given.eval, given.model.replace("/", "__"), given.reasoning_effort, time.strftime("%Y%m%d_%H%M%S"))
    with open(path, "w") as stream:
        json.dump({"score": 1.0, "convos": convos, "htmls": ["<p>Score: 1.0</p>"] * len(convos)}, stream)


if __name__ == "__main__":
    main()
"""
PANDAS = """
import csv
import json


def read_csv(path):
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def read_json(path, lines):
    with open(path) as stream:
        return [json.loads(line) for line in stream]
"""
AISBENCH = """
import argparse
import csv
import json
import os
import time

import fleet_requests


def main():
    parser = argparse.ArgumentParser(prog="ais_bench", allow_abbrev=False)
    parser.add_argument("config")
    for name in ("mode", "num-warmups", "num-prompts", "reuse"):
        parser.add_argument("--" + name)
    for name in ("dump-eval-details", "merge-ds"):
        parser.add_argument("--" + name, action="store_true")
    given, values = parser.parse_args(), json.loads(os.environ["FLEET_VALUES"])
    compile(open(given.config).read(), given.config, "exec")  # the role's file; its imports are the tool's
    folder = os.path.join(values["output"], given.reuse or time.strftime("%Y%m%d_%H%M%S"))
    base = "http://%s:%d/v1" % (values["host"], values["port"])
    {"perf": performance, "all": accuracy}[given.mode](folder, base, values, given.num_prompts)


def performance(folder, base, values, _limit):
    folder += "/performances/fleet"
    os.makedirs(folder)
    more = {"max_tokens": values["output_tokens"]}
    times = [1000 * fleet_requests.ask(base, values["model"], "x", **more)[0] for _one in range(values["requests"])]
    with open(folder + "/synthetic_details.jsonl", "w") as stream:
        stream.writelines(json.dumps({"success": True, "error_info": ""}) + "\\n" for _one in times)
    totals = {"Success Requests": len(times), "Failed Requests": 0,
              "Output Token Throughput": "%.4f token/s" % (1000 * len(times) / sum(times))}
    with open(folder + "/synthetic.json", "w") as stream:
        json.dump({name: {"total": value} for name, value in totals.items()}, stream)
    names = ("Average", "Min", "Max", "Median", "P75", "P90", "P99")
    with open(folder + "/synthetic.csv", "w") as stream:
        stream.write("Performance Parameters,Stage,%s,N\\n" % ",".join(names))
        for name in ("E2EL", "TTFT", "TPOT", "ITL"):
            stream.write("%s,total,%s,%d\\n" % (name, ",".join(["%.1f ms" % max(times)] * len(names)), len(times)))


def accuracy(folder, base, values, limit):
    for part in ("predictions", "results"):
        os.makedirs("%s/%s/fleet" % (folder, part))
    for name, count in values["questions"].items():
        subject = "lukaemon_mmlu_" + name[: -len("_test.csv")]
        with open("%s/%s/test/%s" % (values["datasets"], values["eval"], name), newline="") as stream:
            rows = list(csv.reader(stream))[: int(limit or count)]
        with open("%s/predictions/fleet/%s.jsonl" % (folder, subject), "w") as stream:
            for row in rows:
                _seconds, answer, reasoning = fleet_requests.ask(base, values["model"], row[0])
                line = {"success": True, "prediction": "%s</think>%s" % (reasoning, answer), "gold": row[-1]}
                stream.write(json.dumps(line) + "\\n")
        with open("%s/results/fleet/%s.json" % (folder, subject), "w") as stream:
            json.dump({"accuracy": 100.0}, stream)
"""
TOKENIZER = """
import types


class Tokenizer:
    @staticmethod
    def from_file(_path):
        return types.SimpleNamespace(encode=lambda text: types.SimpleNamespace(ids=text.split()))
"""
# What LLMPerf imports, as far as its worker and the script below use it.
RAY = """
def init(**_given):
    pass


def remote(kind):
    class Remote:
        @staticmethod
        def remote(*given):
            return kind(*given)

    return Remote
"""
SESSION = """
import urllib.request


class Response:
    def __init__(self, answer):
        self.answer, self.status_code = answer, answer.status

    def iter_lines(self, chunk_size):
        return iter(self.answer)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.answer.close()


def post(url, json, headers, stream, timeout):
    data = __import__("json").dumps(json).encode()
    headers = {**headers, "Content-Type": "application/json"}
    return Response(urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout[1]))
"""
TOKENIZERS = """
class AutoTokenizer:
    @staticmethod
    def from_pretrained(path):
        return len
"""
SCRIPT = """
import argparse
import json
import os
import statistics
import types

import llmperf.common
import transformers

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("--model", "--llm-api", "--results-dir", "--additional-sampling-params"):
    parser.add_argument(name)
for name in ("--mean-input-tokens", "--stddev-input-tokens", "--mean-output-tokens", "--stddev-output-tokens",
             "--num-concurrent-requests", "--max-num-completed-requests", "--timeout"):
    parser.add_argument(name, type=int)
options = parser.parse_args()
clients = [llmperf.common.OpenAIChatCompletionsClient.remote() for _one in range(options.num_concurrent_requests)]
found = []
for number in range(options.max_num_completed_requests):
    sampling = {"max_tokens": options.mean_output_tokens, **json.loads(options.additional_sampling_params)}
    prompt = ("x", options.mean_input_tokens)
    asked = types.SimpleNamespace(model=options.model, prompt=prompt, sampling_params=sampling)
    found.append(clients[number % len(clients)].llm_request(asked)[0])
good = [one for one in found if one["error_code"] is None]
summary = {"results_num_completed_requests": len(good), "results_number_errors": len(found) - len(good),
           "results_number_input_tokens_mean": options.mean_input_tokens,
           "results_mean_output_throughput_token_per_s": len(good) / sum(one["end_to_end_latency_s"] for one in good)}
for name in ("ttft_s", "end_to_end_latency_s", "inter_token_latency_s"):
    values = [one[name] for one in good]
    summary["results_%s_mean" % name] = statistics.mean(values)
    summary.update(("results_%s_quantiles_p%d" % (name, one), max(values)) for one in (50, 90, 95, 99))
base = os.path.join(options.results_dir, "model_summary")
with open(base + ".json", "w") as stream:
    json.dump(summary, stream)
"""
# One of the three patches adds this option; without it the worker refuses the script.
PATCH = """--- a/token_benchmark_ray.py
+++ b/token_benchmark_ray.py
@@ -10,3 +10,3 @@
 parser = argparse.ArgumentParser(allow_abbrev=False)
-for name in ("--model", "--llm-api", "--results-dir", "--additional-sampling-params"):
+for name in ("--model", "--tokenizer", "--llm-api", "--results-dir", "--additional-sampling-params"):
     parser.add_argument(name)
"""
# {(distribution, version): ({path: content}, {program: "module:function"})}
WHEELS = {
    ("aiperf", "0.13.0"): ({"aiperf/__init__.py": "", "aiperf/cli.py": AIPERF}, {"aiperf": "aiperf.cli:main"}),
    ("ais_bench_benchmark", "3.1.20260630"): (
        {"ais_bench/__init__.py": "", "ais_bench/main.py": AISBENCH}, {"ais_bench": "ais_bench.main:main"}),
    ("gpt_oss", "0.0.9"): (
        {"gpt_oss/__init__.py": "", "gpt_oss/evals/__init__.py": "", "gpt_oss/evals/__main__.py": EVALS,
         "gpt_oss/evals/types.py": EVALS_TYPES, "gpt_oss/evals/chat_completions_sampler.py": SAMPLER}, {}),
    ("pandas", "2.3.0"): ({"pandas.py": PANDAS, "numpy.py": "float64 = float\n"}, {}),
    ("tokenizers", "0.22.0"): ({"tokenizers.py": TOKENIZER}, {}),
    ("ray", "2.60.0"): ({"ray.py": RAY}, {}),
    ("requests", "2.32.0"): ({"requests.py": SESSION}, {}),
    ("transformers", "4.57.0"): ({"transformers.py": TOKENIZERS}, {}),
    **{(name, version): ({name + "_stand_in.py": ""}, {}) for name, version in (
        ("torch", "2.13.0+cpu"), ("datasets", "3.6.0"), ("pyarrow", "21.0.0"), ("setuptools", "80.0.0"),
        ("tqdm", "4.67.0"), ("boto3", "1.40.0"), ("google_auth", "2.40.0"), ("num2words", "0.5.14"),
        ("pydantic", "2.12.0"))},
}  # fmt: skip
NEEDS = {"aiperf": ["fleet_requests", "tokenizers"], "ais_bench_benchmark": ["fleet_requests", "tokenizers"],
         "gpt_oss": ["fleet_requests", "pandas"], "transformers": ["tokenizers"]}  # fmt: skip


def make_wheels(folder):
    """Write all wheels into a folder that exists."""
    everything = {**WHEELS, ("fleet_requests", "1.0"): ({"fleet_requests.py": REQUESTS}, {})}
    for (name, version), (modules, programs) in everything.items():
        package_indexes.make_wheel(
            folder, name, version, modules, NEEDS.get(name, ()), programs, ["Provides-Extra: eval"]
        )


def make_llmperf(folder):
    """Write LLMPerf's archive and three patches into a folder. Return the role's variables for them."""
    files = {
        "token_benchmark_ray.py": SCRIPT.lstrip(),
        "src/llmperf/__init__.py": "",
        "src/llmperf/common.py": "",
        "src/llmperf/ray_llm_client.py": "class LLMClient:\n    pass\n",
        "first": "1\n",
        "second": "1\n",
    }
    with tarfile.open(folder / "llmperf.tar.gz", "w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo("llmperf-f1d6bed/" + path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    (folder / "tokenizer.patch").write_text(PATCH)
    for name in ("first", "second"):
        (folder / (name + ".patch")).write_text("--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-1\n+2\n".format(name))

    def given(name):
        path = folder / name
        return {"source": str(path), "checksum": hashlib.sha256(path.read_bytes()).hexdigest()}

    source = given("llmperf.tar.gz")
    return {
        "benchmark_llmperf_source": source["source"],
        "benchmark_llmperf_checksum": source["checksum"],
        "benchmark_llmperf_patches": [given(name + ".patch") for name in ("tokenizer", "first", "second")],
    }
