# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be installed, by versions and the oldest that stay. That of platforms is tested with them."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import packages


@pytest.mark.parametrize(
    "version,least,fits",
    [
        ("2.29.40.0-f954cd7a5", "2.29", True),
        ("2.9.0", "2.29", False),
        ("1:2.30.2.0", "2.30.2.0", True),
        ("2.30", "2.30.2.0", False),
        ("2.30.2.0~rc1", "2.30.2", True),
        ("580.105.08", "580.126", False),
        ("25.0.rc1.1", "25.0", True),
        ("25.0.rc1.1", "25.0.0", False),
        ("24.1.rc3.7", "25.0", False),
        ("24.1.0.b062", "24.1.0", True),
        ("26.0.rc2", "25.2", True),
        ("N/A", "1", False),
        ("", "1", False),
    ],
)
def test_versions_of_all_vendors_compare(version, least, fits):
    assert packages.at_least(version, least) is fits
    assert packages.lacking({"a": {"version": "9", "least": least}}, {"a": version}) == ({} if fits else {"a": "9"})


@pytest.mark.parametrize(
    ("package", "installed", "due"),
    [
        ({"version": "2.30"}, None, {"a": "2.30"}),
        ({"version": "2.30"}, "2.30.1", {}),
        ({"version": "2.30"}, "2.31", {"a": "2.30"}),
        ({"version": "2.30", "least": None}, "2.29", {"a": "2.30"}),
        ({"version": "2.30", "least": "2.29"}, "2.31", {}),
    ],
)
def test_what_is_lacking(package, installed, due):
    assert packages.lacking({"a": package}, {"a": installed} if installed else {}) == due


@pytest.mark.parametrize(
    ("name", "package", "code"),
    [
        ("a", {"version": "2.30", "least": "2.29"}, None),
        ("a", {"version": "2.30", "least": None}, None),
        ("a", {"version": "latest"}, "packages.invalid"),
        ("a", {"version": 2.3}, "packages.invalid"),  # what YAML makes of 2.30
        ("a", {"version": "2.30", "least": ""}, "packages.invalid"),
        ("a", {"version": "2.30", "most": "3"}, "packages.invalid"),
        ("a", {}, "packages.invalid"),
        ("a", "2.30", "packages.invalid"),
        ("A b", {"version": "2.30"}, "packages.invalid"),
        ("a", {"version": "2.25", "least": "2.29"}, "packages.invalid"),
    ],
)
def test_packages_as_they_are_given(name, package, code):
    if code is None:
        return packages.check_packages({name: package}, "x_packages")
    with pytest.raises(FleetError) as caught:
        packages.check_packages({name: package}, "x_packages")
    assert (caught.value.code, caught.value.values) == (code, ("x_packages", name, package))
    return None
