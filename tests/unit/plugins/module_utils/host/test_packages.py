# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages that are due by their versions, and shared libraries. The packages of platforms are tested with them."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import packages
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.node_helpers import script

LIBRARY = "libfleettest.so.1"


@pytest.mark.parametrize(("version", "least", "fits"), [
    ("2.29.40.0-f954cd7a5", "2.29", True), ("2.9.0", "2.29", False), ("1:2.30.2.0", "2.30.2.0", True),
    ("2.30", "2.30.2.0", False), ("2.30.2.0~rc1", "2.30.2", True), ("580.105.08", "580.126", False),
    ("25.0.rc1.1", "25.0", True), ("25.0.rc1.1", "25.0.0", False), ("24.1.rc3.7", "25.0", False),
    ("24.1.0.b062", "24.1.0", True), ("26.0.rc2", "25.2", True), ("N/A", "1", False), ("", "1", False),
])  # fmt: skip
def test_versions_of_all_vendors_compare(version, least, fits):
    assert packages.at_least(version, least) is fits
    assert packages.lacking({"a": {"version": "9", "least": least}}, {"a": version}) == ({} if fits else {"a": "9"})


@pytest.mark.parametrize(("package", "installed", "due"), [
    ({"version": "2.30"}, {}, True), ({"version": "2.30"}, {"a": "2.30.1"}, False),
    ({"version": "2.30"}, {"a": "2.31"}, True), ({"version": "2.30", "least": None}, {"a": "2.29"}, True),
    ({"version": "2.30", "least": "2.29"}, {"a": "2.31"}, False),
])  # fmt: skip
def test_what_is_lacking(package, installed, due):
    packages.check_packages({"a": package}, "x_packages")
    assert packages.lacking({"a": package}, installed) == ({"a": "2.30"} if due else {})


@pytest.mark.parametrize(("name", "package"), [
    ("a", {"version": "latest"}),
    ("a", {"version": 2.3}),  # what YAML makes of 2.30
    ("a", {"version": "2.30", "least": ""}), ("a", {"version": "2.30", "most": "3"}), ("a", {}), ("a", "2.30"),
    ("A b", {"version": "2.30"}), ("a", {"version": "2.25", "least": "2.29"}),
])  # fmt: skip
def test_packages_that_are_not_valid(name, package):
    caught = error(packages.check_packages, {name: package}, "x_packages")
    assert (caught.code, caught.values) == ("packages.invalid", ("x_packages", name, package))


def test_only_libraries_that_do_not_resolve_are_missing(tmp_path, monkeypatch):
    maps = pathlib.Path("/proc/self/maps").read_text()
    libc = re.search(r"(/\S*/libc[.-]\S*)$", maps, re.MULTILINE).group(1)  # of this process
    shutil.copy(libc, tmp_path / LIBRARY)
    (tmp_path / "libbroken.so.1").write_text("no library")
    assert packages.missing_libraries(()) == []
    names = (os.path.basename(libc), "libnone.so.7", LIBRARY)
    assert packages.missing_libraries(names) == ["libnone.so.7", LIBRARY]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert packages.missing_libraries(("libbroken.so.1", LIBRARY)) == ["libbroken.so.1"]


def test_a_python_that_cannot_load_libraries(tmp_path, monkeypatch):
    reason = "ModuleNotFoundError: No module named '_ctypes'"
    python = script(tmp_path / "python", 'echo "%s" >&2\nexit 1\n' % reason)
    monkeypatch.setattr(sys, "executable", python)
    caught = error(packages.missing_libraries, (LIBRARY,))
    assert (caught.code, caught.values) == ("libraries.lookup-failed", (LIBRARY, python, reason))
