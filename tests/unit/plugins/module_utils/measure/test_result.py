# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of results, and their history."""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.unit.engines.measured_results import benchmark, evaluation


def test_history_is_appended_and_never_changed(tmp_path):
    older, newer = benchmark(day=1), evaluation(day=2)
    path = result.keep(str(tmp_path), newer)
    result.keep(str(tmp_path), older)
    assert path == str(tmp_path / "measurements" / (newer["id"] + ".json"))
    result.keep(str(tmp_path), {**newer, "ok": False})
    assert result.history(str(tmp_path)) == ([older, newer], [])


@pytest.mark.parametrize("identity", ["", "../../etc/x", None, "20260131T120000Z-0a1b2c3d\n"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path, identity):
    with pytest.raises(FleetError) as caught:
        result.keep(str(tmp_path), {**benchmark(), "id": identity})
    assert (caught.value.code, caught.value.values) == ("measure.bad-result", (identity,))
    assert list(tmp_path.iterdir()) == []


def test_no_history_is_an_empty_one(tmp_path):
    assert result.history(str(tmp_path / "none")) == ([], [])


def test_other_files_in_the_history_are_left_out_with_a_warning(tmp_path):
    one = benchmark()
    result.keep(str(tmp_path), one)
    kept = tmp_path / "measurements"
    (kept / "notes.txt").write_text("x", encoding="utf-8")
    (kept / ".20260131T120000Z-0a1b2c3d.json.x.json").write_text("{", encoding="utf-8")
    (kept / "20260101T000000Z-00000001.json").mkdir()
    (kept / "20260101T000000Z-00000002.json").write_text("[" * 200000, encoding="utf-8")
    (kept / "20260101T000000Z-00000003.json").write_bytes(b"\xff\xfe{}")
    (kept / "20260101T000000Z-00000004.json").write_text(json.dumps(one), encoding="utf-8")
    (kept / "20260101T000000Z-00000005.json").symlink_to("/nonexistent")
    os.mkfifo(kept / "20260101T000000Z-00000006.json")
    with open(kept / "20260101T000000Z-00000007.json", "wb") as stream:
        stream.truncate(result.LARGEST + 1)
    document = {**one, "id": "20260101T000000Z-00000008", "schema": 2}
    (kept / "20260101T000000Z-00000008.json").write_text(json.dumps(document), encoding="utf-8")
    documents, warnings = result.history(str(tmp_path))
    assert documents == [one]
    assert all("0000000%d.json" % number in text for number, text in enumerate(warnings, 1)) and len(warnings) == 8


def test_ids_sort_by_time_and_differ():
    first, second = (result.new_id("2026-01-31T12:00:00Z") for _number in range(2))
    assert first.startswith("20260131T120000Z-") and first != second
    assert result.new_id("2026-02-01T00:00:00Z") > first
    assert result.ID.match(result.new_id())


def test_the_plan_hash_is_of_the_servers_and_not_of_their_order():
    one, other = ({"host": "h", "name": name, "hash": name * 64} for name in "ab")
    assert result.plan_hash([one, other]) == result.plan_hash([other, one]) != result.plan_hash([one])
    assert result.plan_hash([{**one, "hash": "c" * 64}]) != result.plan_hash([one])


def test_the_recipe_hash_leaves_out_the_keys_that_change_no_server():
    recipe = {"name": "x", "arguments": {"a": 1}, "benchmark": {"quick": {}}, "probes": []}
    assert result.recipe_hash(recipe) == result.recipe_hash({**recipe, "benchmark": None, "probes": [1]})
    assert result.recipe_hash(recipe) != result.recipe_hash({**recipe, "arguments": {"a": 2}})
