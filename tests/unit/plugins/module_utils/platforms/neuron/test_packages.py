# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Neuron packages, with scripted package managers that remember how they were called and do what they were asked."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron import packages as neuron_packages
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.detect import lacks_driver

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
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nx\n-----END PGP PUBLIC KEY BLOCK-----\n"
RELEASES = {
    "ubuntu": 'ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04"\n',
    "amzn": 'ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\nPRETTY_NAME="Amazon Linux 2023"\n',
    "arch": "ID=arch\nPRETTY_NAME=Arch\n",
    "old": "ID=debian\n",
}
PROGRAM = """#!%s
import json, os, re, sys
folder = %r
name = os.path.basename(sys.argv[0])
with open(folder + "/calls", "a") as stream:
    stream.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
try:
    have = json.load(open(folder + "/have"))
except FileNotFoundError:
    have = {}
if name in ("dpkg-query", "rpm"):
    known = [one for one in sys.argv[1:] if one in have]
    for one in known:
        print("installed %%s %%s" %% (one, have[one]))
    sys.exit(0 if known == [one for one in sys.argv if one.startswith("aws-")] else 1)
if "install" in sys.argv:
    if os.path.exists(folder + "/broken"):
        print("E: Unable to locate package")
        sys.exit(100)
    for one in sys.argv[1:]:
        found = re.match(r"(aws-[a-z-]+?)[=-]([0-9][0-9.]*)\\*$", one)
        if found and not os.path.exists(folder + "/lying"):
            have[found.group(1)] = found.group(2) + "-1"
    json.dump(have, open(folder + "/have", "w"))
"""


class Node:
    """A root with an os-release, and programs in a PATH of its own."""

    def __init__(self, folder, monkeypatch):
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.folder = folder
        self.bin.mkdir()
        for name in ("apt-get", "dpkg-query", "dnf", "rpm", "modprobe"):
            (self.bin / name).write_text(PROGRAM % (sys.executable, str(folder)))
            (self.bin / name).chmod(0o755)
        monkeypatch.setenv("PATH", "%s:%s" % (self.bin, os.environ["PATH"]))
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        self.be("ubuntu")
        for number in range(4):
            device = self.root / ("sys/devices/virtual/neuron_device/neuron%d" % number)
            (device / "info/architecture").mkdir(parents=True)
            (device / "info/architecture/device_name").write_text("Trainium3\n")
            (device / "core_count").write_text("4\n")
        self.key = folder / "key"
        self.key.write_text(KEY)

    def be(self, name):
        (self.root / "etc").mkdir(parents=True, exist_ok=True)
        (self.root / "etc" / "os-release").write_text(RELEASES[name])

    def have(self, packages):
        (self.folder / "have").write_text(json.dumps(packages))

    def calls(self, name=None):
        """Every call that is not a question."""
        path = self.folder / "calls"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in calls if call[0] not in ("dpkg-query", "rpm") and name in (None, call[0])]

    def ensure(self, packages=None, check=False, **changes):
        values = {
            "apt": {"url": "https://apt.example.com/neuron"},
            "dnf": {"url": "https://yum.example.com"},
            "key": {"url": "https://apt.example.com/key", "file": str(self.key)},
        }
        wanted = neuron_packages.Wanted(packages or PACKAGES, **{**values, **changes})
        return neuron_packages.ensure(wanted, check_mode=check, sysroot=str(self.root))


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def error(node, *args, **kwargs):
    with pytest.raises(FleetError) as caught:
        node.ensure(*args, **kwargs)
    return caught.value.message


def test_what_a_machine_image_has_stays(node):
    node.have(IMAGE)
    result = node.ensure()
    assert (result["changed"], result["packages"], result["installed"]) == (False, IMAGE, [])
    assert node.calls() == []
    assert not (node.root / "etc" / "apt").exists()


def test_a_bare_ubuntu(node):
    assert node.ensure(check=True)["message"] == (
        "would install aws-neuronx-dkms 2.30.2.0, aws-neuronx-runtime-lib 2.34.10.0, aws-neuronx-tools 2.32.28.0"
    )
    assert node.calls() == []
    result = node.ensure(ca_bundle="/etc/ca.pem")
    assert result["changed"] and result["packages"]["aws-neuronx-dkms"] == "2.30.2.0-1"
    assert result["diff"]["before"].splitlines()[0] == "aws-neuronx-dkms missing"
    source = node.root / "etc/apt/sources.list.d/aws-neuron.list"
    assert source.read_text() == (
        "deb [signed-by=/etc/apt/keyrings/aws-neuron.asc] https://apt.example.com/neuron noble main\n"
    )
    assert (node.root / "etc/apt/keyrings/aws-neuron.asc").read_text() == KEY
    update, install = node.calls("apt-get")
    assert "Dir::Etc::sourcelist=/etc/apt/sources.list.d/aws-neuron.list" in update
    assert "Acquire::https::CAInfo=/etc/ca.pem" in install
    assert install[-4:] == [
        "linux-headers-" + os.uname().release,
        "aws-neuronx-dkms=2.30.2.0*",
        "aws-neuronx-runtime-lib=2.34.10.0*",
        "aws-neuronx-tools=2.32.28.0*",
    ]
    assert node.calls("modprobe") == [["modprobe", "neuron"]]
    assert node.ensure()["changed"] is False


def test_a_bare_amazon_linux(node):
    node.be("amzn")
    node.have({"aws-neuronx-tools": "2.32.28.0-1"})
    result = node.ensure()
    assert result["installed"] == ["aws-neuronx-dkms", "aws-neuronx-runtime-lib"]
    # the vendor's own line, as one word of the command: it finds kernel6.12-devel as well
    headers = "kernel-devel-uname-r = " + os.uname().release
    packages = ["aws-neuronx-dkms-2.30.2.0*", "aws-neuronx-runtime-lib-2.34.10.0*"]
    assert node.calls("dnf") == [["dnf", "-y", "install", headers, *packages]]
    assert (node.root / "etc/yum.repos.d/aws-neuron.repo").read_text() == (
        "[aws-neuron]\nname=AWS Neuron\nbaseurl=https://yum.example.com\nenabled=1\ngpgcheck=1\n"
        "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-aws-neuron\nmetadata_expire=0\n"
    )
    assert node.ensure()["changed"] is False


def test_an_amazon_linux_whose_headers_come_otherwise(node):
    node.be("amzn")
    (node.folder / "broken").write_text("")
    assert error(node, kernel_headers=False) == (
        "Installing aws-neuronx-dkms-2.30.2.0*, aws-neuronx-runtime-lib-2.34.10.0*, aws-neuronx-tools-2.32.28.0* "
        "failed: dnf -y install 'aws-neuronx-dkms-2.30.2.0*' 'aws-neuronx-runtime-lib-2.34.10.0*' "
        "'aws-neuronx-tools-2.32.28.0*' ended with 100: E: Unable to locate package"
    )


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
    assert node.calls() == []


def test_one_that_is_too_old_is_replaced(node):
    node.have({**IMAGE, "aws-neuronx-tools": "2.20.0.0"})
    assert node.ensure()["message"] == "installed aws-neuronx-tools 2.32.28.0 (has 2.20.0.0)"
    assert node.calls("modprobe") == []


def loads(node, version):
    path = node.root / "sys/module/neuron/version"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(version + "\n")


def test_another_driver_than_the_loaded_one_wants_a_reboot(node):
    node.have(IMAGE)
    loads(node, "2.26.5.0")
    result = node.ensure()
    assert (result["reboot"], result["must_reboot"], result["loaded_driver"]) == (True, False, "2.26.5.0")
    loads(node, "2.25.4.0")
    assert node.ensure()["reboot"] is False


def test_a_loaded_driver_that_is_too_old_is_an_error_before_anything_starts(node):
    """An image with 2.24 gets 2.30.2, and the kernel keeps what it has."""
    node.have({"aws-neuronx-dkms": "2.24.7.0"})
    loads(node, "2.24.7.0")
    words = (
        "The kernel has the Neuron driver 2.24.7.0 loaded, 2.30.2.0-1 is installed: 2.25 is the oldest that may stay. "
        "Reboot the node, then run again; or set neuron_reboot to true, and the run reboots it."
    )
    assert node.ensure(check=True)["changed"]
    assert error(node) == words
    assert node.calls("modprobe") == []
    assert error(node) == words, "the next run says so as well"
    with pytest.raises(FleetError) as caught:
        node.ensure()
    assert (caught.value.details["must_reboot"], caught.value.details["changed"]) == (True, False)
    result = node.ensure(reboot_follows=True)
    assert (result["reboot"], result["must_reboot"]) == (True, True)
    loads(node, "2.30.2.0")
    result = node.ensure()
    assert (result["reboot"], result["must_reboot"]) == (False, False)


def test_a_loaded_driver_that_does_not_fit_the_runtime(node):
    node.have({**IMAGE, "aws-neuronx-dkms": "2.28.0.0", "aws-neuronx-runtime-lib": "2.32.0.0"})
    loads(node, "2.30.2.0")  # it was taken back to an older one
    assert ": it does not fit the runtime 2.32.0.0. Reboot the node" in error(node)


def test_a_driver_that_the_recipe_cannot_run_on_does_not_stay(node):
    node.have(IMAGE)
    loads(node, "2.25.4.0")
    assert node.ensure(needs={"driver": "2.25"})["changed"] is False
    needs = {"driver": "2.29"}
    assert error(node, needs=needs).startswith("The Neuron driver 2.30.2.0 needs a runtime of 2.33 or later")
    node.have({**IMAGE, "aws-neuronx-runtime-lib": "2.34.10.0"})
    assert node.ensure(check=True, needs=needs)["installed"] == ["aws-neuronx-dkms"]
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
    assert node.ensure(servers=servers[:1])["changed"]
    node.have({})
    assert error(node, servers=servers).startswith(
        "The Neuron driver was installed, and the devices are not as declared: server-1 is given cores 4-7, which this "
        "node does not have: its devices 0,2-3 have cores 0-3,8-15. "
    )


def test_programs_that_are_not_there(node, monkeypatch):
    monkeypatch.setenv("PATH", str(node.bin))
    (node.bin / "dpkg-query").write_text("#!/nowhere\n")
    assert error(node) == "dpkg-query failed: No such file or directory"
    node.be("amzn")
    (node.bin / "rpm").write_text("#!/nowhere\n")
    assert error(node) == "rpm failed: No such file or directory"


def test_what_the_package_manager_cannot_do_is_told(node):
    (node.folder / "broken").write_text("")
    message = error(node)
    assert message.startswith("Installing linux-headers-%s, aws-neuronx-dkms=2.30.2.0*" % os.uname().release)
    assert message.endswith(" ended with 100: E: Unable to locate package")
    (node.folder / "broken").unlink()
    (node.folder / "lying").write_text("")
    assert error(node) == (
        "Installed, and yet there is no aws-neuronx-dkms 2.30.2.0, aws-neuronx-runtime-lib 2.34.10.0, "
        "aws-neuronx-tools 2.32.28.0 on the node; the package manager says: none."
    )


def test_devices_that_a_new_driver_shows_are_looked_at(node):
    hardware = {"accelerator": "trainium3", "count": 16, "cores": 8, "lnc": 2}
    assert error(node, hardware=hardware) == (
        "The Neuron driver was installed, and the devices are not as declared: The inventory declares 16 devices "
        "(fleet_hardware.count), this node has 4 (Trainium3). Set fleet_hardware.count to 4, or repair the node."
    )
    assert node.ensure(hardware=hardware)["changed"] is False  # from then on it is preflight that looks
    node.have({})
    assert node.ensure(hardware=dict(hardware, count=4))["changed"]


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
    wrong = {"aws-neuronx-dkms": {"version": "latest"}}
    assert error(node, wrong) == (
        "packages.aws-neuronx-dkms.version is 'latest'; allowed: numbers with dots, such as 2.30.2.0."
    )
    wrong = {"aws-neuronx-dkms": {"version": "2.25", "least": "2.29"}}
    assert error(node, wrong) == "packages.aws-neuronx-dkms: version 2.25 is older than least 2.29."
    wrong = {"aws-neuronx-dkms": "2.25"}
    assert error(node, wrong) == "packages.aws-neuronx-dkms is '2.25'; allowed: a mapping of version and least."
    assert error(node, apt={"url": "apt.example.com"}) == (
        "apt.url is 'apt.example.com'; allowed: an http, https or file URL."
    )
    node.be("arch")
    assert error(node) == (
        "There are no Neuron packages for Arch; allowed: Ubuntu and Debian (apt), Amazon Linux 2023 (dnf). Take a node "
        "with one of those, best the vendor's Deep Learning AMI."
    )
    node.be("old")
    assert error(node) == "/etc/os-release of debian has no VERSION_CODENAME; set neuron_repositories.apt.suite."
    node.be("ubuntu")
    node.key.write_text("<html>")
    assert error(node) == (
        "%s holds no armored public key (-----BEGIN PGP PUBLIC KEY BLOCK-----). Nothing was changed." % node.key
    )
    node.key.unlink()
    assert error(node) == "key.file %s is not on this node. Put the repository's key there." % node.key
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert error(node).endswith("Installing them needs root; run the play with become.")
    assert not (node.root / "etc/apt").exists()


def test_a_key_from_a_url(node, tmp_path):
    path = tmp_path / "served.asc"
    path.write_text(KEY)
    assert node.ensure(key={"url": "file://%s" % path})["changed"]
    assert (node.root / "etc/apt/keyrings/aws-neuron.asc").read_text() == KEY


def test_a_key_that_cannot_be_fetched(node):
    message = error(node, key={"url": "http://127.0.0.1:9/key"}, environment={"no_proxy": "127.0.0.1"})
    assert message == (
        "The key of the Neuron repository cannot be fetched from http://127.0.0.1:9/key: [Errno 111] Connection "
        "refused. Nothing was changed. Without a way there set neuron_repositories to a mirror, or put the key on the "
        "node and name it in key.file."
    )
    assert node.calls() == []


@pytest.mark.parametrize(
    "version,least,fits",
    [
        ("2.29.40.0-f954cd7a5", "2.29", True),
        ("2.9.0", "2.29", False),
        ("1:2.30.2.0", "2.30.2.0", True),
        ("2.30", "2.30.2.0", False),
        ("2.30.2.0~rc1", "2.30.2", True),
    ],
)
def test_versions(version, least, fits):
    assert neuron_packages.at_least(version, least) is fits
