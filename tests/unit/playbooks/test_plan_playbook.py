# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml for real, with no host up: what it prints, what it writes, and what it costs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import ansible_playbook

ROOT = Path(__file__).resolve().parents[3]
NOTHING = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": []}]


def play(*arguments, env=None, playbook="plan", cold=False):
    """(status, screen, seconds of processors that it took)."""
    return _play("playbooks/%s.yml" % playbook, *arguments, env=env, cold=cold)


def costs_less_than(times, folder, *arguments):
    """Whether a plan takes less than so many times what a playbook takes that does nothing, in one of three tries."""
    nothing = folder / "nothing.yml"
    nothing.write_text(json.dumps(NOTHING))
    for _try in range(3):
        planned, screen, seconds = play(*arguments, cold=True)
        idle, _screen, least = _play(nothing, "-i", "localhost,", cold=True)
        assert (planned, idle) == (0, 0), screen
        if seconds < times * least:
            return True
    return False


def _play(playbook, *arguments, env=None, cold=False):
    run = ansible_playbook([playbook, *arguments], environment=env, cold=cold)
    return run.status, run.output, run.processor_s


def test_plan_of_an_inventory(tmp_path):
    path, before = tmp_path / "plan.json", None
    for changed in (1, 0):
        status, output, _seconds = play("-i", "inventories/local", "-e", "fleet_plan_file=%s" % path)
        assert status == 0 and "changed=%d" % changed in output, output
        (entries,) = json.loads(path.read_text()).values()
        assert len(entries) == 2
        for entry in entries:
            assert "%s:%d" % (entry["bind"], entry["port"]) in output
        assert before in (None, path.read_bytes())
        before = path.read_bytes()


def test_both_shapes_of_a_trainium3_server(tmp_path):
    """A host that is put into the other group of inventories/trn3 gets two servers."""
    (tmp_path / "more.yml").write_text("trn3_4_chips:\n  hosts:\n    trn3-2:\n")
    path = tmp_path / "plan.json"
    status, output, _seconds = play(
        "-i", "inventories/trn3", "-i", tmp_path / "more.yml", "-e", "fleet_plan_file=%s" % path
    )
    assert status == 0, output
    plan = json.loads(path.read_text())
    assert {host: len(entries) for host, entries in plan.items()} == {"trn3-1": 8, "trn3-2": 2}
    artifacts = {entry["directories"]["artifact"] for entries in plan.values() for entry in entries}
    assert len(artifacts) == 1  # compiled on one of them, fit for the other


@pytest.fixture
def hundred(tmp_path):
    """An inventory of 100 Trainium3 nodes, none of which is up; one variable is locked in a vault."""
    folder = tmp_path / "fleet"
    (folder / "group_vars").mkdir(parents=True)
    hosts = "".join("    node%d:\n" % index for index in range(100))
    (folder / "hosts.yml").write_text("neuron:\n  hosts:\n" + hosts + "vllm:\n  children:\n    neuron:\n")
    (folder / "group_vars" / "all.yml").write_text(
        "fleet_recipe: trn3-eagle3\n"
        "fleet_hardware: {accelerator: trainium3, count: '{{ fleet_chips }}'}\n"
        "fleet_chips: 16\n"
        "fleet_override_secret: {secrets: {HF_TOKEN: vault_token}}\n"
        "vault_token: !vault |\n"
        "  $ANSIBLE_VAULT;1.1;AES256\n"
        "  33363965326261303234623039623732663234626136373736316163653563\n"
    )
    return folder


def test_plan_of_a_hundred_hosts_without_the_vault(hundred, tmp_path):
    path = tmp_path / "plan.json"
    status, output, _seconds = play("-i", hundred, "-e", "fleet_plan_file=%s" % path)
    assert status == 0, output
    plan = json.loads(path.read_text())
    assert len(plan) == 100
    assert sum(len(entries) for entries in plan.values()) == 800
    assert plan["node99"][0]["secrets"] == {"HF_TOKEN": "vault_token"}


@pytest.mark.soak  # test_local.py compares a converged run with a plan
def test_a_plan_costs_little_more_than_a_playbook_that_does_nothing(hundred, tmp_path):
    """1.2 times as much for a host, 1.8 times for a hundred; compared, so that no machine is too slow for it."""
    assert costs_less_than(3, tmp_path, "-i", "inventories/trn3")
    assert costs_less_than(6, tmp_path, "-i", hundred)


def test_the_table_is_shown_by_another_callback():
    status, output, _seconds = play(
        "-i", "inventories/local", env={"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    )
    assert status == 0, output
    assert output.count("\nPLAN **") == output.count("\nlocalhost  server-1  ") == 1


TOO_LARGE = {"fleet_override": {"arguments": {"max-model-len": 131072, "kv-cache-memory-bytes": "32M"}}}


@pytest.mark.parametrize(("playbook", "refused"), [("stop", False), ("prepare", True), ("serve", True)])
def test_what_cannot_fit_can_be_stopped_and_does_not_take_the_place_of_what_runs(tmp_path, playbook, refused):
    """serve.yml alone has no preflight before it."""
    status, output, _seconds = play(
        "-i", "inventories/local", "-e", json.dumps(TOO_LARGE), playbook=playbook, env={"FLEET_ROOT": str(tmp_path)}
    )
    assert (status != 0) is refused, output
    assert ("one request of max-model-len 131072 needs 64 MiB of KV cache" in output) is refused
    assert os.listdir(tmp_path) == []
    assert not refused or output.count("TASK [") == 1


def test_recipe_beside_the_inventory_is_found(hundred):
    (hundred.parent / "recipes").mkdir()
    text = "schema: 1\nname: ours\nextends: trn3-eagle3\nservers: {server: {port: 7000}}\n"
    (hundred.parent / "recipes" / "ours.yml").write_text(text)
    status, output, _seconds = play("-i", hundred, "--limit", "node3", "-e", "fleet_recipe=ours")
    assert status == 0, output
    assert "127.0.0.1:7007" in output


def test_unknown_recipe_is_one_message_for_the_whole_fleet(hundred):
    status, output, _seconds = play("-i", hundred, "-e", "fleet_recipe=trn3-eagle4")
    assert status != 0
    assert output.count("which does not exist") == 1
    assert 'node0, node1, node2 and 97 more: fleet_recipe is "trn3-eagle4", which does not exist; did you' in output


@pytest.fixture
def bare(tmp_path):
    """A host of the CPU platform about which the inventory says nothing else."""
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {"cpu": {"hosts": {"node-1": {**variables, "fleet_root": str(tmp_path / "root")}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    return tmp_path / "hosts.json"


FORGOTTEN = (
    "[WARNING]: node-1: fleet_hardware is set, but fleet_recipe is not, so no servers are planned there. Set "
    "fleet_recipe (recipes: "
)
NO_RECIPE = "no host has the variable fleet_recipe, so there is nothing to deploy; allowed: "


def test_an_inventory_without_recipe_is_an_error_with_its_code(bare, tmp_path):
    variables = {"fleet_reports_dir": str(tmp_path / "reports"), "fleet_hardware": {"accelerator": "cpu", "count": 1}}
    status, output, _seconds = play("-i", bare, "-e", json.dumps(variables), "-v", playbook="site")
    assert status != 0
    assert NO_RECIPE in " ".join(output.split()) and "code: inventory.no-host" in output
    assert "is undefined" not in output
    assert "Traceback" not in output
    assert not (tmp_path / "root").exists()


def test_what_runs_without_a_recipe_can_be_stopped(bare):
    """Where the host has fleet_hardware; a host that has neither is no inference host."""
    hardware, playbook = json.dumps({"fleet_hardware": {"accelerator": "cpu", "count": 1}}), "stop"
    status, output, _seconds = play("-i", bare, "-e", hardware, playbook=playbook)
    assert status == 0, output
    assert " ".join(output.split()).count(FORGOTTEN) == 1
    assert "node-1 : ok=" in " ".join(output.split())
    status, output, _seconds = play("-i", bare, playbook=playbook)
    assert status != 0
    assert NO_RECIPE in " ".join(output.split())


@pytest.fixture
def mixed(tmp_path):
    """Two inference hosts in groups of any names, and a host of somebody else's in a group nvidia."""
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    ours = {**variables, "fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}}
    inventory = {
        "web": {"hosts": {"a": {**ours, "fleet_root": str(tmp_path / "a")}}},
        "neuron": {"hosts": {"b": {**ours, "fleet_root": str(tmp_path / "b"), "fleet_override": PORTS}}},
        "nvidia": {"hosts": {"gpu1": {"ansible_host": "192.0.2.1"}}},
    }
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    return tmp_path / "hosts.json"


PORTS = {"servers": {"server": {"port": 9000}}}


def recap(output):
    return sorted(re.findall(r"^(\S+) +: ok=", output, re.M))


@pytest.mark.parametrize(
    ("arguments", "hosts"), [(("--limit", "b"), ["b"]), (("--check", "-e", "fleet_play_hosts=web"), ["a"])]
)
def test_every_host_with_a_recipe_is_ours_whatever_its_groups(mixed, arguments, hosts):
    """A group's name says nothing: not that a host is one of ours, nor what it runs."""
    status, output, _seconds = play("-i", mixed, "-e", "fleet_status_strict=false", *arguments, playbook="status")
    assert status == 0, output
    assert [host for host in ("a", "b") if "\n%s     server-0" % host in output] == hosts
    assert "gpu1" not in output


def test_a_host_that_cannot_be_planned_takes_nothing_from_the_others(mixed):
    """Of a single playbook; site.yml refuses a mistake in the hosts that --limit leaves."""
    inventory = json.loads(mixed.read_text())
    inventory["web"]["hosts"]["a"]["fleet_override"] = {"nothing": 1}
    mixed.write_text(json.dumps(inventory))
    status, output, _seconds = play("-i", mixed, playbook="logs")
    assert status == 2, output
    assert "unknown key 'nothing'" in " ".join(output.split())
    assert re.search(r"^b +: ok=.*failed=0", output, re.M)
    status, output, _seconds = play("-i", mixed, "--limit", "b", "--tags", "nothing", playbook="site")
    assert status == 0, output
    assert recap(output) == ["b"]
    assert "a: outside of --limit, and cannot be planned" in " ".join(output.split())


def test_the_plan_is_made_once_in_a_run(mixed, tmp_path):
    """Whatever reads it: lookups in every task, also of other hosts, and a loop."""
    book = [
        {"import_playbook": str(ROOT / "playbooks" / "steps" / "plan.yml")},
        {
            "hosts": "{{ query('inference.fleet.hosts') }}",
            "gather_facts": False,
            "vars": {"fleet_servers": "{{ lookup('inference.fleet.plan') }}"},
            "tasks": [
                {"ansible.builtin.debug": {"msg": "{{ fleet_servers | length }} {{ item }}"}, "loop": [1, 2]},
                {"ansible.builtin.debug": {"msg": "{{ query('inference.fleet.plan', 'a', 'b') | flatten | length }}"}},
            ],
        },
    ]
    (tmp_path / "book.yml").write_text(json.dumps(book))
    (tmp_path / "sitecustomize.py").write_text(COUNTER)
    status, output, _seconds = _play(tmp_path / "book.yml", "-i", mixed, env={"PYTHONPATH": str(tmp_path)})
    assert status == 0, output
    assert "4" in output
    assert sorted((tmp_path / "planned").read_text().split()) == ["a", "b", "gpu1"]


# Writes a host's name each time that it is planned, in whatever process.
COUNTER = """
import os, sys
def look(frame, event, _argument):
    if event == "call" and frame.f_code.co_name == "plan_one" and frame.f_code.co_filename.endswith("fleet.py"):
        with open(os.path.join(os.path.dirname(__file__), "planned"), "a") as stream:
            stream.write(frame.f_locals["variables"].host + "\\n")
sys.setprofile(look)
"""
