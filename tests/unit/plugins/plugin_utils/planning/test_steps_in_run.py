# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan's steps in one run: what its tags leave of them, and arguments that are filled in when they are sent."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import HostVariables

CLONE = pathlib.Path(__file__).resolve().parents[5]
DEEP = {"k": {"l": 5, "m": [6]}}
STEPS = [{"step": step, "operation": step, "arguments": {}} for step in run_look.STEPS]


@pytest.mark.parametrize(
    ("tags", "skip", "steps"),
    [
        (["all"], [], list(run_look.STEPS)),
        (["serve"], [], ["preflight", "serve"]),
        (["weights", "verify"], [], ["weights"]),
        (["verify"], [], []),
        (["always"], [], []),
        (["all"], ["prepare", "weights"], ["serve"]),
        (["all"], ["all"], []),
        (["all"], ["tagged"], []),
        (["tagged"], [], list(run_look.STEPS)),
        (["untagged"], [], []),
    ],
)
def test_steps_that_are_no_part_of_the_run_are_not_looked_at(tags, skip, steps):
    assert [one["step"] for one in run_look.of_run(STEPS, tags, skip)] == steps


def test_the_tags_are_those_of_the_playbooks():
    for step in run_look.STEPS:
        (play,) = yaml.safe_load((CLONE / "playbooks/steps" / (step + ".yml")).read_text())
        tasks = [set(task.get("tags", ())) | set(play.get("tags", ())) for task in play["tasks"]]
        assert tasks == [set(run_look.TAGS[step])] * len(tasks)


def test_a_changed_playbook_may_have_other_tags():
    changed = {"step": "prepare", "reason": "it was changed", "changed": True}
    role = {"step": "weights", "reason": "its role was changed", "changed": False}
    assert run_look.of_run([*STEPS[:2], changed, role], ["serve"], []) == [STEPS[0], changed]


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"variable": "full"}, {"x": "y", "a": {"k": 1}}),
        ({"variable": "full", "default": {}, "omits": True}, {"x": "y", "a": {"k": 1}}),
        ({"variable": "empty"}, {"x": "y", "a": ""}),
        ({"variable": "empty", "default": {}}, {"x": "y", "a": {}}),
        ({"variable": "empty", "default": "", "omits": True}, {"x": "y"}),
        ({"variable": "empty", "over": {"k": 2}}, {"x": "y", "a": {"k": 2}}),
        ({"variable": "deep", "over": {"k": {"l": 2, "m": [3]}, "n": 4}}, {"x": "y", "a": {**DEEP, "n": 4}}),
        ({"plan": ["deployment", "models"]}, {"x": "y", "a": ["m"]}),
    ],
)
def test_what_is_filled_in(how, found):
    variables = HostVariables("n1", {"full": {"k": 1}, "empty": "", "deep": DEEP})
    plan = {"servers": [], "deployment": {"models": ["m"]}}
    given = {"x": "y", "a": {run_look.LATER: how}}
    assert run_look.filled(given, plan, variables, ["all"]) == found
    assert run_look.filled([{"list": given}], plan, variables, ["all"]) == [{"list": found}]


@pytest.mark.parametrize(("only", "prepares"), [("all", True), ("preflight", True), ("tagged", True), ("serve", False)])
def test_a_run_that_does_not_prepare(only, prepares):
    given = {"prepares": {run_look.LATER: {"prepared": True, "unprepared": False}}}
    assert run_look.filled(given, {}, HostVariables("n1", {}), [only]) == {"prepares": prepares}
