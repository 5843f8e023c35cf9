# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of AISBench's accuracy mode. The values come from FLEET_VALUES, a JSON mapping, and the API key
from OPENAI_API_KEY."""

from ais_bench.benchmark.models import VLLMCustomAPIChat
from ais_bench.benchmark.utils.postprocess.model_postprocessors import extract_non_reasoning_content
from mmengine.config import read_base

with read_base():
    from ais_bench.benchmark.configs.datasets.gsm8k.gsm8k_gen_0_shot_cot_chat_prompt import gsm8k_datasets
    from ais_bench.benchmark.configs.datasets.mmlu.mmlu_gen_0_shot_cot_chat_prompt import mmlu_datasets
    from ais_bench.benchmark.configs.summarizers.groups.mmlu import mmlu_summary_groups

# the tool replaces the imports of such a file by placeholders, so the standard library is imported differently
environ = dict(__import__("os").environ)
given = __import__("json").loads(environ["FLEET_VALUES"])
work_dir = given["output"]
folder = given["datasets"] + "/" + given["eval"]
if given["eval"] == "gsm8k":
    datasets = [dict(one, path=folder) for one in gsm8k_datasets]
    # the tool reads the last number of an answer, which is 200 for 1,200
    for turn in datasets[0]["infer_cfg"]["prompt_template"]["template"]["round"]:
        turn["prompt"] = turn["prompt"].replace("is a number.", "is a number in digits alone, as 1200 and not 1,200.")
else:
    datasets = [dict(one, path=folder) for one in mmlu_datasets if one["name"] + "_test.csv" in given["questions"]]
summarizer = {"attr": "accuracy", "summary_groups": mmlu_summary_groups}
models = [
    {
        "attr": "service",
        "type": VLLMCustomAPIChat,
        "abbr": "fleet",
        "path": "",
        "model": given["model"],
        "stream": False,
        "request_rate": 0,
        "use_timestamp": False,
        "retry": 2,
        "api_key": environ.get("OPENAI_API_KEY", ""),
        "host_ip": given["host"],
        "host_port": given["port"],
        "url": "",
        "max_out_len": given["max_tokens"],
        "batch_size": given["concurrency"],
        "trust_remote_code": False,
        "generation_kwargs": {"temperature": given["temperature"], "reasoning_effort": given["effort"]},
        "pred_postprocessor": {"type": extract_non_reasoning_content},
    }
]
del environ
