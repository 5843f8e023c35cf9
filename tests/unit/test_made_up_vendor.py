# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A vendor and an engine beside those there are: their files in a copy of the collection, and no other file changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from ansible_collections.inference.fleet.tests.runs import BIN, CLONE, without_ansible

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


def test_the_plan_has_them(tmp_path):
    fleet = tmp_path / "ansible_collections/inference/fleet"
    for name in ("plugins", "recipes", "roles", "playbooks", "meta"):
        shutil.copytree(CLONE / name, fleet / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in CLONE.glob("*.yml"):
        shutil.copy(path, fleet)
    for name, place in ADDED.items():
        assert not (fleet / place).exists()
        shutil.copy(FIXTURES / name, fleet / place)
    environment = without_ansible(PYTHONPATH=str(tmp_path))
    argv = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert "abacus" in seen["platforms"] and "counter" in seen["engines"]
    assert "allowed: counter, dynamo" in seen["problem"]
    first, second = seen["entries"]
    assert (first["platform"], first["engine"], second["devices"]) == ("abacus", "counter", [2, 3])
    assert second["arguments"] == {"beads": "20", "listen-port": "8001", "seats": 7, "tensor-parallel-size": "2"}
    assert second["container"]["devices"] == ["/dev/rod2", "/dev/rod3"]
    assert second["hooks"] == {}
    first = seen["capacity"][0]
    assert (first["verdict"], first["memory_gib"], first["max_seqs"]) == ("ok", 256, 7)
    assert seen["labels"] == ["Abacus Works", "Counter"]
    # a vendor that does not say what its role does is prepared each time
    assert [one["step"] for one in seen["steps"] if "reason" in one] == ["prepare"]


def test_preflight(tmp_path):
    """On a node with two rods, to which Ansible copies the program."""
    fleet = tmp_path / "collections/ansible_collections/inference/fleet"
    (fleet / "plugins/module_utils/fleet_node").mkdir(parents=True)
    for path in [*CLONE.glob("*.yml"), CLONE / "meta", *(CLONE / "plugins").iterdir()]:
        if path.name not in ("module_utils", "site.yml"):
            (fleet / path.relative_to(CLONE)).symlink_to(path)
    for path in (CLONE / "plugins/module_utils/fleet_node").iterdir():
        if path.name not in ("platforms", "__pycache__"):
            (fleet / path.relative_to(CLONE)).symlink_to(path)
    platforms = fleet / "plugins/module_utils/fleet_node/platforms"
    shutil.copytree(CLONE / "plugins/module_utils/fleet_node/platforms", platforms)
    (tmp_path / "abacus").write_text("512\n512\n")
    text = (FIXTURES / "node_platform.py").read_text().replace('"/etc/abacus"', repr(str(tmp_path / "abacus")))
    (platforms / "abacus.py").write_text(text)
    environment = without_ansible(
        ANSIBLE_HOME=str(tmp_path / "home"), ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "collections"),
        XDG_CACHE_HOME=str(tmp_path / "cache"), ANSIBLE_PYTHON_INTERPRETER=sys.executable,
    )  # fmt: skip
    given = {"root": str(tmp_path / "root"), "platform": "abacus", "venvs": [{"path": "/dry"}],
             "hardware": {"accelerator": "abacus1", "count": 3}}  # fmt: skip
    argv = [BIN / "ansible", "n1", "-i", "n1,", "-c", "local", "-m", "inference.fleet.node"]
    argv += ["-a", json.dumps({"operation": "node_preflight", "arguments": given})]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    hardware, oil = json.loads(done.stdout[done.stdout.index("=> ") + 3 :])["problems"]
    assert (hardware["check"], oil) == ("hardware", {"check": "oil", "message": "There is no oil."})
    assert hardware["message"].startswith("The inventory declares 3 rods (fleet_hardware.count), this node has 2 (0-1)")
