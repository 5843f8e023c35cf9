# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AISBench and LLMPerf as the roles install them, against a scripted server.

FLEET_TEST_LLMPERF: a folder with LLMPerf's source and the three patches, named as in docs/using/measure-reference.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.runs import BIN
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_fleet import Fleet
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import model_folder

pytestmark = pytest.mark.soak

# The engine knows products. Two of four are right, one of them with separators in the dataset alone.
GSM8K = {"What is 17*23?": "17*20 + 17*3\n#### 391", "What is 30*40?": "3*4 is 12\n#### 1,200",
         "What is 2*3?": "wrong\n#### 7", "What is 5*5?": "wrong\n#### 26"}  # fmt: skip
PROFILE = {"tool": "aisbench", "input_tokens": 20, "output_tokens": 8, "concurrency": 2, "requests": 6,
           "server_token_count": True}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where the tools are installed, once for all tests; both roles use the same environment of AISBench."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture
def fleet(tmp_path, root):
    """One host."""
    one = Fleet(tmp_path, None)
    one.hosts["n1"]["fleet_root"] = str(root)
    data = one.folder / "data"
    override = one.hosts["n1"]["fleet_override"]
    override["benchmark"] = {"profiles": {"aisbench": PROFILE, "llmperf": {**PROFILE, "tool": "llmperf"}}}
    override["model"] = model_folder(one.folder / "model")
    (data / "gsm8k").mkdir(parents=True)
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in GSM8K.items()]
    for split in ("train", "test"):
        (data / "gsm8k" / (split + ".jsonl")).write_text("\n".join(lines) + "\n")
        (data / "mmlu" / split.replace("train", "dev")).mkdir(parents=True)
    for split in ("dev", "test"):
        (data / "mmlu" / split / ("anatomy_%s.csv" % split)).write_text("Which?,391,1,2,3,A\nWhat?,1,2,3,4,B\n")
    one.variables = {
        "fleet_reports_dir": str(one.reports), "evaluate_uv": str(BIN / "uv"), "benchmark_uv": str(BIN / "uv"),
        "evaluate_datasets": str(data), "evaluate_efforts": ["low"], "evaluate_max_tokens": 256,
        "evaluate_concurrency": 2, "benchmark_profile": "aisbench",
    }  # fmt: skip
    return one


def measured(fleet, playbook, engine, **variables):
    """(Run, the new results of a playbook) with the engine deployed."""
    known = {one["id"] for one in result.history(str(fleet.reports))[0]}
    with fleet.deployed(engine):
        variables = {**fleet.variables, **variables}
        run = fleet.play(playbook="playbooks/%s.yml" % playbook, variables=variables, timeout=900)
    return run, [one for one in result.history(str(fleet.reports))[0] if one["id"] not in known]


def test_gsm8k_and_mmlu(fleet):
    with ScriptedEngine(model="gpt-oss-small") as engine:
        run, (gsm8k, mmlu) = measured(fleet, "evaluate", engine, evaluate_evals=["gsm8k", "mmlu"])
        run.ok()
        asked = [body["messages"][0]["content"] for body in engine.bodies("/v1/chat/completions")]
    assert (gsm8k["eval"], gsm8k["score"], gsm8k["questions"], gsm8k["correct"]) == ("gsm8k", 50.0, 4, 2)
    assert (gsm8k["failed"], gsm8k["verdict"], gsm8k["tool"]["name"]) == (0, "no-reference", "AISBench")
    assert (mmlu["eval"], mmlu["questions"], mmlu["answered"], mmlu["failed"]) == ("mmlu", 2, 2, 0)
    sums = [text for text in asked if text.rpartition("Question: ")[2] in GSM8K]
    assert set(GSM8K) == {text.rpartition("Question: ")[2] for text in sums}
    assert all("in digits alone, as 1200 and not 1,200" in text for text in sums)


def test_a_refused_request_of_gsm8k_has_failed_and_is_no_wrong_answer(fleet):
    with ScriptedEngine([Fault("status", "low", value=(500,))], model="gpt-oss-small") as engine:
        run, (document,) = measured(fleet, "evaluate", engine, evaluate_evals=["gsm8k"], evaluate_refresh=True)
    run.failed("4 of 4 answers did not come")
    assert (document["score"], document["failed"], document["answered"]) == (None, 4, 0)


def all_answered(document):
    assert document["counts"] == {"asked": 6, "completed": 6, "failed": 0}
    assert document["metrics"]["ttft_ms"]["mean"] >= 50
    assert document["metrics"]["output_tokens_per_s"] > 0


def test_its_performance_mode(fleet):
    with ScriptedEngine(model="gpt-oss-small", seconds=0.05) as engine:
        run, (document,) = measured(fleet, "benchmark", engine)
        run.ok()
    all_answered(document)


def given(path):
    return {"source": str(path), "checksum": hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.skipif("FLEET_TEST_LLMPERF" not in os.environ, reason="FLEET_TEST_LLMPERF names no source of LLMPerf")
def test_llmperf(fleet):
    folder = Path(os.environ["FLEET_TEST_LLMPERF"])
    source = given(folder / "llmperf-f1d6bed.tar.gz")
    patches = [given(folder / (name + ".patch")) for name in ("neuron_perf", "llmperf_dp", "llmperf_reasoning")]
    with ScriptedEngine(model="gpt-oss-small", seconds=0.05) as engine:
        run, (document,) = measured(
            fleet, "benchmark", engine, benchmark_profile="llmperf", benchmark_llmperf_source=source["source"],
            benchmark_llmperf_checksum=source["checksum"], benchmark_llmperf_patches=patches,
        )  # fmt: skip
        run.ok()
    all_answered(document)
