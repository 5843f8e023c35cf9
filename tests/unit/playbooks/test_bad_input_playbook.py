# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input through ansible-playbook: exit status and screen, and that nothing was changed."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.tests.runs import CLONE, ansible_playbook

INVENTORY = """
cpu:
  hosts:
    node1: {ansible_connection: local}
vllm:
  children: {cpu: }
all:
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    fleet_root: %s/root
    fleet_reports_dir: %s/reports
    fleet_recipe: cpu-tiny
    fleet_hardware: {accelerator: cpu, count: 1, cores: 2}
%s
"""


def play(folder, *arguments, inventory=None, more="", playbook="plan"):
    """(status, screen) of a playbook; nothing may have been made below its folder."""
    (folder / "hosts.yml").write_text(INVENTORY % (folder, folder, more) if inventory is None else inventory)
    run = ansible_playbook(
        ["playbooks/%s.yml" % playbook, "-i", folder / "hosts.yml", *arguments],
        environment={"ANSIBLE_NOCOLOR": "1", "COLUMNS": "4000"},
    )
    assert {path.name for path in folder.iterdir()} <= {"hosts.yml", "recipes"}
    return run.status, run.output


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ("    fleet_override: {arguments: &a {x: *a}}", ["Completely failed to parse inventory source", "hosts.yml"]),
        ("    fleet_override: {arguments: {a: 1, a: 2}}", ["'a'", "hosts.yml"]),
        ("    fleet_override: {arguments: {x: '{{ nope }}'}}", ["fleet_override cannot be worked out", "nope"]),
        ("    fleet_bind_address: 300.1.1.1\n    fleet_verify: fast", ["fleet_bind_address is", "fleet_verify is"]),
        ("    fleet_override: !vault |\n      $ANSIBLE_VAULT;1.1;AES256\n      3336", ["fleet_override"]),
    ],
)
def test_an_inventory(tmp_path, more, parts):
    status, screen = play(tmp_path, more=more)
    assert status != 0
    for part in parts:
        assert part in screen
    assert "Traceback" not in screen


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        ("fleet_override=port", ['fleet_override is "port"; allowed: a mapping of recipe keys', "with -e as JSON"]),
        ('{"fleet_override": {"start": {"budget_s": NaN}}}', ["'start.budget_s' is NaN (float)"]),
    ],
)
def test_an_extra_variable_stops_site_before_anything_is_changed(tmp_path, extra, parts):
    status, screen = play(tmp_path, "-e", extra, playbook="site")
    assert status == 2
    for part in parts:
        assert part in screen
    assert "Traceback" not in screen


PLAYBOOKS = sorted(path.stem for path in (CLONE / "playbooks").glob("*.yml"))


def refused(status, screen, part):
    """One sentence, without Ansible's words around it, and nothing after it."""
    assert status not in (0, 250), screen
    assert "    " + part in screen or "    node1: " + part in screen
    for noise in ("Traceback", "Finalization of task args", "Error while resolving", "ignored=1", "rescued=1"):
        assert noise not in screen
    assert "changed=0" in screen


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_every_playbook_refuses_a_wrong_value_before_it_does_anything(tmp_path, playbook):
    status, screen = play(tmp_path, "-e", "fleet_log_rate=fast", playbook=playbook)
    refused(status, screen, 'fleet_log_rate is "fast"; allowed: a whole number from 0')


@pytest.mark.parametrize(
    ("playbook", "arguments", "part"),
    [
        ("benchmark", ["-e", "benchmark_profile=nope"], 'the recipe cpu-tiny has no benchmark profile "nope"'),
        ("evaluate", ["-e", "evaluate_profile=nope"], 'evaluate_profile is "nope"; allowed: full, smoke'),
        ("stop", ["-e", "fleet_recipe=nope"], 'fleet_recipe is "nope", which does not exist'),
        ("verify", ["-e", "fleet_play_hosts=nope"], 'fleet_play_hosts is "nope", which names no host'),
        ("restart", [], "fleet_server is "),
        ("restart", ["-e", "fleet_server=nope"], 'fleet_server is "nope"; allowed: '),
        ("replace_node", ["-e", "fleet_node=nope"], "fleet_node is 'nope'"),
        (
            "site",
            ["--limit", "other"],
            "--limit leaves no host that has fleet_recipe (of other); allowed: one of node1",
        ),
    ],
)
def test_a_wrong_name_is_refused_by_the_first_task(tmp_path, playbook, arguments, part):
    others = "other:\n  hosts:\n    other: {fleet_recipe: null}\n" if "other" in arguments else ""
    status, screen = play(
        tmp_path, *arguments, inventory=INVENTORY % (tmp_path, tmp_path, "") + others, playbook=playbook
    )
    refused(status, screen, part)


def test_an_inventory_file_that_is_missing(tmp_path):
    """Without the clone's ansible.cfg, which makes an error of it, Ansible goes on with a warning."""
    (tmp_path / "ansible.cfg").write_text("")
    run = ansible_playbook(
        [CLONE / "playbooks" / "services.yml", "-i", tmp_path / "nothing"], folder=tmp_path, cold=True,
        environment={"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
    )  # fmt: skip
    assert run.status == 2, run.output
    assert "the inventory has no host" in run.output


def test_recipes_inside_the_inventory_directory_are_refused_by_every_run(tmp_path):
    """What stands in them is read as an inventory by Ansible, so nothing of the run goes on."""
    folder = tmp_path / "mine"
    (folder / "recipes").mkdir(parents=True)
    (folder / "hosts.yml").write_text(INVENTORY % (tmp_path, tmp_path, ""))
    jinja = "{{ lookup('pipe', 'touch %s/x') }}" % tmp_path
    (folder / "recipes" / "ours.yml").write_text(json.dumps({"all": {"vars": {"fleet_recipe": jinja}}}))
    environment = {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "4000"}
    run = ansible_playbook(["playbooks/site.yml", "-i", folder], environment=environment)
    refused(run.status, run.output, "%s/recipes is inside the inventory directory" % folder)
    assert not (tmp_path / "x").exists()


def test_arguments_of_the_module(tmp_path):
    playbook, wrong = tmp_path / "p.yml", ({"report": "perhaps"}, {"hosts": "nobody"}, {"fil": "x"})
    tasks = [{"inference.fleet.plan": arguments, "ignore_errors": True} for arguments in wrong]
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    run = ansible_playbook([playbook]).ok()
    assert run.count("ignored") == 3
    for part in ("perhaps", "nobody", "fil"):
        assert part in run.output
    assert "Traceback" not in run.output
