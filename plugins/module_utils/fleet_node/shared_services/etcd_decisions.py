# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member must do before it starts, decided from the answers of the other members. Pure."""

from __future__ import annotations

from ..errors import FleetError

# keep: its data is there. bootstrap: the whole cluster is new. join: it is known to the others and has never run.
# add: the others are to be told of it. replace: it was one of them and lost its data.
KEEP, BOOTSTRAP, JOIN, ADD, REPLACE = "keep", "bootstrap", "join", "add", "replace"


class Decision:
    """action; remove: ID of the member to remove, or None; cluster: {name: peer URL} that it begins with."""

    def __init__(self, action, remove=None, cluster=None):
        self.action = action
        self.remove = remove
        self.cluster = dict(cluster or {})


def decide(name, planned, data, empty, healthy, members):
    """The Decision for the member `name`. FleetError where only a person can decide.

    planned: {name: peer URL} of the inventory. data: whether its data folder holds something. empty: names of members
    that are known to have no data. healthy: names or peer URLs of others that answer and have a quorum.
    members: [{ID, name, peerURLs}] as those say, None where none answers.
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
        raise FleetError(
            "etcd.several-dead",
            "Member '%s' has no data and is to join, but of its cluster %s not healthy either: a cluster changes by "
            "one member at a time. Start %s first, or remove what does not come back (etcdctl member remove ID, on a "
            "healthy member); then run again.",
            (name, ("%s is" if len(dead) == 1 else "%s are") % ", ".join(dead), "it" if len(dead) == 1 else "them"),
        )
    others = {one["name"]: one["peerURLs"][0] for one in members if one is not mine}
    cluster = {**others, name: own}
    if mine is None:
        return Decision(ADD, cluster=cluster)
    if not mine["name"] and own in mine["peerURLs"]:  # it has a name from its first start on
        return Decision(JOIN, cluster=cluster)
    return Decision(REPLACE, mine["ID"], cluster)


def _first(name, planned, empty):
    """Nobody has a quorum: a new cluster where it is certain that nobody has data."""
    unsure = sorted(set(planned) - set(empty) - {name})
    if not unsure:
        return Decision(BOOTSTRAP, cluster=planned)
    raise FleetError(
        "etcd.no-quorum",
        "Member '%s' has no data, and no other member answers with a quorum; %s may have the cluster's data. No "
        "cluster was changed. Start what still has data (more than half of the members are needed); run again on all. "
        "If that many are lost, empty etcd_data_dir on every member and run again: servers register again in the new "
        "cluster.",
        (name, ", ".join("'%s'" % one for one in unsure)),
    )
