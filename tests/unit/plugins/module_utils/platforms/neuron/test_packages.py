# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be installed on a node, by what dpkg or rpm know of and the kernel has loaded."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.base import Context
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    operations as neuron_packages,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORMS
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.neuron_node import NeuronNode, records

PACKAGES = {
    "aws-neuronx-dkms": {"version": "2.30.2.0", "least": "2.25"},
    "aws-neuronx-runtime-lib": {"version": "2.34.10.0", "least": "2.29"},
    "aws-neuronx-tools": {"version": "2.32.28.0", "least": "2.27"},
}
IMAGE = {
    "aws-neuronx-dkms": "2.25.4.0",
    "aws-neuronx-runtime-lib": "2.29.40.0-f954cd7a5",
    "aws-neuronx-tools": "2.27.33.0",
}
RELEASES = {
    "ubuntu": 'ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04"\n',
    "amzn": 'ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\nPRETTY_NAME="Amazon Linux 2023"\n',
    "arch": "ID=arch\nPRETTY_NAME=Arch\n",
    "old": "ID=debian\n",
}
NEW = {"aws-neuronx-dkms": "2.30.2.0", "aws-neuronx-runtime-lib": "2.34.10.0-1", "aws-neuronx-tools": "2.32.28.0"}


class Node(NeuronNode):
    """A root with an os-release, dpkg's list of packages, and neuron-ls of four chips."""

    def __init__(self, root):
        super().__init__(root)
        self.be("ubuntu")
        self.lists(records("trn3-4"))

    def be(self, name):
        self.write("/etc/os-release", RELEASES[name])

    def look(self, packages=None, check=False, **changes):
        return neuron_packages.compare(packages or PACKAGES, check_mode=check, sysroot=self.root, **changes)


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Node(tmp_path)


def error(node, *args, **kwargs):
    return plans.error(node.look, *args, **kwargs)


def test_a_bare_ubuntu(node, monkeypatch):
    due = {"aws-neuronx-dkms": "2.30.2.0", "aws-neuronx-runtime-lib": "2.34.10.0", "aws-neuronx-tools": "2.32.28.0"}
    checked = node.look(check=True)
    assert (checked["changed"], checked["due"], checked["manager"], checked["suite"]) == (True, due, "apt", "noble")
    assert checked["diff"]["before"].splitlines()[0] == "aws-neuronx-dkms missing"
    monkeypatch.setattr(neuron_packages.shutil, "which", lambda name, path=None: path.split(":")[0] + "/" + name)
    found = node.look()
    assert (found["changed"], found["due"], found["load"]) == (False, due, True)
    assert found["kernel"] == os.uname().release
    node.installed(NEW)
    assert node.look(installed=True)["due"] == {}


def test_a_bare_amazon_linux(node):
    node.be("amzn")
    node.installed({"aws-neuronx-tools": "2.32.28.0-1"})
    found = node.look()
    assert (found["manager"], sorted(found["due"])) == ("dnf", ["aws-neuronx-dkms", "aws-neuronx-runtime-lib"])


def test_a_driver_without_its_runtime_is_an_error_that_names_both(node):
    node.installed({**IMAGE, "aws-neuronx-dkms": "2.30.2.0"})
    found = error(node)
    assert found.code == "neuron.packages-do-not-fit"
    assert "2.30.2.0" in found.values[0] and "2.29.40.0-f954cd7a5" in found.values[0]
    # also if only the driver would be installed
    node.installed({"aws-neuronx-runtime-lib": "2.29.40.0", "aws-neuronx-tools": "2.27.33.0"})
    assert error(node).code == "neuron.packages-do-not-fit"
    # or if the package was downgraded
    node.installed({**IMAGE, "aws-neuronx-dkms": "2.28.0.0", "aws-neuronx-runtime-lib": "2.32.0.0"})
    node.loads("2.30.2.0")
    assert "requires the runtime 2.33 or later, this node has aws-neuronx-runtime-lib 2.32" in error(node).values[2]


def test_another_driver_than_the_loaded_one_is_a_warning_if_it_fits(node):
    node.installed(IMAGE)
    node.loads("2.26.5.0")
    result = node.look()
    assert (result["changed"], result["packages"], result["due"], result["manager"]) == (False, IMAGE, {}, None)
    assert (result["reboot"], result["loaded_driver"], len(result["warnings"])) == (False, "2.26.5.0", 1)
    node.loads("2.25.4.0")
    assert node.look()["warnings"] == []


def test_a_loaded_driver_that_is_too_old_is_an_error_before_anything_starts(node):
    """An image with 2.24 gets 2.30.2, and the kernel keeps its driver until a reboot."""
    node.installed({"aws-neuronx-dkms": "2.24.7.0"})
    node.loads("2.24.7.0")
    assert node.look(check=True)["changed"]
    assert (node.look()["load"], node.look()["reboot"], node.look(reboot=True)["reboot"]) == (False, False, True)
    node.installed({**NEW, "aws-neuronx-dkms": "2.30.2.0-1"})
    for installed in (True, False):  # the next run reports it as well
        found = error(node, installed=installed)
        assert (found.code, found.values[:2]) == ("neuron.driver-unfit", ("2.24.7.0", "2.30.2.0-1"))
    assert node.look(reboot=True)["reboot"]
    assert neuron_packages.neuron_packages_due(node.look(reboot=True))
    assert error(node, installed=True, reboot=True).code == "neuron.driver-unfit"  # the reboot did not help
    node.loads("2.30.2.0")
    assert neuron_packages.neuron_packages_due(node.look(reboot=True)) is None


def test_a_driver_that_the_recipe_cannot_run_on_is_replaced(node):
    node.installed(IMAGE)
    node.loads("2.25.4.0")
    assert node.look(needs={"driver": "2.25"})["changed"] is False
    needs = {"driver": "2.29"}
    assert error(node, needs=needs).code == "neuron.packages-do-not-fit"
    node.installed({**IMAGE, "aws-neuronx-runtime-lib": "2.34.10.0"})
    assert node.look(check=True, needs=needs)["due"] == {"aws-neuronx-dkms": "2.30.2.0"}
    node.installed(NEW)
    assert error(node, needs=needs).code == "neuron.driver-unfit"
    assert error(node, needs={"driver": "2.31"}).code == "neuron.packages-do-not-fit"
    # somebody else installs the driver here
    rest = {name: package for name, package in PACKAGES.items() if name != "aws-neuronx-dkms"}
    assert error(node, rest, needs=needs).code == "neuron.driver-unfit"


def test_devices_of_a_new_driver_are_compared_with_the_plan(node):
    """Preflight compared them if the driver was present before."""
    node.installed(NEW)
    hardware = {"accelerator": "trainium3", "count": 16, "cores": 8, "lnc": 2}
    assert node.look(hardware=hardware)["due"] == {}
    found = error(node, hardware=hardware, installed=True)
    assert (found.code, "fleet_hardware.count" in found.values[0]) == ("neuron.devices-not-as-declared", True)
    assert node.look(hardware=dict(hardware, count=4), installed=True)["due"] == {}
    node.lists([record for record in records("trn3-4") if record["neuron_device"] != 1])
    servers = [{"name": "server-0", "devices": [0, 1, 2, 3]}, {"name": "server-1", "devices": [4, 5, 6, 7]}]
    assert node.look(servers=servers[:1], installed=True)["due"] == {}
    assert "server-1" in error(node, servers=servers, installed=True).values[0]


def test_a_node_whose_driver_is_yet_to_come(tmp_path):
    def missing(system):
        context = Context("", system, {}, installs={"aws-neuronx-dkms": {}})
        return PLATFORMS["neuron"].driver_missing(context)

    made, system = NeuronNode(tmp_path), System(str(tmp_path))
    assert not missing(system)
    for name, vendor, device in (("00:1e.0", "0x1d0f", "0x8061"), ("10:00.0", "0x1d0f", "0x7364")):
        assert not missing(system)
        for key, value in (("vendor", vendor), ("device", device)):
            made.write("/sys/bus/pci/devices/%s/%s" % (name, key), value + "\n")
    assert missing(system)
    made.write("/dev/neuron0")
    assert not missing(system)


def test_bad_input_is_one_error(node, monkeypatch):
    assert error(node, {"aws-neuronx-dkms": "2.25"}).code == "packages.invalid"
    node.be("arch")
    assert error(node).code == "packages.distribution-unsupported"
    node.be("old")
    assert node.look()["suite"] is None
    node.be("ubuntu")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert error(node).code == "packages.needs-root"
