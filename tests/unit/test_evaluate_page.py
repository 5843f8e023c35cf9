# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/using/measure-reference.md compares the guides' commands with ours, and has the role's published scores."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools.reading import expand
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import evaluation_tool
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests import doc_examples

PAGE = doc_examples.USING / "measure-reference.md"
TASKS = doc_examples.USING / "measure.md"
ROLE = doc_examples.USING.parents[1] / "roles" / "evaluate"
# The guides' own words, an argument with its value each.
QUICKSTART = ["python -m gpt_oss.evals", "--sampler chat_completions", "--eval gpqa,aime25", "--model gpt-oss-120b",
              "--reasoning-effort low,medium"]  # fmt: skip
ASCEND = ["ais_bench", "--models vllm_api_general_chat --datasets mmlu_gen_0_shot_cot_chat_prompt.py", "--mode all",
          "--dump-eval-details", "--merge-ds"]  # fmt: skip


def resolved(name, overlay):
    return recipes.resolve_recipe(recipes.find_recipe(name, []), [], [overlay])


def settings(name, overlay):
    recipe = resolved(name, overlay)
    asked = recipe["evaluate"]
    return {
        "eval": asked["evals"][0], "effort": asked["efforts"][0], "model": recipe["model"]["id"],
        "url": "http://127.0.0.1:8000/v1", "temperature": 1.0, "examples": None, "begun": None,
        "concurrency": asked["concurrency"],
    }  # fmt: skip


def words(argv):
    """An argument with its value each; of paths the last part."""
    found = []
    for word in argv:
        if found and found[-1].startswith("--") and " " not in found[-1] and not word.startswith("--"):
            found[-1] += " " + word
        else:
            found.append(word.rpartition("/")[2] if word.startswith("/") else word)
    return found


def section(heading):
    return PAGE.read_text(encoding="utf-8").partition("\n%s\n" % heading)[2].partition("\n#")[0]


def table(heading):
    """[(guide's words, ours, why)] without the backquotes."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in section(heading).splitlines() if line.startswith("| ")]
    return [tuple("" if cell == "–" else cell.strip("`") for cell in row) for row in rows[2:]]


def check(heading, guide, ours):
    """Each argument is in the table of differences or in the list of unchanged arguments, and nowhere else."""
    rows = table(heading)
    same = re.findall(r"`([^`]+)`", re.search(r"^Unchanged: (.*?)\n\n", section(heading), re.DOTALL | re.MULTILINE)[1])
    assert sorted(same + [row[0] for row in rows if row[0]]) == sorted(guide)
    assert sorted(same + [row[1] for row in rows]) == sorted(ours)
    for row in rows:
        assert row[2] and row[0] != row[1], row


def test_the_quick_starts_command_beside_ours():
    tool, values = evaluation_tool("gpqa"), settings("blackwell-quickstart-low-latency", "accuracy-tp8")
    assert tool["program"] == ["worker", "measure.gpt_oss_evals_worker"]
    ours = ["python -I program/VERSION work measure.gpt_oss_evals_worker", *words(expand(tool["template"], values))]
    check("### TensorRT-LLM: gpt_oss.evals", QUICKSTART, ours)


def test_the_ascend_tutorials_command_beside_ours():
    argv = expand(evaluation_tool("mmlu")["template"], settings("ascend-a2", "tp8"))
    check("### Ascend: AISBench", ASCEND, ["ais_bench", "aisbench.py", *words(argv)])


def test_what_the_guides_configuration_is_named_is_in_ours():
    text = (ROLE / "files" / "aisbench.py").read_text(encoding="utf-8")
    assert "mmlu_gen_0_shot_cot_chat_prompt import mmlu_datasets" in text
    assert "VLLMCustomAPIChat" in text and '"stream": False' in text  # what vllm_api_general_chat is


def test_every_published_score_of_the_role_is_on_the_page():
    references = yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8"))["evaluate_references"]
    section = PAGE.read_text(encoding="utf-8").partition("Published scores, in percent")[2].partition("\n#")[0]
    assert {"%.2f" % one["score"] for one in references} == {
        "%.2f" % float(number) for number in re.findall(r"(?<![\w.-])\d\d\.\d+", section)
    }


@pytest.mark.parametrize("parallel", ["tp8", "tp4", "dep8", "dep4"])
@pytest.mark.parametrize("high", [False, True])
def test_the_guides_table_of_efforts(parallel, high):
    name = "blackwell-quickstart-" + ("low-latency" if parallel.startswith("tp") else "max-throughput")
    recipe = resolved(name, "accuracy-" + parallel + ("-high" if high else ""))
    assert recipe["evaluate"]["evals"] == ["gpqa", "aime25"]
    assert recipe["evaluate"]["efforts"] == (["high"] if high else ["low", "medium"])
    assert recipe["evaluate"]["concurrency"] == recipe["benchmark"]["concurrency"]


def test_answers_of_mmlu_have_room_on_the_overlay_that_the_page_names():
    for name in ("ascend-a2", "ascend-a3"):
        recipe = resolved(name, "tp8")
        assert recipe["evaluate"]["max_tokens"] + 1024 <= recipe["arguments"]["max-model-len"]


@pytest.mark.parametrize("name", re.findall(r"<!-- example: (.*?) -->", TASKS.read_text(encoding="utf-8")))
def test_the_examples_plan(name):
    shown = doc_examples.example(name, TASKS)
    hardware = {"accelerator": "b200", "count": 8}
    found = fleet.plan_fleet(["node-1"], lambda host: {"fleet_hardware": hardware, **shown}, deploys=True)
    assert found["node-1"]["deployment"]["evaluate"]["efforts"] == ["high"]
