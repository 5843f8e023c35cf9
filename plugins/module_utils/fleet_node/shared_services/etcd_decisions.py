# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of a member before it starts, decided from the answers of the other members. Pure."""

from __future__ import annotations

from ..errors import FleetError

# keep: it has data. bootstrap: all members are new. join: it is in the member list and has never run. add: it is not in
# the list. replace: it is in the list and has lost its data.
KEEP, BOOTSTRAP, JOIN, ADD, REPLACE = "keep", "bootstrap", "join", "add", "replace"


class Decision:
    """action; remove: ID of the member to remove, or None; cluster: {name: peer URL} that it begins with."""

    def __init__(self, action, remove=None, cluster=None):
        self.action = action
        self.remove = remove
        self.cluster = dict(cluster or {})


def decide(name, planned, data, empty, healthy, members):
    """The Decision for the member `name`. Raises FleetError if an operator must decide.

    planned: {name: peer URL} of the inventory. data: whether it has data. empty: names of members that have no data.
    healthy: names or peer URLs of other members with a quorum. members: [{ID, name, peerURLs}] of those, None if none
    answers.
    """
    own = planned[name]
    mine = next((one for one in members or () if one["name"] == name or own in one["peerURLs"]), None)
    if data:
        if members is not None and mine is None:
            raise FleetError(
                "etcd.removed-member",
                "Member '%s' has data of a member that the others have removed, and would not start. Move the data "
                "folder away and run again; it joins as a new member then.",
                (name,),
            )
        return Decision(KEEP)
    if members is None:
        return _first(name, planned, empty)
    dead = sorted(
        one["name"] or one["peerURLs"][0]
        for one in members
        if one is not mine and one["name"] not in healthy and not healthy & set(one["peerURLs"])
    )
    if dead:
        reason = "it has no data and must join, but %s not healthy, and a cluster changes by one member at a time"
        raise no_quorum(name, reason % (("%s is" if len(dead) == 1 else "%s are") % ", ".join(dead)))
    others = {one["name"]: one["peerURLs"][0] for one in members if one is not mine}
    cluster = {**others, name: own}
    if mine is None:
        return Decision(ADD, cluster=cluster)
    if not mine["name"] and own in mine["peerURLs"]:  # it has a name from its first start on
        return Decision(JOIN, cluster=cluster)
    return Decision(REPLACE, mine["ID"], cluster)


def _first(name, planned, empty):
    """No member has a quorum: a new cluster if it is certain that no member has data."""
    unsure = sorted(set(planned) - set(empty) - {name})
    if unsure:
        reason = "it has no data, no other member answers with a quorum, and %s may have the cluster's data"
        raise no_quorum(name, reason % ", ".join("'%s'" % one for one in unsure))
    return Decision(BOOTSTRAP, cluster=planned)


def no_quorum(name, reason):
    """The FleetError for a change that the cluster cannot make without more members."""
    return FleetError(
        "service.no-quorum",
        "Member '%s' cannot start or restart: %s. Nothing was changed. Start the other members and run again. Remove a "
        "member that does not return with `etcdctl member remove ID`. If more than half are lost, empty etcd_data_dir "
        "on every member: servers register again in the new cluster.",
        (name, reason),
    )
