# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight goes by what the platform's role installs: the inventory's, else the role's own."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, called, hosts_file, module

OWN = {"aws-neuronx-dkms": {"version": "2.1.0.0"}}


@pytest.mark.parametrize(
    ("tags", "installs"),
    [(["--tags", "prepare"], True), (["--tags", "serve"], False)],
)  # fmt: skip
def test_what_is_not_prepared_is_not_installed(tmp_path, tags, installs):
    assert given_packages(tmp_path, True, *tags) == (OWN if installs else {})


def test_without_packages_of_the_inventory_those_of_the_role_count(tmp_path):
    packages = yaml.safe_load((CLONE / "roles/neuron/defaults/main.yml").read_text())["neuron_packages"]
    assert given_packages(tmp_path, False) == packages


def given_packages(tmp_path, own, *arguments):
    """What the operation is called with."""
    hardware = {"accelerator": "trainium3", "count": 4, "cores": 8, "lnc": 2, "memory_gib": 144}
    host = {**LOCAL, "fleet_recipe": "trn3-eagle3", "fleet_hardware": hardware, "fleet_root": str(tmp_path / "root"),
            **({"neuron_packages": OWN} if own else {})}  # fmt: skip
    inventory = hosts_file(tmp_path, {"n1": host}, ("neuron", "vllm"))
    steps = tmp_path / "playbooks" / "steps"
    (steps / "library").mkdir(parents=True)
    (steps / "library" / "stand_in_node.py").write_text(module(tmp_path))
    (tmp_path / "roles").symlink_to(CLONE / "roles")
    text = (CLONE / "playbooks/steps/preflight.yml").read_text()
    assert text.count("inference.fleet.node:") == 1
    (steps / "preflight.yml").write_text(text.replace("inference.fleet.node:", "stand_in_node:"))
    play(str(steps / "preflight.yml"), inventory, *arguments).ok()
    return called(tmp_path)[0][1]["installs"]
