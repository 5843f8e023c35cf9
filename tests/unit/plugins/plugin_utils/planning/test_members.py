# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The members of a service, by declared variables alone."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.planning.members import members

VARIABLES = {
    "n1": {"ansible_host": "10.0.0.1"},
    "n2": {"ansible_host": "10.0.0.2", "fleet_address": "fd00::2", "etcd_name": "second"},
    "n3": {},
}


def test_names_and_addresses_are_the_declared_ones():
    assert members(list(VARIABLES), VARIABLES, "etcd_name", loopback=True) == [
        {"host": "n1", "name": "n1", "address": "10.0.0.1"},
        {"host": "n2", "name": "second", "address": "fd00::2"},
        {"host": "n3", "name": "n3", "address": "n3"},
    ]


def test_one_alone_is_on_loopback_where_that_is_asked_for():
    assert members(["n1"], VARIABLES, "etcd_name", loopback=True)[0]["address"] == "127.0.0.1"
    assert members(["n1"], VARIABLES, "etcd_name")[0]["address"] == "10.0.0.1"
