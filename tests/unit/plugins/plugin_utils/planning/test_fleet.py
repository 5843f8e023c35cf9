# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import metrics
from ansible_collections.inference.fleet.plugins.plugin_utils.base import checks as input_checks
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet, inventory
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts, HostVariables
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import known, recipe_paths
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.plans import LOCAL, Lazy, plan_of

HOSTVARS = {
    "ours": Lazy(LOCAL),
    "broken": Lazy({"fleet_recipe": RuntimeError("'x' is undefined")}),
    "theirs": {"ansible_host": "192.0.2.1"},
    "taken-out": {"fleet_recipe": None},
    "bare": {"fleet_hardware": LOCAL["fleet_hardware"]},
}


@pytest.mark.parametrize(
    ("hosts", "deployed", "found"),
    [(HOSTVARS, False, ["ours", "broken"]), (HOSTVARS, True, ["ours", "broken", "bare"]), (["theirs"], True, [])],
)
def test_inference_hosts_are_those_with_a_recipe(hosts, deployed, found):
    assert inventory.inference_hosts(hosts, Hosts(HOSTVARS.get), deployed) == found


def test_a_limit_that_leaves_nobody_is_an_error():
    """A host of a service's group is somebody, also in a group of another name."""
    groups = {"groups": {"all": ["ours", "theirs"], "etcd": ["theirs"], "monitoring": ["watch"]}}
    inventory.check_limit(["ours"], ["ours"], {"groups": {}})
    inventory.check_limit(["ours"], ["theirs"], groups)
    inventory.check_limit(["ours"], ["watch"], groups)
    error = plans.error(inventory.check_limit, ["ours"], ["theirs"], {**groups, "etcd_group": "others"})
    assert (error.code, error.values) == ("inventory.limit-empty", ("theirs", "ours"))


@pytest.mark.parametrize("changes", [{"fleet_root": "here"}, {"fleet_recipe": "nope"}, {"fleet_weights_min_rate": "x"}])
def test_mistakes_of_hosts_outside_the_limit_do_not_count(changes):
    hosts = {"a": Lazy({**LOCAL, **changes}), "b": Lazy(LOCAL)}
    assert list(fleet.plan_fleet(hosts, hosts.get, limit=["b"])) == ["b"]
    plans.error(fleet.plan_fleet, hosts, hosts.get, limit=["a"])


def test_every_variable_of_the_collection_is_guarded_against_slips():
    """Names in what is installed; the words that only look like them stand here."""
    root = pathlib.Path(fleet.__file__).resolve().parents[3]
    paths = [path for folder in ("playbooks", "plugins", "roles") for path in (root / folder).rglob("*")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths if path.suffix in (".md", ".py", ".yml"))
    names = {name for name in re.findall(r"\bfleet_[a-z0-9_]+", text) if not name.startswith("fleet_override_")}
    # keys of results, of statistics of the run; what an example registers
    names -= {"fleet_" + one for one in ("certificate", "doctor", "page", "report", "verdict", "status", "planned")}
    assert names - set(metrics.FAMILIES) == known()


def test_equal_mistakes_of_many_hosts_are_told_once():
    hosts = ["node%d" % index for index in range(100)]
    message = plans.error(plan_of, {**LOCAL, "fleet_hardware": None}, hosts).message
    assert message.startswith("node0, node1, node2 and 97 more: ")
    assert "\n" not in message


def test_hardware_of_texts():
    hardware = parse_hardware({"accelerator": "trainium3", "count": "16", "lnc": "2", "memory_gib": "144"}, "x")
    assert (hardware.units, hardware.unit, hardware.memory_gib) == (64, "logical core", 144.0)
    assert parse_hardware({"accelerator": "b200", "count": 8}, "x").units == 8


def test_clean_keeps_types_and_drops_tags():
    class Tagged(str):
        pass

    value = input_checks.clean({"a": (True, None, 1, 1.5, Tagged("x")), "2": {"b": False}}, "x")
    assert value == {"a": [True, None, 1, 1.5, "x"], "2": {"b": False}}
    assert [type(item) for item in value["a"]] == [bool, type(None), int, float, str]


def test_recipes_are_looked_for_beside_the_inventory(tmp_path):
    source, folders = tmp_path / "mine" / "hosts.yml", [tmp_path / "a", tmp_path / "b"]
    for folder in (source.parent, *folders):
        folder.mkdir()
    source.write_text("")
    given = {"fleet_recipe_paths": list(map(str, folders))}
    expected = [*map(str, folders), str(tmp_path / "recipes")]
    assert recipe_paths(HostVariables("x", given, [str(source.parent)])) == expected
    beside = [*expected[:2], str(source.parent / "recipes"), expected[2]]
    assert recipe_paths(HostVariables("x", given, [str(source)])) == beside


@pytest.mark.parametrize(("name", "refused"), [("ours", True), (".ours", False)])
def test_fleet_recipe_paths_leads_into_no_inventory_directory(tmp_path, name, refused):
    """Ansible passes over hidden folders."""
    (tmp_path / name).mkdir()
    variables = HostVariables("x", {"fleet_recipe_paths": [str(tmp_path / name)]}, [str(tmp_path)])
    if refused:
        assert plans.error(recipe_paths, variables).code == "inventory.recipes-inside"
    else:
        assert recipe_paths(variables)[0] == str(tmp_path / name)


def test_equal_hosts_share_rows_and_others_do_not():
    """Whether they listen on loopback or each on its own address; what differs otherwise is not hidden."""
    for own in (False, True):
        planned = {}
        for number in range(1, 11):
            changes = {"fleet_bind_address": "10.0.0.%d" % number} if own else {}
            if number == 5:
                changes["fleet_override"] = {"arguments": {"max-num-seqs": 3}}
            planned.update(plan_of({**LOCAL, **changes}, hosts=["n%d" % number]))
        rows = fleet.plan_table(planned)["rows"]
        shown = [[host, "server-%d" % number] for host in ("n1, n2, n3 and 6 more", "n5") for number in range(2)]
        assert [row[:2] for row in rows] == shown
        expected = ("10.0.0.1:8000 … 10.0.0.10:8000", "differs") if own else ("127.0.0.1:8000", rows[0][8])
        assert (rows[0][3], rows[0][8]) == expected and rows[0][8] != rows[2][8]
