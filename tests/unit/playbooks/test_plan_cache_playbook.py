# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run whose plan is kept: what it prints, and what it does not import, in its main process and in its tasks'."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ansible_collections.inference.fleet.tests.runs import ansible_playbook

ROOT = Path(__file__).resolve().parents[3]
# The planner: whatever reads recipes, checks variables or knows engines and platforms.
PLANNER = re.compile(
    r".*/(jsonschema/__init__|fleet/plugins/plugin_utils/((engines|platforms|models|measure)/.*|recipe/(?!words)[a-z].*|"
    r"planning/(fleet|plan|hardware|capacity|variables|services|steps)))"
    r"\.py"
)
# Python runs this first in each process: it writes down which modules are run, in the processes of tasks too.
WATCH = """
import os, sys

def note(event, given):
    if event == "exec" and getattr(given[0], "co_name", "") == "<module>":
        with open(os.environ["MODULES_THAT_RUN"], "a") as stream:
            stream.write(given[0].co_filename + "\\n")

sys.addaudithook(note)
"""


def test_a_run_whose_plan_is_kept_imports_no_planner(tmp_path):
    book = tmp_path / "book.yml"
    took = "{{ query('inference.fleet.plan', *query('inference.fleet.hosts')) | flatten | inference.fleet.poll_wait }}"
    book.write_text(
        json.dumps(
            [
                {
                    "import_playbook": str(ROOT / "playbooks" / "steps" / "plan.yml"),
                    "vars": {"plan_strict": True, "plan_secrets": True},
                },
                {
                    "hosts": "{{ query('inference.fleet.hosts', step='serve') }}",
                    "gather_facts": False,
                    "vars": {"fleet_deployment": "{{ lookup('inference.fleet.plan', field='deployment') }}"},
                    "tasks": [
                        {"ansible.builtin.debug": {"msg": "{{ fleet_deployment.name }} " + took}},
                        {"inference.fleet.node": {"operation": "check"}},
                    ],
                    "tags": ["weights"],
                },
            ]
        )
    )
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    found = []
    for turn in ("first", "second"):
        environment = {
            "INFERENCE_FLEET_PLAN_CACHE": str(tmp_path / "plans"),
            "MODULES_THAT_RUN": str(tmp_path / turn),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]),
        }
        arguments = [book, "-i", "inventories/local", "--tags", "weights"]
        run = ansible_playbook(arguments, environment=environment, cold=True)
        assert run.status == 0, run.output
        assert "cpu-tiny 9" in run.output
        names = set((tmp_path / turn).read_text().splitlines())
        for name in ("run_plan.py", "run_look.py"):
            assert [one for one in names if one.endswith("/planning/" + name)]
        assert [name for name in names if name.endswith("/filter/servers.py")]  # with one filter come all
        found.append({name for name in names if PLANNER.fullmatch(name)})
    for name in (
        "planning/fleet.py",
        "planning/variables.py",
        "planning/steps.py",
        "engines/vllm.py",
        "recipe/load.py",
        "jsonschema/__init__.py",
    ):
        assert [one for one in found[0] if one.endswith("/" + name)], name
    assert found[1] == set()
