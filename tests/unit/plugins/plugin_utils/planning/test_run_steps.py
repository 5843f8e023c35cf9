# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan's steps in one run: what its tags leave of them, and arguments that are filled in when they are sent."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look, run_steps
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import HostVariables

CLONE = pathlib.Path(__file__).resolve().parents[5]
STEPS = [{"step": step, "operation": step, "arguments": {}, "later": []} for step in run_look.STEPS]


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
    assert [one["step"] for one in run_steps.of_run(STEPS, tags, skip)] == steps


def test_the_tags_are_those_of_the_playbooks():
    for step in run_look.STEPS:
        (play,) = yaml.safe_load((CLONE / "playbooks/steps" / (step + ".yml")).read_text())
        tasks = [set(task.get("tags", ())) | set(play.get("tags", ())) for task in play["tasks"]]
        assert tasks == [set(run_steps.TAGS[step])] * len(tasks)


def test_a_changed_playbook_may_have_other_tags():
    changed = {"step": "prepare", "reason": "it was changed", "changed": True}
    role = {"step": "weights", "reason": "its role was changed", "changed": False}
    assert run_steps.of_run([*STEPS[:2], changed, role], ["serve"], []) == [STEPS[0], changed]


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ({"variable": "full"}, {"x": "y", "a": {"k": 1}}),
        ({"variable": "full", "default": {}, "omits": True}, {"x": "y", "a": {"k": 1}}),
        ({"variable": "empty"}, {"x": "y", "a": ""}),
        ({"variable": "empty", "default": {}}, {"x": "y", "a": {}}),
        ({"variable": "empty", "default": "", "omits": True}, {"x": "y"}),
        ({"variable": "empty", "over": {"k": 2}}, {"x": "y", "a": {"k": 2}}),
        (
            {"variable": "deep", "over": {"k": {"l": 2, "m": [3]}, "n": 4}},
            {"x": "y", "a": {"k": {"l": 5, "m": [6]}, "n": 4}},
        ),
        ({"plan": ["deployment", "models"]}, {"x": "y", "a": ["m"]}),
        ({"unprepared": False}, {"x": "y", "a": True}),
    ],
)
def test_what_is_filled_in(later, found):
    variables = HostVariables("n1", {"full": {"k": 1}, "empty": "", "deep": {"k": {"l": 5, "m": [6]}}})
    call = {"arguments": {"x": "y", "a": True}, "later": [{"at": ["a"], **later}]}
    plan = {"servers": [], "deployment": {"models": ["m"]}}
    assert run_steps.filled(call, plan, variables, ["all"]) == found
    assert call["arguments"] == {"x": "y", "a": True}


def test_it_is_filled_in_where_it_belongs_and_the_plan_stays_as_it_is():
    call = {"arguments": {"list": [{"index": None}]}, "later": [{"at": ["list", 0, "index"], "variable": "url"}]}
    variables = HostVariables("n1", {"url": "https://u"})
    assert run_steps.filled(call, {}, variables, []) == {"list": [{"index": "https://u"}]}
    assert call["arguments"] == {"list": [{"index": None}]}


@pytest.mark.parametrize(
    ("only", "prepares"), [(["all"], True), (["preflight"], True), (["tagged"], True), (["serve"], False)]
)
def test_a_run_that_does_not_prepare_says_so(only, prepares):
    call = {"arguments": {"prepares": True}, "later": [{"at": ["prepares"], "unprepared": False}]}
    assert run_steps.filled(call, {}, HostVariables("n1", {}), only) == {"prepares": prepares}
