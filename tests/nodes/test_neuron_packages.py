# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Neuron packages with the real apt, dpkg and gpgv of a node, from a signed repository of stand-ins."""

from __future__ import annotations

import os

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.conftest import created
from ansible_collections.inference.fleet.tests.nodes.package_indexes import DEBS
from ansible_collections.inference.fleet.tests.runs import play


@pytest.fixture(scope="module")
def bare(nodes, tmp_path_factory):
    """run(*arguments, **variables) of the role on a node with Neuron devices on its bus and none of the packages."""
    folder, name = tmp_path_factory.mktemp("packages"), "neuron-packages-%d" % os.getpid()
    with created([name], "neuron16-bare") as (node,):
        inventory = folder / "hosts.yml"
        host = {**node.variables(), "ansible_python_interpreter": "/usr/bin/python3"}
        inventory.write_text(yaml.safe_dump({"all": {"hosts": {name: host}}}))
        playbook = folder / "play.yml"

        def run(*options, key="key.asc", **variables):
            repositories = {"apt": {"url": "file:///opt/shared/neuron/apt"}}
            repositories["key"] = {"file": "/opt/shared/neuron/" + key}
            common = {"neuron_servers": [], "neuron_kernel_headers": False, "neuron_repositories": repositories}
            role = {"role": "inference.fleet.neuron", **common, **variables}
            playbook.write_text(
                yaml.safe_dump([{"hosts": "all", "gather_facts": False, "become": True, "roles": [role]}])
            )
            return play(str(playbook), inventory, *options)

        yield node, run


def installed(node):
    lines = node.ssh("dpkg-query -W -f '${Package} ${Version}\\n' 'aws-neuronx-*' 2>/dev/null", check=False)
    return dict(line.split() for line in lines.splitlines() if line.count(" ") == 1)


def test_only_the_right_key_is_trusted_and_packages_that_do_not_fit_are_refused(bare):
    """molecule/soak_neuron_bare checks the versions of a complete run."""
    node, role = bare
    role(key="other.asc").failed("NO_PUBKEY")
    assert installed(node) == {}
    role().ok()
    assert installed(node) == {name: versions[0] for name, versions in DEBS.items()}
    node.ssh("dpkg --force-all -r aws-neuronx-runtime-lib")
    old = {"aws-neuronx-dkms": {"version": "2.30.2.0"}, "aws-neuronx-runtime-lib": {"version": "2.29.40.0"}}
    role(neuron_packages=old).failed("aws-neuronx-runtime-lib 2.29.40.0")
    assert "aws-neuronx-runtime-lib" not in installed(node)
