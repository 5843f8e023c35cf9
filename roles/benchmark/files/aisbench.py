# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of AISBench's performance mode. The values come from FLEET_VALUES, a JSON mapping, and the API
key from OPENAI_API_KEY."""

from ais_bench.benchmark.calculators import DefaultPerfMetricCalculator
from ais_bench.benchmark.datasets import MATHEvaluator, SyntheticDataset
from ais_bench.benchmark.models import VLLMCustomAPIChat
from ais_bench.benchmark.openicl.icl_inferencer import GenInferencer
from ais_bench.benchmark.openicl.icl_prompt_template import PromptTemplate
from ais_bench.benchmark.openicl.icl_retriever import ZeroRetriever
from ais_bench.benchmark.summarizers import DefaultPerfSummarizer

# the tool replaces the imports of such a file by placeholders, so the standard library is imported differently
environ = dict(__import__("os").environ)
given = __import__("json").loads(environ["FLEET_VALUES"])
work_dir = given["output"]
models = [
    {
        "path": given["tokenizer"],
        "model": given["model"],
        "host_ip": given["host"],
        "host_port": given["port"],
        "request_rate": given["request_rate"] or 0,
        "max_out_len": given["output_tokens"],
        "batch_size": given["concurrency"],
        "generation_kwargs": {"ignore_eos": given["ignore_eos"], **given["sampling"]},
        "attr": "service",
        "type": VLLMCustomAPIChat,
        "abbr": "fleet",
        "stream": True,
        "use_timestamp": False,
        "retry": 1,
        "url": "",
        "trust_remote_code": False,
        "api_key": environ.get("OPENAI_API_KEY", ""),
    }
]
datasets = [
    {
        "abbr": "synthetic",
        "type": SyntheticDataset,
        "config": {
            "Type": "tokenid",
            "RequestCount": given["requests"],
            "TrustRemoteCode": False,
            "TokenIdConfig": {"RequestSize": given["input_tokens"], "PrefixLen": 0},
        },
        "reader_cfg": {"input_columns": ["question"], "output_column": "answer"},
        "infer_cfg": {
            "prompt_template": {"type": PromptTemplate, "template": "{question}"},
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": GenInferencer},
        },
        "eval_cfg": {"evaluator": {"type": MATHEvaluator}},
    }
]
summarizer = {
    "attr": "performance",
    "type": DefaultPerfSummarizer,
    "calculator": {
        "type": DefaultPerfMetricCalculator,
        "stats_list": ["Average", "Min", "Max", "Median", "P75", "P90", "P95", "P99"],
    },
}
del environ
