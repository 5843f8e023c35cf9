# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member of etcd does before it runs: each state of a cluster has one way, or an error with the way out."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import etcd_member as etcd
from hypothesis import given
from hypothesis import strategies as st

PLANNED = {name: "https://%s:2380" % name for name in ("a", "b", "c")}


def listed(*names, unstarted=()):
    return [
        {"ID": "id-" + name, "name": "" if name in unstarted else name, "peerURLs": [PLANNED[name]]} for name in names
    ]


def up(*names):
    return {one for name in names for one in (name, PLANNED[name])}


def decide(name="a", data=False, empty=(), healthy=(), members=None):
    return etcd.decide(name, PLANNED, data, set(empty), up(*healthy), members)


def refused(**found):
    with pytest.raises(FleetError) as caught:
        decide(**found)
    return caught.value.code, caught.value.values


def test_a_new_cluster_begins_where_nobody_has_data():
    decision = decide(empty="abc")
    assert (decision.action, decision.remove, decision.cluster) == (etcd.BOOTSTRAP, None, PLANNED)


def test_no_new_cluster_beside_one_that_may_have_data():
    code, values = refused(empty="ab")
    assert (code, values[0], "'c' may have" in values[1]) == ("service.no-quorum", "a", True)


def test_two_dead_of_three_are_for_a_person_to_decide():
    """The two came back empty; the third has data and no quorum."""
    assert refused(empty="ab", healthy="", members=None)[0] == "service.no-quorum"


def test_data_stays_whatever_the_others_say():
    assert decide(data=True).action == etcd.KEEP
    assert decide(data=True, healthy="bc", members=listed(*"abc")).action == etcd.KEEP


def test_data_of_a_member_that_was_removed_is_refused():
    assert refused(data=True, healthy="bc", members=listed(*"bc")) == ("etcd.removed-member", ("a",))


def test_one_dead_member_is_replaced():
    decision = decide(empty="a", healthy="bc", members=listed(*"abc"))
    assert (decision.action, decision.remove, decision.cluster) == (etcd.REPLACE, "id-a", PLANNED)


def test_a_dead_member_with_another_address_is_replaced_by_its_name():
    members = listed(*"abc")
    members[0]["peerURLs"] = ["https://old:2380"]
    decision = decide(empty="a", healthy="bc", members=members)
    assert (decision.remove, decision.cluster) == ("id-a", PLANNED)


def test_a_member_that_was_told_of_and_never_started_joins():
    """A run that ended between the two: nothing is removed again."""
    decision = decide(empty="a", healthy="bc", members=listed(*"abc", unstarted="a"))
    assert (decision.action, decision.remove, decision.cluster) == (etcd.JOIN, None, PLANNED)


def test_another_host_of_the_group_is_added():
    decision = decide(empty="a", healthy="bc", members=listed(*"bc"))
    assert (decision.action, decision.remove, decision.cluster) == (etcd.ADD, None, PLANNED)


@pytest.mark.parametrize(
    ("healthy", "members", "words"),
    [("b", listed(*"abc"), "c is"), ("b", listed(*"bc", unstarted="c"), "https://c:2380 is")],
)
def test_nothing_is_removed_while_another_is_not_healthy(healthy, members, words):
    code, values = refused(empty="a", healthy=healthy, members=members)
    assert (code, words in values[1]) == ("service.no-quorum", True)


@pytest.mark.parametrize(
    ("healthy", "unstarted", "removed"), [("ab", "", "id-c"), ("abc", "", "id-c"), ("ab", "c", "id-c"), ("a", "", None)]
)
def test_a_member_leaves_if_the_others_keep_a_quorum(healthy, unstarted, removed):
    given = ("c", PLANNED["c"], up(*healthy), listed(*"abc", unstarted=unstarted))
    if removed:
        assert etcd.decide_removal(*given) == removed
        return
    with pytest.raises(FleetError) as caught:
        etcd.decide_removal(*given)
    assert (caught.value.code, caught.value.values[0]) == ("service.no-quorum", "c")


def test_a_member_that_has_left_is_not_removed_again():
    assert etcd.decide_removal("c", None, up("a"), listed(*"ab")) is None
    with pytest.raises(FleetError) as caught:
        etcd.decide_removal("c", None, set(), None)
    assert caught.value.code == "service.no-quorum"


@given(
    st.booleans(), st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("bc")),
    st.none() | st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("abc")),
)  # fmt: skip
def test_a_member_is_removed_only_where_it_is_itself_without_data_and_all_others_are_healthy(
    data, empty, healthy, members, unstarted
):
    members = None if members is None or not healthy else listed(*sorted(members), unstarted=unstarted)
    try:
        decision = decide(data=data, empty=empty, healthy=sorted(healthy), members=members)
    except FleetError as error:
        assert error.code in ("etcd.removed-member", "service.no-quorum")
        return
    if decision.remove is not None:
        assert (decision.remove, data) == ("id-a", False)
        assert {one["ID"][3:] for one in members} - {"a"} <= healthy
    if decision.action == etcd.BOOTSTRAP:
        assert not data and members is None and empty >= {"b", "c"}
