# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be installed on a node, by what dpkg or rpm know of and the kernel has loaded."""

from __future__ import annotations

import os
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import packages
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    packages as neuron_packages,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron.driver_files import (
    lacks_driver,
)

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


class Node:
    """A root with an os-release, what dpkg knows of, and four chips as the driver shows them."""

    def __init__(self, root):
        self.root = root
        self.be("ubuntu")
        for number in range(4):
            device = self.root / ("sys/devices/virtual/neuron_device/neuron%d" % number)
            (device / "info/architecture").mkdir(parents=True)
            (device / "info/architecture/device_name").write_text("Trainium3\n")
            (device / "core_count").write_text("4\n")

    def be(self, name):
        (self.root / "etc").mkdir(parents=True, exist_ok=True)
        (self.root / "etc" / "os-release").write_text(RELEASES[name])

    def have(self, packages):
        path = self.root / "var/lib/dpkg/status"
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks = ("Package: %s\nStatus: install ok installed\nVersion: %s\n" % item for item in packages.items())
        path.write_text("\n".join(blocks))

    def look(self, packages=None, check=False, **changes):
        return neuron_packages.look(packages or PACKAGES, check_mode=check, sysroot=str(self.root), **changes)


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Node(tmp_path)


def error(node, *args, **kwargs):
    with pytest.raises(FleetError) as caught:
        node.look(*args, **kwargs)
    return caught.value.message


def test_what_a_machine_image_has_stays(node):
    node.have(IMAGE)
    result = node.look()
    assert (result["changed"], result["packages"], result["due"], result["manager"]) == (False, IMAGE, {}, None)


def test_a_bare_ubuntu(node, monkeypatch):
    due = {"aws-neuronx-dkms": "2.30.2.0", "aws-neuronx-runtime-lib": "2.34.10.0", "aws-neuronx-tools": "2.32.28.0"}
    checked = node.look(check=True)
    assert (checked["changed"], checked["due"], checked["manager"], checked["suite"]) == (True, due, "apt", "noble")
    assert checked["message"] == (
        "would install aws-neuronx-dkms 2.30.2.0, aws-neuronx-runtime-lib 2.34.10.0, aws-neuronx-tools 2.32.28.0"
    )
    assert checked["diff"]["before"].splitlines()[0] == "aws-neuronx-dkms missing"
    monkeypatch.setattr(neuron_packages, "_modprobe", lambda: "/sbin/modprobe")
    found = node.look()
    assert (found["changed"], found["due"], found["load"]) == (False, due, True)
    assert found["kernel"] == os.uname().release
    node.have(NEW)
    assert node.look(installed=list(due))["due"] == {}


def test_a_bare_amazon_linux(node):
    node.be("amzn")
    node.have({"aws-neuronx-tools": "2.32.28.0-1"})
    found = node.look()
    assert (found["manager"], sorted(found["due"])) == ("dnf", ["aws-neuronx-dkms", "aws-neuronx-runtime-lib"])


def test_versions_by_rpm(tmp_path, monkeypatch):
    """Where dpkg is not; rpm answers for the machine itself only."""
    monkeypatch.setattr(packages.shutil, "which", lambda name: "/bin/rpm")
    monkeypatch.setattr(packages, "rpm_version", lambda rpm, name: "2.30.2.0" if name == "a" else None)
    monkeypatch.setattr(packages, "DPKG", str(tmp_path / "none"))
    assert packages.package_versions(System(""), ["a", "b"]) == {"a": "2.30.2.0"}


def test_a_driver_without_its_runtime_is_an_error_that_names_both(node):
    node.have({**IMAGE, "aws-neuronx-dkms": "2.30.2.0"})
    assert error(node) == (
        "The Neuron driver 2.30.2.0 needs a runtime of 2.33 or later, this node has aws-neuronx-runtime-lib "
        "2.29.40.0-f954cd7a5. Install driver and runtime of the same SDK release. Nothing was changed: set "
        "neuron_packages to the versions of one release, or take a machine image whose versions fit."
    )
    # also where the driver alone would be installed
    node.have({"aws-neuronx-runtime-lib": "2.29.40.0", "aws-neuronx-tools": "2.27.33.0"})
    assert error(node).startswith("The Neuron driver 2.30.2.0 needs a runtime of 2.33 or later")


def test_one_that_is_too_old_is_replaced(node):
    node.have({**IMAGE, "aws-neuronx-tools": "2.20.0.0"})
    found = node.look()
    assert found["message"] == "to be installed: aws-neuronx-tools 2.32.28.0 (has 2.20.0.0)"
    assert (found["due"], found["load"]) == ({"aws-neuronx-tools": "2.32.28.0"}, False)


def loads(node, version):
    path = node.root / "sys/module/neuron/version"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(version + "\n")


def test_another_driver_than_the_loaded_one_wants_a_reboot(node):
    node.have(IMAGE)
    loads(node, "2.26.5.0")
    result = node.look()
    assert (result["reboot"], result["must_reboot"], result["loaded_driver"]) == (True, False, "2.26.5.0")
    loads(node, "2.25.4.0")
    assert node.look()["reboot"] is False


def test_a_loaded_driver_that_is_too_old_is_an_error_before_anything_starts(node):
    """An image with 2.24 gets 2.30.2, and the kernel keeps what it has."""
    node.have({"aws-neuronx-dkms": "2.24.7.0"})
    loads(node, "2.24.7.0")
    words = (
        "The kernel has the Neuron driver 2.24.7.0 loaded, 2.30.2.0-1 is installed: 2.25 is the oldest that may stay. "
        "Reboot the node, then run again; or set neuron_reboot to true, and the run reboots it."
    )
    assert node.look(check=True)["changed"]
    assert node.look()["load"] is False
    node.have({**NEW, "aws-neuronx-dkms": "2.30.2.0-1"})
    assert error(node, installed=["aws-neuronx-dkms"]) == words
    assert error(node) == words, "the next run says so as well"
    with pytest.raises(FleetError) as caught:
        node.look()
    assert (caught.value.details["must_reboot"], caught.value.details["changed"]) == (True, False)
    result = node.look(reboot_follows=True)
    assert (result["reboot"], result["must_reboot"]) == (True, True)
    loads(node, "2.30.2.0")
    result = node.look()
    assert (result["reboot"], result["must_reboot"]) == (False, False)


def test_a_loaded_driver_that_does_not_fit_the_runtime(node):
    node.have({**IMAGE, "aws-neuronx-dkms": "2.28.0.0", "aws-neuronx-runtime-lib": "2.32.0.0"})
    loads(node, "2.30.2.0")  # it was taken back to an older one
    assert ": it does not fit the runtime 2.32.0.0. Reboot the node" in error(node)


def test_a_driver_that_the_recipe_cannot_run_on_does_not_stay(node):
    node.have(IMAGE)
    loads(node, "2.25.4.0")
    assert node.look(needs={"driver": "2.25"})["changed"] is False
    needs = {"driver": "2.29"}
    assert error(node, needs=needs).startswith("The Neuron driver 2.30.2.0 needs a runtime of 2.33 or later")
    node.have({**IMAGE, "aws-neuronx-runtime-lib": "2.34.10.0"})
    assert node.look(check=True, needs=needs)["due"] == {"aws-neuronx-dkms": "2.30.2.0"}
    node.have(NEW)
    assert ": the recipe needs 2.29 or later (needs.driver). Reboot the node" in error(node, needs=needs)
    assert error(node, needs={"driver": "2.31"}) == (
        "The recipe needs driver 2.31 or later (needs.driver), neuron_packages installs 2.30.2.0. Nothing was changed: "
        "set neuron_packages to a newer release."
    )
    # somebody else installs the driver here
    rest = {name: package for name, package in PACKAGES.items() if name != "aws-neuronx-dkms"}
    assert error(node, rest, needs=needs) == (
        "The kernel has the Neuron driver 2.25.4.0 loaded: the recipe needs 2.29 or later (needs.driver). Update it."
    )


def test_cores_that_a_new_driver_does_not_show(node):
    shutil.rmtree(node.root / "sys/devices/virtual/neuron_device/neuron1")
    servers = [{"name": "server-0", "devices": [0, 1, 2, 3]}, {"name": "server-1", "devices": [4, 5, 6, 7]}]
    node.have(NEW)
    assert node.look(servers=servers)["due"] == {}  # preflight looks where the driver was there before
    assert node.look(servers=servers[:1], installed=["aws-neuronx-dkms"])["due"] == {}
    assert error(node, servers=servers, installed=["aws-neuronx-dkms"]).startswith(
        "The Neuron driver was installed, and the devices are not as declared: server-1 is given cores 4-7, which this "
        "node does not have: its devices 0,2-3 have cores 0-3,8-15. "
    )


def test_devices_that_a_new_driver_shows_are_looked_at(node):
    node.have(NEW)
    hardware = {"accelerator": "trainium3", "count": 16, "cores": 8, "lnc": 2}
    assert error(node, hardware=hardware, installed=["aws-neuronx-dkms"]) == (
        "The Neuron driver was installed, and the devices are not as declared: The inventory declares 16 devices "
        "(fleet_hardware.count), this node has 4 (Trainium3). Set fleet_hardware.count to 4, or repair the node."
    )
    assert node.look(hardware=hardware, installed=["aws-neuronx-tools"])["due"] == {}
    assert node.look(hardware=dict(hardware, count=4), installed=["aws-neuronx-dkms"])["due"] == {}
    loads(node, "2.25.4.0")  # the old one is there until a reboot
    assert node.look(hardware=hardware, installed=["aws-neuronx-dkms"])["reboot"]


def test_what_the_package_manager_did_not_install_is_told(node):
    assert error(node, installed=list(PACKAGES)) == (
        "Installed, and yet there is no aws-neuronx-dkms 2.30.2.0, aws-neuronx-runtime-lib 2.34.10.0, "
        "aws-neuronx-tools 2.32.28.0 on the node; the package manager says: none. Install them by hand to see why."
    )


def test_a_node_whose_driver_is_yet_to_come(tmp_path):
    system = System(str(tmp_path))
    assert not lacks_driver(system)
    for name, vendor, device in (("00:1e.0", "0x1d0f", "0x8061"), ("10:00.0", "0x1d0f", "0x7364")):
        assert not lacks_driver(system)
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    assert lacks_driver(system)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/neuron0").write_text("")
    assert not lacks_driver(system)


def test_bad_input_is_one_error(node, monkeypatch):
    assert error(node, {"aws-neuronx-dkms": "2.25"}).startswith("neuron_packages has 'aws-neuronx-dkms': '2.25'; ")
    node.be("arch")
    assert error(node) == (
        "There are no Neuron packages for Arch; allowed: Ubuntu and Debian (apt), Amazon Linux 2023 (dnf). Take a node "
        "with one of those, best the vendor's Deep Learning AMI."
    )
    node.be("old")
    assert node.look()["suite"] is None
    node.be("ubuntu")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert error(node).endswith("Installing them needs root; run the play with become.")
