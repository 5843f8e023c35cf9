# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Neuron packages with the real apt, dpkg and gpgv of a node, from a signed repository of stand-ins."""

from __future__ import annotations

import os

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.package_indexes import DEBS
from ansible_collections.inference.fleet.tests.runs import play


@pytest.fixture(scope="module")
def bare(nodes, tmp_path_factory):
    """play(**arguments of the module) on a node with Neuron devices on its bus and none of the packages."""
    folder, name = tmp_path_factory.mktemp("packages"), "neuron-packages-%d" % os.getpid()
    try:
        (node,) = nodes.create([name], "neuron16-bare")
        node.ssh("rm -f /etc/apt/sources.list")
        inventory = folder / "hosts.yml"
        host = {**node.variables(), "ansible_python_interpreter": "/usr/bin/python3"}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": {name: host}}}))
        playbook = folder / "play.yml"

        def with_arguments(*options, **arguments):
            with open("roles/neuron/defaults/main.yml", encoding="utf-8") as stream:
                packages = yaml.safe_load(stream)["neuron_packages"]
            task = {"inference.fleet.neuron_packages": {
                "packages": packages, "apt": {"url": "file:///opt/shared/neuron/apt"}, "kernel_headers": False,
                "key": {"file": "/opt/shared/neuron/key.asc"}, **arguments}}  # fmt: skip
            playbook.write_text(
                yaml.safe_dump([{"hosts": "all", "gather_facts": False, "become": True, "tasks": [task]}])
            )
            return play(str(playbook), inventory, *options)

        yield node, with_arguments
    finally:
        nodes.docker("rm", "--force", "--volumes", nodes.container_name(name), check=False)


def installed(node):
    lines = node.ssh("dpkg-query -W -f '${Package} ${Version}\\n' 'aws-neuronx-*' 2>/dev/null", check=False)
    return dict(line.split() for line in lines.splitlines() if line.count(" ") == 1)


def test_a_repository_that_another_key_signed_is_not_trusted(bare):
    node, neuron_packages = bare
    neuron_packages(key={"file": "/opt/shared/neuron/other.asc"}).failed("NO_PUBKEY")
    assert installed(node) == {}


def test_the_pinned_versions_come_and_no_others(bare):
    node, neuron_packages = bare
    assert neuron_packages("--check").ok().count("changed") == 1
    assert installed(node) == {}
    assert neuron_packages(hardware={"accelerator": "trainium3", "count": 16}).ok().count("changed") == 1
    assert installed(node) == {name: versions[0] for name, versions in DEBS.items()}
    assert neuron_packages().ok().count("changed") == 0
    assert node.ssh("ls /etc/apt/trusted.gpg.d /etc/apt/keyrings | grep -c neuron").strip() == "1"


def test_a_driver_and_a_runtime_that_do_not_fit_are_named(bare):
    node, neuron_packages = bare
    node.ssh("dpkg --force-all -r aws-neuronx-runtime-lib")
    old = {"aws-neuronx-dkms": {"version": "2.30.2.0"}, "aws-neuronx-runtime-lib": {"version": "2.29.40.0"}}
    neuron_packages(packages=old).failed(
        "The Neuron driver 2.30.2.0 needs a runtime of 2.33 or later, this node has aws-neuronx-runtime-lib 2.29.40.0."
    )
    assert "aws-neuronx-runtime-lib" not in installed(node)
