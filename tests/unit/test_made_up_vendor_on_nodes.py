# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A vendor's file beside those there are, and no other changes: nodes detect and check its hardware."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

CLONE = pathlib.Path(__file__).resolve().parents[2]
ANSIBLE = pathlib.Path(sys.executable).with_name("ansible")
FIXTURE = CLONE / "tests/unit/fixtures/made_up_vendor/node_platform.py"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """node(module, **arguments): what it returns on a node with two rods, where the program is brought by Ansible."""
    folder = tmp_path_factory.mktemp("vendor")
    fleet = folder / "collections/ansible_collections/inference/fleet"
    (fleet / "plugins/module_utils/fleet_node").mkdir(parents=True)
    for path in [*CLONE.glob("*.yml"), CLONE / "meta", *(CLONE / "plugins").iterdir()]:
        if path.name not in ("module_utils", "site.yml"):
            (fleet / path.relative_to(CLONE)).symlink_to(path)
    for path in (CLONE / "plugins/module_utils/fleet_node").iterdir():
        if path.name not in ("platforms", "__pycache__"):
            (fleet / path.relative_to(CLONE)).symlink_to(path)
    platforms = fleet / "plugins/module_utils/fleet_node/platforms"
    shutil.copytree(CLONE / "plugins/module_utils/fleet_node/platforms", platforms)
    shutil.copy(FIXTURE, platforms / "abacus.py")
    (folder / "abacus").write_text("512\n512\n")
    text = (platforms / "abacus.py").read_text().replace('"/etc/abacus"', repr(str(folder / "abacus")))
    (platforms / "abacus.py").write_text(text)

    def run(module, **arguments):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON"))}
        environment.update(
            ANSIBLE_COLLECTIONS_PATH=str(folder / "collections"), ANSIBLE_HOME=str(folder / "home"),
            ANSIBLE_NOCOLOR="1", XDG_CACHE_HOME=str(folder / "cache"), ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        )  # fmt: skip
        argv = [
            ANSIBLE,
            "n1",
            "-i",
            "n1,",
            "-c",
            "local",
            "-m",
            "inference.fleet." + module,
            "-a",
            json.dumps(arguments),
        ]
        done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return {**json.loads(done.stdout[done.stdout.index("=> ") + 3 :]), "screen": done.stderr}

    return run


@pytest.mark.parametrize("vendor", ["abacus", "auto"])
def test_accelerator_info(node, vendor):
    found = node("accelerator_info", vendor=vendor)
    assert (found["accelerator"], found["vendor"], len(found["devices"])) == ("abacus1", "Abacus", 2)


def test_preflight(node, tmp_path):
    def preflight(**given):
        arguments = {"root": str(tmp_path), "platform": "abacus", **given}
        return node("node", operation="node_preflight", arguments=arguments)

    result = preflight(hardware={"accelerator": "abacus1", "count": 2})
    assert result["accelerators"]["model"] == "Abacus One"
    assert "0 servers are to be oiled." in result["screen"]
    hardware = {"accelerator": "abacus1", "count": 3}
    refused = preflight(hardware=hardware, venvs=[{"path": "/dry"}])
    hardware, oil = refused["problems"]
    assert (hardware["check"], oil) == ("hardware", {"check": "oil", "message": "There is no oil."})
    assert hardware["message"].startswith("The inventory declares 3 rods (fleet_hardware.count), this node has 2 (0-1)")


def test_an_unknown_vendor_lists_it_among_the_others(node):
    result = node("accelerator_info", vendor="slide-rule")
    assert result["code"] == "platform.unknown"
    assert "it knows: abacus, amd, ascend, neuron, nvidia, cpu." in result["msg"]
