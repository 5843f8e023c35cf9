# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/measure-reference.md compares each guide's benchmark with the profile of its recipe."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools import benchmarks
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.reading import expand
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import evaluation_tool, points
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans

PAGE = doc_examples.USING / "measure-reference.md"
# The guides' own words. What is no argument of the tool stands before `--`.
LLMPERF = """python ~/llmperf/token_benchmark_ray.py -- --model /mnt/inference/models/gpt-oss-120b
    --mean-input-tokens 10000 --stddev-input-tokens 0 --mean-output-tokens 3000 --stddev-output-tokens 0
    --num-concurrent-requests 1 --results-dir "./llmperf_results/" --max-num-completed-requests 50
    --additional-sampling-params '{"temperature": 1.0, "top_k": 1.0, "top_p": 1.0}' --llm-api "openai" """
AIPERF = r"""aiperf profile -- --model openai/gpt-oss-120b --tokenizer /model --endpoint-type chat
    --endpoint /v1/chat/completions --streaming --url localhost:8000 --synthetic-input-tokens-mean 32000
    --synthetic-input-tokens-stddev 0 --output-tokens-mean 256 --output-tokens-stddev 0 --extra-inputs max_tokens:256
    --extra-inputs min_tokens:256 --extra-inputs ignore_eos:true
    --extra-inputs "{\"nvext\":{\"ignore_eos\":true}}" --concurrency 256 --request-count 6144
    --warmup-request-count 1000 --num-dataset-entries 8000 --random-seed 100 --artifact-dir /tmp/benchmark-results
    -H 'Authorization: Bearer NOT USED' -H 'Accept: text/event-stream'"""
SERVING = """python -m tensorrt_llm.serve.scripts.benchmark_serving -- --model openai/gpt-oss-120b --backend openai
    --dataset-name "random" --random-input-len 1024 --random-output-len 1024 --random-prefix-len 0 --random-ids
    --num-prompts ${num_prompts} --max-concurrency ${concurrency} --ignore-eos --tokenize-on-client
    --percentile-metrics "ttft,tpot,itl,e2el" --save-result --result-dir "${result_dir}"
    --result-filename "concurrency_${concurrency}.json" """
BENCH = """vllm bench serve -- --model unsloth/gpt-oss-120b-BF16 --dataset-name random --random-input 200
    --num-prompts 200 --request-rate 1 --save-result --result-dir ./"""
GUIDES = [
    ("### Trainium3: LLMPerf", LLMPERF, ("trn3-eagle3", "trn3-start-script")),
    ("### Dynamo: AIPerf", AIPERF, ("b200-dynamo-disagg", "b200-dynamo-vllm", "h200-dynamo-vllm-disagg")),
    ("### TensorRT-LLM: benchmark_serving", SERVING,
     ("blackwell-quickstart-max-throughput", "blackwell-quickstart-low-latency")),
    ("### Ascend: vllm bench", BENCH, ("ascend-a2", "ascend-a3")),
]  # fmt: skip


def joined(argv):
    """The words of a command, an argument with its value each; JSON as it is written here."""
    found = []
    for word in argv:
        word = word.replace('": ', '":').replace(', "', ',"')
        if found and found[-1].startswith("-") and " " not in found[-1] and not word.startswith("-"):
            found[-1] += " " + word
        else:
            found.append(word)
    return found


def words(argv):
    """The arguments of a command."""
    return sorted(one for one in joined(argv) if one.startswith("-"))


def section(heading):
    return PAGE.read_text(encoding="utf-8").partition("\n%s\n" % heading)[2].partition("\n#")[0]


def table(heading):
    """[(guide's words, ours, why)] of what differs, without the backquotes."""
    return doc_examples.table_of(section(heading))


def unchanged(heading):
    return doc_examples.listed("\n" + section(heading), "Unchanged")


def shown(cells):
    """The arguments of these cells."""
    return words(word for cell in cells if cell.startswith("-") for word in shlex.split(cell))


def ours(name):
    """The arguments that the first point of the recipe's guide is measured with."""
    point = points(*plans.each(name, "")[:2])[0]["point"]
    argv = expand(point["spec"]["template"], benchmarks.values(point, "FOLDER"))
    return words(word.replace(point["tokenizer"], "MODEL") if argv[at - 1] in ("--tokenizer", "--model") and
                 (argv[at - 1] == "--tokenizer" or "served-model-name" in " ".join(argv)) else word
                 for at, word in enumerate(argv))  # fmt: skip


@pytest.mark.parametrize(("heading", "command", "names"), GUIDES, ids=[one[0][4:] for one in GUIDES])
def test_every_argument_of_a_guides_command_is_compared_with_ours(heading, command, names):
    rows, same = table(heading), unchanged(heading)
    for guide, own, why in rows:
        assert why and (guide or own) and not (guide.startswith("-") and shown([guide]) == shown([own])), guide
    assert shown(same + [row[0] for row in rows]) == words(shlex.split(command.partition(" -- ")[2]))
    assert command.partition(" -- ")[0] in [row[0] for row in rows]
    for name in names:
        assert shown(same + [row[1] for row in rows]) == ours(name), name


def test_the_sweep_of_the_quick_start():
    rows = {guide: own for guide, own, _why in table("### TensorRT-LLM: benchmark_serving")}
    deployment = plans.each("blackwell-quickstart-max-throughput", "").deployment
    profile = deployment["benchmark"]["profiles"]["guide"]
    numbers = rows['concurrency_list="32 64 128 256 512 1024 2048 4096"']
    assert numbers == "concurrency: %s" % profile["concurrency"]
    assert rows["multi_round=5"] == "requests_per_user: %d" % profile["requests_per_user"]


# ---- evaluations

ROLE = doc_examples.USING.parents[1] / "roles" / "evaluate"
# The guides' own words, an argument with its value each.
QUICKSTART = ["python -m gpt_oss.evals", "--sampler chat_completions", "--eval gpqa,aime25", "--model gpt-oss-120b",
              "--reasoning-effort low,medium"]  # fmt: skip
ASCEND = ["ais_bench", "--models vllm_api_general_chat --datasets mmlu_gen_0_shot_cot_chat_prompt.py", "--mode all",
          "--dump-eval-details", "--merge-ds"]  # fmt: skip


def settings(name, overlay):
    recipe = plans.resolved(name, overlays=[overlay])
    asked = recipe["evaluate"]
    return {
        "eval": asked["evals"][0], "effort": asked["efforts"][0], "model": recipe["model"]["id"],
        "url": "http://127.0.0.1:8000/v1", "temperature": 1.0, "examples": None, "begun": None,
        "concurrency": asked["concurrency"],
    }  # fmt: skip


def check(heading, guide, ours):
    """Each argument is in the table of differences or in the list of unchanged arguments, and nowhere else."""
    rows, same = table(heading), unchanged(heading)
    assert sorted(same + [row[0] for row in rows if row[0]]) == sorted(guide)
    assert sorted(same + [row[1] for row in rows]) == sorted(ours)
    for row in rows:
        assert row[2] and row[0] != row[1], row


def test_the_quick_starts_command_beside_ours():
    tool, values = evaluation_tool("gpqa"), settings("blackwell-quickstart-low-latency", "accuracy-tp8")
    assert tool["program"] == ["worker", "measure.gpt_oss_evals_worker"]
    ours = ["python -I program/VERSION work measure.gpt_oss_evals_worker", *joined(expand(tool["template"], values))]
    check("### TensorRT-LLM: gpt_oss.evals", QUICKSTART, ours)


def test_the_ascend_tutorials_command_beside_ours():
    argv = expand(evaluation_tool("mmlu")["template"], settings("ascend-a2", "tp8"))
    check("### Ascend: AISBench", ASCEND, ["ais_bench", "aisbench.py", *joined(argv)])


def test_every_published_score_of_the_role_is_on_the_page():
    references = yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8"))["evaluate_references"]
    section = PAGE.read_text(encoding="utf-8").partition("Published scores, in percent")[2].partition("\n#")[0]
    assert {"%.2f" % one["score"] for one in references} == {
        "%.2f" % float(number) for number in re.findall(r"(?<![\w.-])\d\d\.\d+", section)
    }


def test_answers_of_mmlu_have_room_on_the_overlay_that_the_page_names():
    for name in ("ascend-a2", "ascend-a3"):
        recipe = plans.resolved(name, overlays=["tp8"])
        assert recipe["evaluate"]["max_tokens"] + 1024 <= recipe["arguments"]["max-model-len"]
