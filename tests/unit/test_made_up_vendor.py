# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A vendor and an engine beside those there are: their files in a copy of the collection, and no other file changes."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

CLONE = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = CLONE / "tests/unit/fixtures/made_up_vendor"
ADDED = {
    "platform.py": "plugins/plugin_utils/platforms/abacus.py",
    "engine.py": "plugins/plugin_utils/engines/counter.py",
    "recipe.yml": "recipes/abacus-counter.yml",
}
SCRIPT = """
import json
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, fleet, plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import problems, recipe_schema
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import page

recipe = load.resolve_recipe(load.find_recipe("abacus-counter", []), [])
hardware = parse_hardware({"accelerator": "abacus1", "count": 4}, "n1")
entries = plan.plan_host("n1", recipe, hardware, plan.Site())
schema = recipe_schema()["properties"]
host = {"fleet_recipe": "abacus-counter", "fleet_hardware": {"accelerator": "abacus1", "count": 4}}
steps = fleet.plan_hosts(["n1"], Hosts(lambda name: host), True)["n1"]["steps"]
(problem,) = problems({**recipe, "engine": "countr"})
print(json.dumps({
    "platforms": schema["platform"]["enum"], "engines": schema["engine"]["enum"], "problem": problem[1],
    "entries": entries, "capacity": capacity.check(entries, plan.deployment(recipe, plan.Site(), "n1"), hardware),
    "steps": steps, "labels": [page._label(page.PLATFORMS, "abacus"), page._label(page.ENGINES, "counter")],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Environment in which python and ansible see the collection with the added files."""
    folder = tmp_path_factory.mktemp("vendor")
    fleet = folder / "ansible_collections/inference/fleet"
    for name in ("plugins", "recipes", "roles", "playbooks", "meta"):
        shutil.copytree(CLONE / name, fleet / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in CLONE.glob("*.yml"):
        shutil.copy(path, fleet)
    for name, place in ADDED.items():
        assert not (fleet / place).exists()
        shutil.copy(FIXTURES / name, fleet / place)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON"))}
    environment.update(
        PYTHONPATH=str(folder), ANSIBLE_COLLECTIONS_PATH=str(folder), ANSIBLE_HOME=str(folder / "home"),
        ANSIBLE_NOCOLOR="1", ANSIBLE_STDOUT_CALLBACK="default",
    )  # fmt: skip
    return folder, environment


def run(copy, *argv):
    folder, environment = copy
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seen(copy):
    return json.loads(run(copy, sys.executable, "-c", SCRIPT))


def test_the_schema_has_them(seen):
    assert "abacus" in seen["platforms"]
    assert "counter" in seen["engines"]
    assert seen["problem"] == "'engine' is \"countr\"; allowed: counter, dynamo, sglang, trtllm, vllm"


def test_its_servers_are_planned(seen):
    first, second = seen["entries"]
    assert (first["platform"], first["engine"], second["devices"]) == ("abacus", "counter", [2, 3])
    assert second["arguments"] == {"beads": "20", "listen-port": "8001", "seats": 7, "tensor-parallel-size": "2"}
    assert second["container"]["devices"] == ["/dev/rod2", "/dev/rod3"]
    assert second["hooks"] == {}


def test_its_memory_is_counted(seen):
    first = seen["capacity"][0]
    assert (first["verdict"], first["memory_gib"], first["max_seqs"]) == ("ok", 256, 7)


def test_a_vendor_that_does_not_say_what_its_role_does_is_prepared_each_time(seen):
    reasons = {one["step"]: one["reason"] for one in seen["steps"] if "reason" in one}
    assert reasons == {"prepare": "what the role abacus does is known to no plan, so it is run each time"}


def test_the_page_has_their_labels(seen):
    assert seen["labels"] == ["Abacus Works", "Counter"]


def test_an_inventory_of_it_is_planned(copy):
    ansible = str(pathlib.Path(sys.executable).with_name("ansible"))
    message = "msg={{ lookup('inference.fleet.plan') | map(attribute='name') | list }}"
    output = run(copy, ansible, "n1", "-i", str(FIXTURES / "inventory.yml"), "-m", "debug", "-a", message)
    assert json.loads(output[output.index("=> ") + 3 :])["msg"] == ["server-0", "server-1"]
