# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input and secrets through ansible-playbook: exit status and screen, and that nothing was changed."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE, ansible_playbook
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import flat, play_tasks

INVENTORY = """
cpu:
  hosts:
    node1: {ansible_connection: local}
vllm:
  children: {cpu: }
all:
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    fleet_root: %(folder)s/root
    fleet_reports_dir: %(folder)s/reports
    fleet_recipe: cpu-tiny
    fleet_hardware: {accelerator: cpu, count: 1, cores: 2}
"""
SCREEN = {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "4000"}
NOISE = ("Traceback", "Finalization of task args", "Error while resolving", "ignored=1", "rescued=1")


def inventory_of(folder, more=""):
    """An inventory; more: lines of variables."""
    indented = "".join("    %s\n" % line for line in more.splitlines())
    path = folder / "hosts.yml"
    path.write_text(INVENTORY % {"folder": folder} + indented)
    return path


def play(folder, *arguments, more="", playbook="plan", **environment):
    """The Run of a playbook; nothing may have been made below its folder."""
    before = {path.name for path in folder.iterdir()}
    inventory = inventory_of(folder, more)
    arguments = ["playbooks/%s.yml" % playbook, "-i", inventory, *arguments]
    run = ansible_playbook(arguments, environment={**SCREEN, **environment})
    assert {path.name for path in folder.iterdir()} - before <= {"hosts.yml", "cache", "plan.json"}
    return run


@pytest.mark.parametrize(
    ("more", "extra", "parts"),
    [
        ("fleet_override: {arguments: &a {x: *a}}", None, ["Completely failed to parse inventory source", "hosts.yml"]),
        ("fleet_override: {arguments: {x: '{{ nope }}'}}", None, ["fleet_override cannot be worked out", "nope"]),
        ("fleet_rollback: true", None, ["the inventory sets fleet_rollback (node1)"]),
        ("", "fleet_override=port", ['fleet_override is "port"; allowed: a mapping', "with -e as JSON"]),
    ],
)
def test_an_inventory_and_extra_variables(tmp_path, more, extra, parts):
    options = {"more": more} if extra is None else {"playbook": "site"}
    assert "Traceback" not in play(tmp_path, *(["-e", extra] if extra else []), **options).failed(*parts).output


def refused(run, part):
    """One sentence, without Ansible's words around it, and nothing after it."""
    assert run.status not in (0, 250), run.output
    assert "    " + part in run.output or "    node1: " + part in run.output
    assert [noise for noise in NOISE if noise in run.output] == []
    assert "changed=0" in run.output


def test_every_playbook_begins_with_the_plan():
    for path in (CLONE / "playbooks").glob("*.yml"):
        first = yaml.safe_load(path.read_text())[0]
        assert first.get("ansible.builtin.import_playbook") == "steps/plan.yml" or path.name == "plan.yml", path


RATE = ("fleet_weights_min_rate=fast", 'fleet_weights_min_rate is "fast"; allowed: a whole number from 0')


@pytest.mark.parametrize(
    ("playbook", "argument", "part"),
    [
        # each has its own options
        *((playbook, *RATE) for playbook in ("plan", "restart", "services", "site", "status")),
        ("benchmark", "benchmark_profile=nope", 'the recipe cpu-tiny has no benchmark profile "nope"'),
        ("verify", "fleet_play_hosts=nope", 'fleet_play_hosts is "nope", which names no host'),
        ("restart", "fleet_server=nope", 'fleet_server is "nope"; allowed: '),
        ("replace_node", "fleet_node=nope", "fleet_node is 'nope'"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_done(tmp_path, playbook, argument, part):
    refused(play(tmp_path, "-e", argument, playbook=playbook), part)


def test_a_limit_without_an_inference_host_and_an_inventory_that_is_missing(tmp_path):
    """Without the clone's ansible.cfg, which makes an error of it, Ansible goes on with a warning."""
    part = "--limit leaves no host that has fleet_recipe (of other); allowed: one of node1"
    other = tmp_path / "other.yml"
    other.write_text("other:\n  hosts:\n    other: {fleet_recipe: null}\n")
    refused(play(tmp_path, "--limit", "other", "-i", other, playbook="site"), part)
    (tmp_path / "ansible.cfg").write_text("")
    run = ansible_playbook(
        [CLONE / "playbooks" / "services.yml", "-i", tmp_path / "nothing"], folder=tmp_path, cold=True,
        environment={**SCREEN, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")},
    )  # fmt: skip
    assert run.status == 2 and "the inventory has no host" in run.output, run.output


def test_recipes_inside_the_inventory_directory_are_refused_by_every_run(tmp_path):
    """What stands in them is read as an inventory by Ansible, so nothing of the run goes on."""
    folder = tmp_path / "mine"
    recipes = folder / "more" / "recipes"
    recipes.mkdir(parents=True)
    inventory_of(folder)
    jinja = "{{ lookup('pipe', 'touch %s/x') }}" % tmp_path
    (recipes / "ours.yml").write_text(json.dumps({"all": {"vars": {"fleet_recipe": jinja}}}))
    run = ansible_playbook(["playbooks/site.yml", "-i", folder], environment=SCREEN)
    refused(run, "%s is inside the inventory directory" % recipes)
    assert not (tmp_path / "x").exists()


def test_arguments_of_the_module(tmp_path):
    wrong = {"report": "perhaps", "hosts": "nobody", "fil": "x"}
    tasks = [{"inference.fleet.plan": dict([one]), "ignore_errors": True} for one in wrong.items()]
    run = play_tasks(tmp_path, tasks).ok()
    assert run.count("ignored") == 3
    assert all(part in run.output for part in ("perhaps", "nobody", "fil")) and "Traceback" not in run.output


# -- secrets -----------------------------------------------------------------------------------------------------------

KEY = 'sk-a"b\\c/%41&'
SPELLINGS = (KEY, json.dumps(KEY)[1:-1], repr(KEY)[1:-1])
SECRETS = (
    "fleet_override: {secrets: {A: vault_token, B: vault_empty, C: vault_other}}\nvault_empty: ''\n"
    "vault_other: '{{ vault_key }}'\nfleet_api_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n"
    "  33363965326261303234623039623732663234626136373736316163653563\n"
)
LINES = [("A", "vault_token", "is not set"), ("B", "vault_empty", "is empty"),
         ("C", "vault_other", "names 'vault_key', which is not set"),
         ("VLLM_API_KEY", "fleet_api_key", "is in a vault that is locked")]  # fmt: skip


def test_preflight_names_every_secret_without_a_value(tmp_path):
    output = flat(play(tmp_path, more=SECRETS, playbook="preflight").failed().output)
    for line in LINES:
        assert "node1: server-0, server-1: the secret %s comes from the variable '%s', which %s" % line in output
    assert "INFERENCE_FLEET_OTHER_API_KEYS" not in output
    # a run that does not start servers needs neither the variables nor the vault
    assert "the secret" not in play(tmp_path, "--skip-tags", "serve", more=SECRETS, playbook="preflight").output


def test_a_key_is_nowhere_in_the_output_of_a_plan_nor_in_what_is_cached(tmp_path):
    cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "cache")}
    plan = tmp_path / "plan.json"
    text = "fleet_bind_address: 0.0.0.0\nfleet_api_key: %s\n" % json.dumps([KEY, "sk-second"])
    run = play(tmp_path, "-vvv", "--diff", "-e", "fleet_plan_file=%s" % plan, more=text, **cache).ok()
    preflight = play(tmp_path, "-vvv", "--diff", more=text, playbook="preflight", **cache)
    cached = [path.read_text() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    texts = "".join([run.output, preflight.output, plan.read_text(), *cached])
    assert [spelling for spelling in (*SPELLINGS, "sk-second") if spelling in texts] == []
    assert json.loads(plan.read_text())["node1"][0]["secrets"]["VLLM_API_KEY"] == "fleet_api_key"
