# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member of etcd does before it runs: each state of a cluster has one way, or an error with the way out."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import etcd_member as etcd
from ansible_collections.inference.fleet.tests.unit.engines import plans
from hypothesis import given
from hypothesis import strategies as st

PLANNED = {name: "https://%s:2380" % name for name in ("a", "b", "c")}
NO_QUORUM = "service.no-quorum"


def listed(names, unstarted="", **urls):
    """The members of a cluster; those that have not started yet have no name."""
    return [
        {"ID": "id-" + name, "name": "" if name in unstarted else name, "peerURLs": [urls.get(name, PLANNED[name])]}
        for name in names
    ]


def up(names):
    return {one for name in names for one in (name, PLANNED[name])}


def decide(data=False, empty="", healthy="", members=None):
    return etcd.decide("a", PLANNED, data, set(empty), up(healthy), members)


@pytest.mark.parametrize(
    ("found", "action", "removed"),
    [
        ({"empty": "abc"}, etcd.BOOTSTRAP, None),
        ({"data": True}, etcd.KEEP, None),
        ({"data": True, "healthy": "bc", "members": listed("abc")}, etcd.KEEP, None),
        ({"empty": "a", "healthy": "bc", "members": listed("abc")}, etcd.REPLACE, "id-a"),
        ({"empty": "a", "healthy": "bc", "members": listed("abc", a="https://old:2380")}, etcd.REPLACE, "id-a"),
        # a run ended between the two steps of a replacement: nothing is removed again
        ({"empty": "a", "healthy": "bc", "members": listed("abc", unstarted="a")}, etcd.JOIN, None),
        ({"empty": "a", "healthy": "bc", "members": listed("bc")}, etcd.ADD, None),
    ],
)
def test_what_a_member_does(found, action, removed):
    decision = decide(**found)
    cluster = None if action == etcd.KEEP else PLANNED
    assert (decision.action, decision.remove, decision.cluster) == (action, removed, cluster)


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        ({"empty": "ab"}, NO_QUORUM, "'c' may have"),  # the two came back empty; the third may have data
        ({"data": True, "healthy": "bc", "members": listed("bc")}, "etcd.removed-member", ""),
        ({"empty": "a", "healthy": "b", "members": listed("abc")}, NO_QUORUM, "c is"),
        ({"empty": "a", "healthy": "b", "members": listed("bc", unstarted="c")}, NO_QUORUM, "https://c:2380 is"),
    ],
)
def test_what_a_person_has_to_decide(found, code, words):
    caught = plans.error(decide, **found)
    assert (caught.code, caught.values[0]) == (code, "a")
    assert words in caught.values[-1]


@pytest.mark.parametrize(
    ("url", "healthy", "members", "removed"),
    [
        (PLANNED["c"], "ab", listed("abc"), "id-c"), (PLANNED["c"], "abc", listed("abc"), "id-c"),
        (PLANNED["c"], "ab", listed("abc", unstarted="c"), "id-c"),
        (None, "a", listed("ab"), None),  # it has left
        (PLANNED["c"], "a", listed("abc"), FleetError), (None, "", None, FleetError),
    ],
)  # fmt: skip
def test_a_member_leaves_if_the_others_keep_a_quorum(url, healthy, members, removed):
    given = ("c", url, up(healthy), members)
    if removed is not FleetError:
        assert etcd.decide_removal(*given) == removed
        return
    caught = plans.error(etcd.decide_removal, *given)
    assert (caught.code, caught.values[0]) == (NO_QUORUM, "c")


@given(
    st.booleans(), st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("bc")),
    st.none() | st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("abc")),
)  # fmt: skip
def test_a_member_is_removed_only_where_it_is_itself_without_data_and_all_others_are_healthy(
    data, empty, healthy, members, unstarted
):
    members = None if members is None or not healthy else listed(sorted(members), unstarted)
    try:
        decision = decide(data=data, empty=empty, healthy=sorted(healthy), members=members)
    except FleetError as error:
        assert error.code in ("etcd.removed-member", NO_QUORUM)
        return
    if decision.remove is not None:
        assert (decision.remove, data) == ("id-a", False)
        assert {one["ID"][3:] for one in members} - {"a"} <= healthy
    if decision.action == etcd.BOOTSTRAP:
        assert not data and members is None and empty >= {"b", "c"}
