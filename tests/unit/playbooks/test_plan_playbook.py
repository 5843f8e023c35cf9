# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml for real, with no host up: what it prints, writes and costs, and what a run does with the plan."""

from __future__ import annotations

import json
import os
import re

import pytest
from ansible_collections.inference.fleet.tests.runs import CLONE, ansible_playbook, play
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import CPU, LOCAL, flat, hosts_file, tasks_play


def run(inventory, *arguments, playbook="plan", **options):
    return play("playbooks/%s.yml" % playbook, inventory, *arguments, **options)


def plan_of(path):
    return json.loads(path.read_text())


def test_both_shapes_of_a_trainium3_server(tmp_path):
    """A host that is put into the other group of inventories/trn3 gets two servers."""
    (tmp_path / "more.yml").write_text("trn3_4_chips:\n  hosts:\n    trn3-2:\n")
    path = tmp_path / "plan.json"
    run("inventories/trn3", "-i", tmp_path / "more.yml", "-e", "fleet_plan_file=%s" % path).ok()
    assert {host: len(entries) for host, entries in plan_of(path).items()} == {"trn3-1": 8, "trn3-2": 2}
    artifacts = {entry["directories"]["artifact"] for entries in plan_of(path).values() for entry in entries}
    assert len(artifacts) == 1  # compiled on one of them, fit for the other


def test_plan_of_many_hosts_without_the_vault_and_with_a_recipe_beside_the_inventory(tmp_path):
    folder, path = tmp_path / "fleet", tmp_path / "plan.json"
    (folder / "group_vars").mkdir(parents=True)
    hosts_file(folder, {"node%d" % index: None for index in range(10)}, ("neuron", "vllm"))
    (folder / "group_vars" / "all.yml").write_text(
        "fleet_recipe: ours\n"
        "fleet_hardware: {accelerator: trainium3, count: '{{ fleet_chips }}'}\n"
        "fleet_chips: 16\n"
        "fleet_override_secret: {secrets: {HF_TOKEN: vault_token}}\n"
        "vault_token: !vault |\n"
        "  $ANSIBLE_VAULT;1.1;AES256\n"
        "  33363965326261303234623039623732663234626136373736316163653563\n"
    )
    (tmp_path / "recipes").mkdir()
    recipe = "schema: 1\nname: ours\nextends: trn3-eagle3\nservers: {server: {port: 7000}}\n"
    (tmp_path / "recipes" / "ours.yml").write_text(recipe)
    for changed in (1, 0):
        done = run(folder, "-e", "fleet_plan_file=%s" % path).ok()
        assert "changed=%d" % changed in done.output
    assert [len(entries) for entries in plan_of(path).values()] == [8] * 10
    assert plan_of(path)["node9"][0]["secrets"] == {"HF_TOKEN": "vault_token"}
    assert "127.0.0.1:7007" in done.output


TOO_LARGE = {"fleet_override": {"arguments": {"max-model-len": 131072, "kv-cache-memory-bytes": "32M"}}}


@pytest.mark.parametrize(("playbook", "refused"), [("stop", False), ("serve", True)])
def test_what_cannot_fit_can_be_stopped_and_does_not_take_the_place_of_what_runs(tmp_path, playbook, refused):
    """serve.yml alone has no preflight before it."""
    root = {"FLEET_ROOT": str(tmp_path)}
    done = run("inventories/local", playbook=playbook, variables=TOO_LARGE, environment=root)
    assert (done.status != 0) is refused, done.output
    assert ("one request of max-model-len 131072 needs 64 MiB of KV cache" in done.output) is refused
    assert os.listdir(tmp_path) == []
    assert not refused or done.output.count("TASK [") == 1


HARDWARE = {"fleet_hardware": {"accelerator": "cpu", "count": 1}}


def test_an_inventory_without_recipe_is_an_error_with_its_code_and_can_be_stopped(tmp_path):
    """Where the host has fleet_hardware; a host that has neither is no inference host."""
    bare = hosts_file(tmp_path, {"node-1": {**LOCAL, "fleet_root": str(tmp_path / "root")}}, ["cpu"])
    variables = {**HARDWARE, "fleet_reports_dir": str(tmp_path / "reports")}
    done = run(bare, "-v", playbook="site", variables=variables).failed("code: inventory.no-recipe")
    assert "is undefined" not in done.output and "Traceback" not in done.output
    assert not (tmp_path / "root").exists()
    output = flat(run(bare, playbook="stop", variables=HARDWARE).ok().output)
    assert output.count("fleet_hardware is set, but fleet_recipe is not") == 1 and "node-1 : ok=" in output
    run(bare, "-v", playbook="stop").failed("code: inventory.no-recipe")


def test_a_host_that_cannot_be_planned_takes_nothing_from_the_others(tmp_path):
    """Of a single playbook; site.yml refuses a mistake in the hosts that --limit leaves. Groups have any names, and
    nvidia is one of others."""
    ours = {name: {**LOCAL, **CPU, "fleet_root": str(tmp_path / name)} for name in "ab"}
    ours["a"]["fleet_override"] = {"nothing": 1}
    ours["b"]["fleet_override"] = {"servers": {"server": {"port": 9000}}}
    others = {"neuron": {"hosts": {"b": ours.pop("b")}}, "nvidia": {"hosts": {"gpu1": {"ansible_host": "192.0.2.1"}}}}
    inventory = hosts_file(tmp_path, ours, ["web"], **others)
    done = run(inventory, playbook="logs")
    assert done.status == 2 and "unknown key 'nothing'" in flat(done.output)
    assert re.search(r"^b +: ok=.*failed=0", done.output, re.M)
    output = run(inventory, "--limit", "b", "--tags", "nothing", playbook="site").ok().output
    assert re.findall(r"^(\S+) +: ok=", output, re.M) == ["b"]
    assert "a: outside of --limit, and cannot be planned" in flat(output)


# -- the plan of a run -------------------------------------------------------------------------------------------------


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
    took = "{{ query('inference.fleet.plan', *query('inference.fleet.hosts')) | flatten | inference.fleet.poll_wait }}"
    shown = {"ansible.builtin.debug": {"msg": "{{ fleet_deployment.name }} " + took}}
    steps = {"import_playbook": str(CLONE / "playbooks" / "steps" / "plan.yml"),
             "vars": {"plan_strict": True, "plan_secrets": True}}  # fmt: skip
    tasks = tasks_play(
        [shown, {"inference.fleet.node": {"operation": "check"}}], tags=["weights"],
        hosts="{{ query('inference.fleet.hosts', step='serve') }}",
        vars={"fleet_deployment": "{{ lookup('inference.fleet.plan', field='deployment') }}"},
    )  # fmt: skip
    book = tmp_path / "book.yml"
    book.write_text(json.dumps([steps, tasks]))
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    found = []
    for turn in ("first", "second"):
        environment = {
            "INFERENCE_FLEET_PLAN_CACHE": str(tmp_path / "plans"),
            "MODULES_THAT_RUN": str(tmp_path / turn),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]),
        }
        arguments = [book, "-i", "inventories/local", "--tags", "weights"]
        assert "cpu-tiny 9" in ansible_playbook(arguments, environment=environment, cold=True).ok().output
        names = set((tmp_path / turn).read_text().splitlines())
        for name in ("planning/run_plan.py", "planning/run_look.py", "filter/servers.py"):  # with one filter come all
            assert [one for one in names if one.endswith("/" + name)]
        found.append({name for name in names if PLANNER.fullmatch(name)})
    for name in ("planning/fleet.py", "planning/variables.py", "planning/steps.py", "engines/vllm.py", "recipe/load.py",
                 "jsonschema/__init__.py"):  # fmt: skip
        assert [one for one in found[0] if one.endswith("/" + name)], name
    assert found[1] == set()
