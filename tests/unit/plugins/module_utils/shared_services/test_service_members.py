# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who can be a cluster, and when one of its members may be restarted."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import members


@pytest.mark.parametrize(
    ("given", "code", "values"),
    [
        ([("a", "1"), ("b", "2")], "service.two-members", ("etcd", "a, b")),
        ([("a", "1"), ("a", "2"), ("c", "3")], "service.two-members-alike", ("etcd", "name", "a")),
        ([("a", "1"), ("b", "1"), ("c", "3")], "service.two-members-alike", ("etcd", "address", "1")),
    ],
)
def test_members_that_are_no_cluster(given, code, values):
    with pytest.raises(FleetError) as caught:
        members.check_members("etcd", [{"name": name, "address": address} for name, address in given])
    assert (caught.value.code, caught.value.values) == (code, values)


def test_one_and_three_are_clusters():
    for count in (1, 3, 5):
        members.check_members("etcd", [{"name": "n%d" % one, "address": "10.0.0.%d" % one} for one in range(count)])


@pytest.mark.parametrize(
    ("count", "others", "can"), [(1, 0, True), (3, 2, True), (3, 1, False), (5, 3, True), (5, 2, False)]
)
def test_a_restart_leaves_a_quorum(count, others, can):
    assert members.can_stop(count, others) is can
