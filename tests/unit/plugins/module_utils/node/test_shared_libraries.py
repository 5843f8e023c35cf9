# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node import shared_libraries
from ansible_collections.inference.fleet.plugins.module_utils.node.shared_libraries import (
    distribution_family,
    ensure_libraries,
    install_hint,
    missing_libraries,
)

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"
DEBIAN = str(FIXTURES / "sysroot-one-node")
REDHAT = str(FIXTURES / "sysroot-two-nodes-gap")
OPENEULER = str(FIXTURES / "sysroot-no-numa")
SUSE = str(FIXTURES / "sysroot-cgroup1-quota")
UNKNOWN = str(FIXTURES / "sysroot-affinity")
NAME = "libfleettest.so.1"
LIBRARIES = {NAME: {"debian": "libfleettest1", "redhat": "fleettest-libs", "suse": "libfleettest1"}}
MISSING = {"changed": True, "missing": [NAME]}
FOUND = {"changed": False, "missing": [], "installed": [], "diff": {"before": "", "after": ""}}


def any_library():
    """A shared library that loads here: the C library of this process."""
    return re.search(r"(/\S*/libc[.-]\S*)$", pathlib.Path("/proc/self/maps").read_text(), re.MULTILINE).group(1)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with fake package managers on PATH; they install NAME into node.lib, or do what their script says."""
    INSTALL = "cp %s %s" % (any_library(), tmp_path / "lib" / NAME)

    class Node:
        lib = str(tmp_path / "lib")
        bin = tmp_path / "bin"
        calls = tmp_path / "calls"

        def manager(self, name, script=INSTALL):
            path = self.bin / name
            path.write_text('#!/bin/sh\necho "%s $*" >> %s\n%s\n' % (name, self.calls, script))
            path.chmod(0o755)

        def called(self):
            return self.calls.read_text().splitlines() if self.calls.exists() else []

        def ensure(self, sysroot=DEBIAN, check_mode=False, libraries=None):
            return ensure_libraries(libraries or LIBRARIES, check_mode, [self.lib], sysroot)

    for folder in (Node.lib, Node.bin):
        os.mkdir(folder)
    for tool in ("cp", "sleep"):
        os.symlink(shutil.which(tool), Node.bin / tool)
    monkeypatch.setenv("PATH", str(Node.bin))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Node()


@pytest.mark.parametrize(
    ("sysroot", "manager", "call", "package"),
    [
        (
            DEBIAN,
            "apt-get",
            "apt-get -y -o DPkg::Lock::Timeout=300 install --no-install-recommends libfleettest1",
            "libfleettest1",
        ),
        (REDHAT, "dnf", "dnf -y install fleettest-libs", "fleettest-libs"),
        (REDHAT, "yum", "yum -y install fleettest-libs", "fleettest-libs"),
        (OPENEULER, "dnf", "dnf -y install fleettest-libs", "fleettest-libs"),
        (SUSE, "zypper", "zypper --non-interactive install --no-recommends libfleettest1", "libfleettest1"),
    ],
)
def test_check_apply_check_again_apply_again(node, sysroot, manager, call, package):
    node.manager(manager)
    done = dict(
        MISSING,
        installed=[package],
        diff={"before": NAME + ": missing\n", "after": "%s: from package %s\n" % (NAME, package)},
    )
    assert node.ensure(sysroot, check_mode=True) == done
    assert node.called() == [], "check mode installs nothing"
    assert node.ensure(sysroot) == done
    assert node.called() == [call]
    assert node.ensure(sysroot, check_mode=True) == FOUND
    assert node.ensure(sysroot) == FOUND
    assert node.called() == [call], "nothing is asked of the package manager where all is found"


def test_dnf_is_preferred_to_yum(node):
    node.manager("yum")
    node.manager("dnf")
    node.ensure(REDHAT)
    assert node.called() == ["dnf -y install fleettest-libs"]


def test_old_package_lists_are_renewed_once(node):
    node.manager(
        "apt-get",
        'if [ "$1" = update ]; then : > %(lists)s; exit 0; fi\n'
        "if [ ! -e %(lists)s ]; then echo 'E: Unable to locate package'; exit 100; fi\ncp %(library)s %(lib)s/%(name)s"
        % {"lists": node.bin / "lists", "library": any_library(), "lib": node.lib, "name": NAME},
    )
    assert node.ensure()["installed"] == ["libfleettest1"]
    assert [call.split()[1] for call in node.called()] == ["-y", "update", "-y"]


def test_a_failed_installation_says_how_it_ended(node):
    node.manager("dnf", "echo one; echo 'Error: Unable to find a match: fleettest-libs' >&2; exit 1")
    with pytest.raises(FleetError) as caught:
        node.ensure(REDHAT)
    assert caught.value.message == (
        "Installing fleettest-libs failed: 'dnf -y install fleettest-libs' ended with 1: one\n"
        "Error: Unable to find a match: fleettest-libs"
    )


def test_an_installation_without_end_is_ended(node, monkeypatch):
    monkeypatch.setattr(shared_libraries, "INSTALL_TIMEOUT_S", 0.2)
    node.manager("dnf", "exec sleep 20")
    with pytest.raises(FleetError) as caught:
        node.ensure(REDHAT)
    assert caught.value.message == (
        "Installing fleettest-libs failed: 'dnf -y install fleettest-libs' ended with 124: no end after 0 s"
    )


def test_no_package_manager(node):
    with pytest.raises(FleetError) as caught:
        node.ensure(SUSE)
    assert caught.value.message == (
        "Installing libfleettest1 failed: 'zypper --non-interactive install --no-recommends libfleettest1' ended with "
        "127: No such file or directory"
    )


def test_a_package_without_the_library(node):
    node.manager("apt-get", "exit 0")
    with pytest.raises(FleetError) as caught:
        node.ensure()
    assert caught.value.message == (
        "Shared libraries still missing after the installation of libfleettest1: libfleettest.so.1. Name the packages "
        "that hold them under 'libraries'."
    )
    assert caught.value.details == {"missing": [NAME]}


@pytest.mark.parametrize("check_mode", [False, True])
def test_without_root_the_command_is_named(node, monkeypatch, check_mode):
    node.manager("apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(FleetError) as caught:
        node.ensure(check_mode=check_mode)
    assert caught.value.message == (
        "Missing shared libraries: libfleettest.so.1; installing them needs root. Run 'apt-get install libfleettest1' "
        "as root, or run the play with become."
    )
    assert node.called() == []


def test_without_root_nothing_is_needed_where_all_is_found(node, monkeypatch):
    shutil.copy(any_library(), pathlib.Path(node.lib, NAME))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert node.ensure() == FOUND


@pytest.mark.parametrize(
    ("sysroot", "libraries", "message"),
    [
        (
            UNKNOWN,
            LIBRARIES,
            "No package is known that holds libfleettest.so.1 on this distribution (family unknown). Install it, or "
            "name its package under 'libraries'.",
        ),
        (
            REDHAT,
            {NAME: {"debian": "libfleettest1"}},
            "No package is known that holds libfleettest.so.1 on Rocky Linux 9.4 (Blue Onyx) (family redhat). Install "
            "it, or name its package under 'libraries'.",
        ),
        (
            DEBIAN,
            {NAME: "libfleettest1"},
            "libraries: libfleettest.so.1 is 'libfleettest1'; allowed: a mapping of debian, redhat, suse to the name "
            "of a package.",
        ),
    ],
)
def test_what_package_is_not_known(node, sysroot, libraries, message):
    with pytest.raises(FleetError) as caught:
        node.ensure(sysroot, libraries=libraries)
    assert caught.value.message == message


def test_only_what_does_not_resolve_is_missing(tmp_path):
    shutil.copy(any_library(), tmp_path / NAME)
    (tmp_path / "libbroken.so.1").write_text("no library")
    system = os.path.basename(any_library())
    assert missing_libraries([]) == []
    assert missing_libraries([system, "libnone.so.7", NAME]) == ["libnone.so.7", NAME]
    assert missing_libraries(["libbroken.so.1", NAME], [str(tmp_path)]) == ["libbroken.so.1"]


def test_a_python_that_cannot_load_libraries(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named '_ctypes'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(FleetError) as caught:
        missing_libraries([NAME])
    assert caught.value.message == (
        "Whether the shared libraries libfleettest.so.1 are there cannot be found out: %s -c 'import ctypes' fails "
        "(ModuleNotFoundError: No module named '_ctypes'). Install the full Python of the distribution." % python
    )


@pytest.mark.parametrize(
    ("sysroot", "family"),
    [
        (DEBIAN, ("debian", "Debian GNU/Linux 12 (bookworm)")),
        (REDHAT, ("redhat", "Rocky Linux 9.4 (Blue Onyx)")),
        (OPENEULER, ("redhat", "openEuler 22.03 (LTS-SP4)")),
        (SUSE, ("suse", "openSUSE Leap 15.6")),
        (UNKNOWN, (None, "this distribution")),
    ],
)
def test_families(sysroot, family):
    assert distribution_family(sysroot) == family


def test_hints(node):
    node.manager("yum")
    assert install_hint("libnuma.so.1", sysroot=DEBIAN) == "apt-get install libnuma1"
    assert install_hint("libnuma.so.1", sysroot=REDHAT) == "yum install numactl-libs"
    assert install_hint("libnuma.so.1", sysroot=UNKNOWN) == (
        "install the package libnuma1 (debian), numactl-libs (redhat), libnuma1 (suse)"
    )
    assert install_hint("libother.so.2", sysroot=DEBIAN) == "install the package that holds it"
