# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of results, and their history."""

from __future__ import annotations

import copy
import json
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from hypothesis import given
from hypothesis import strategies as st

HEAD = {
    "schema": 1,
    "id": "20260131T120000Z-0a1b2c3d",
    "began": "2026-01-31T12:00:00Z",
    "ended": "2026-01-31T12:01:00Z",
    "inventory": "local",
    "recipe": "cpu-tiny",
    "recipe_hash": "a" * 64,
    "plan_hash": "b" * 64,
    "platform": "cpu",
    "engine": "vllm",
    "versions": {"engine": "0.32.0", "tool": "0.13.0", "collection": None},
    "hardware": {"accelerator": "cpu", "count": 2},
    "scope": "node",
    "host": "localhost",
    "servers": ["server-0", "server-1"],
    "tool": {"name": "aiperf", "version": "0.13.0", "command": ["aiperf", "profile"]},
    "profile": "quick",
    "errors": [{"message": "Connection refused", "count": 4}],
    "ok": False,
    "reason": "4 of 8 requests failed",
    "void": None,
}
BENCHMARK = {
    **HEAD,
    "kind": "benchmark",
    "workload": {
        "input_tokens_asked": 64,
        "output_tokens_asked": 32,
        "input_tokens": 131.0,
        "output_tokens": 32,
        "concurrency": 2,
        "request_rate": None,
        "requests": 8,
    },
    "counts": {"asked": 8, "completed": 4, "failed": 4},
    "metrics": result.no_metrics(),
    "limits": {"ttft_ms": 500, "tpot_ms": None},
}
EVALUATION = {
    **HEAD,
    "kind": "evaluation",
    "eval": "mmlu",
    "effort": "low",
    "score": 0.5,
    "questions": 12,
    "answered": 12,
    "correct": 6,
    "failed": 0,
    "interval": [0.25, 0.75],
    "reference": {"score": 0.895, "source": "https://example.org", "model": "gpt-oss-120b", "effort": None},
    "difference": -0.395,
    "verdict": "below",
}


@pytest.mark.parametrize("document", [BENCHMARK, EVALUATION])
def test_both_kinds_are_results(document):
    assert result.problems(document) == []
    assert result.check(document, "x") is document


def test_parts_that_may_be_null():
    document = {**BENCHMARK, "limits": None}
    assert result.problems(document) == []
    assert result.problems({**EVALUATION, "reference": None, "interval": None, "score": None}) == []


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("id", "1", 'id is "1"; allowed: a time and 8 digits'),
        ("began", "2026-01-31 12:00", "began is"),
        ("counts.failed", -1, "counts.failed is -1; allowed: a number from 0 on"),
        ("counts.failed", True, "counts.failed is true"),
        ("metrics.ttft_ms.p90", float("nan"), "metrics.ttft_ms.p90 is NaN; allowed: a number of at least 0, or null"),
        ("metrics.ttft_ms", None, "metrics.ttft_ms is null; allowed: a mapping"),
        ("errors", [{"message": "x"}], "errors[0].count is missing"),
        ("errors", {}, "errors is {}; allowed: a list"),
        ("limits", {"ttft_ms": "fast"}, 'limits.ttft_ms is "fast"; allowed: a number of at least 0, or null'),
        ("scope", "rack", 'scope is "rack"; allowed: server, node, fleet'),
        ("recipe_hash", "abc", "recipe_hash is"),
        ("extra", 1, "extra is unknown"),
        ("schema", 2, "schema is 2; allowed: 1"),
    ],
)
def test_what_is_no_result_is_named(path, value, named):
    document = copy.deepcopy(BENCHMARK)
    *folders, last = path.split(".")
    inner = document
    for folder in folders:
        inner = inner[folder]
    inner[last] = value
    assert any(text.startswith(named) for text in result.problems(document)), result.problems(document)


def test_each_key_is_needed():
    for key in BENCHMARK:
        document = {name: value for name, value in BENCHMARK.items() if name != key}
        assert result.problems(document), key


def test_history_is_appended_and_never_changed(tmp_path):
    folder = str(tmp_path)
    older = {**BENCHMARK, "id": "20260130T120000Z-ffffffff", "began": "2026-01-30T12:00:00Z"}
    path = result.keep(folder, BENCHMARK)
    result.keep(folder, older)
    assert path == str(tmp_path / "measurements" / "20260131T120000Z-0a1b2c3d.json")
    result.keep(folder, {**BENCHMARK, "ok": True})
    documents, warnings = result.history(folder)
    assert documents == [older, BENCHMARK]
    assert warnings == []


def test_a_file_that_is_no_result_is_left_out_with_a_warning(tmp_path):
    result.keep(str(tmp_path), BENCHMARK)
    (tmp_path / "measurements" / "20260131T120000Z-00000000.json").write_text("{", encoding="utf-8")
    (tmp_path / "measurements" / "notes.txt").write_text("x", encoding="utf-8")
    documents, warnings = result.history(str(tmp_path))
    assert documents == [BENCHMARK]
    assert len(warnings) == 1 and "20260131T120000Z-00000000.json is not a result" in warnings[0]


def test_nothing_is_kept_that_is_no_result(tmp_path):
    with pytest.raises(FleetError) as caught:
        result.keep(str(tmp_path), {**BENCHMARK, "ok": "yes"})
    assert caught.value.code == "measure.bad-result"
    assert list(tmp_path.iterdir()) == []


def test_no_history_is_an_empty_one(tmp_path):
    assert result.history(str(tmp_path / "none")) == ([], [])


def test_ids_sort_by_time_and_differ():
    first, second = (result.new_id("2026-01-31T12:00:00Z") for _number in range(2))
    assert first.startswith("20260131T120000Z-") and first != second
    assert result.new_id("2026-02-01T00:00:00Z") > first
    assert result.problems({**BENCHMARK, "id": result.new_id()}) == []


def test_the_plan_hash_is_of_the_servers_and_not_of_their_order():
    one, other = ({"host": "h", "name": name, "hash": name * 64} for name in "ab")
    assert result.plan_hash([one, other]) == result.plan_hash([other, one]) != result.plan_hash([one])
    assert result.plan_hash([{**one, "hash": "c" * 64}]) != result.plan_hash([one])


def test_the_recipe_hash_leaves_out_what_is_asked_and_measured():
    recipe = {"name": "x", "arguments": {"a": 1}, "benchmark": {"quick": {}}, "probes": []}
    assert result.recipe_hash(recipe) == result.recipe_hash({**recipe, "benchmark": None, "probes": [1]})
    assert result.recipe_hash(recipe) != result.recipe_hash({**recipe, "arguments": {"a": 2}})


def test_results_are_json():
    assert json.loads(json.dumps(BENCHMARK)) == BENCHMARK


def test_whatever_lies_in_the_history_is_named_and_no_error(tmp_path):
    result.keep(str(tmp_path), BENCHMARK)
    kept = tmp_path / "measurements"
    (kept / "20260101T000000Z-00000001.json").mkdir()
    (kept / "20260101T000000Z-00000002.json").write_text("[" * 200000, encoding="utf-8")
    (kept / "20260101T000000Z-00000003.json").write_bytes(b"\xff\xfe{}")
    (kept / "20260101T000000Z-00000004.json").write_text(json.dumps(BENCHMARK), encoding="utf-8")
    (kept / "20260101T000000Z-00000005.json").symlink_to("/nonexistent")
    os.mkfifo(kept / "20260101T000000Z-00000006.json")
    with open(kept / "20260101T000000Z-00000007.json", "wb") as stream:
        stream.truncate(result.LARGEST + 1)
    (kept / ".20260131T120000Z-0a1b2c3d.json.x.json").write_text("{", encoding="utf-8")
    documents, warnings = result.history(str(tmp_path))
    assert documents == [BENCHMARK]
    assert len(warnings) == 7
    assert all("0000000%d.json" % number in text for number, text in enumerate(warnings, 1))


LEAVES = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(LEAVES, lambda part: st.lists(part) | st.dictionaries(st.text(), part)))
def test_any_json_is_a_result_or_a_list_of_mistakes(value):
    assert result.problems(value)
    assert result.problems({**BENCHMARK, "metrics": value, "hardware": value})
