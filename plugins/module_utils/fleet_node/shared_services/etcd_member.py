# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A member of an etcd cluster: its action before it starts, how it joins, and when it is ready."""

from __future__ import annotations

import os
import ssl
import time
from typing import NamedTuple

from ..errors import FleetError
from ..host import http_client
from ..host.files import write_atomic
from ..host.values import url_host
from .service import ACTIONS, POLL_S, Service, look, no_quorum, shown

STATES = ("looked", "joined", "started", "restarted", "ready", "removed")
CALL_S = 15  # a member without a quorum answers after the election timeout, at least 5 s
SETTLE_S = 60  # an election, and 5 s in which all members are connected, before which the list does not change
UNSETTLED = ("etcd.member-change-failed", "service.no-quorum")
TOKEN = "inference-fleet"
# keep: it has data. bootstrap: all members are new. join: it is in the member list and has never run. add: it is not in
# the list. replace: it is in the list and has lost its data.
KEEP, BOOTSTRAP, JOIN, ADD, REPLACE = "keep", "bootstrap", "join", "add", "replace"


class Member(Service):
    """A member as the parameters of etcd_member describe it."""

    kind = "etcd"

    def __init__(self, params):
        super().__init__(params)
        self.scheme = "https" if self.tls else "http"

    def peer_url(self, name):
        """URL of a member for other members."""
        return self.url_of(self.members[name], self.params["peer_port"])

    def client_url(self, name):
        """URL of a member for clients."""
        return self.url_of(self.members[name], self.params["client_port"])

    def url_of(self, address, port):
        """URL of an address and port."""
        return "%s://%s:%d" % (self.scheme, url_host(address), port)

    def ports(self):
        address = self.members[self.name]
        return [(address, self.params[port]) for port in ("client_port", "peer_port")]

    @property
    def has_data(self):
        """Whether the member has run before."""
        folder = os.path.join(self.params["data_dir"], "member")
        return os.path.isdir(folder) and bool(os.listdir(folder))

    def call(self, url, path, body=None):
        """The Response of a member's HTTP API, which includes etcd's JSON gateway."""
        context = None
        if self.tls:
            try:
                context = ssl.create_default_context(cafile=self.tls["ca"])
                context.load_cert_chain(self.tls["certificate"], self.tls["key"])
            except OSError as error:  # certificates.faults() reports it
                return http_client.Response("GET", url + path, error="protocol", detail=str(error))
        return http_client.request("GET" if body is None else "POST", url + path, body, CALL_S, context=context)

    def health(self, url):
        """Why the member at `url` is not healthy, "" if it answers and has a quorum."""
        answer = self.call(url, "/health")
        found = answer.json()
        return "" if isinstance(found, dict) and str(found.get("health")).lower() == "true" else answer.describe()

    def fault(self):
        return self.health(self.client_url(self.name))

    def running_version(self):
        return (self.call(self.client_url(self.name), "/version").json() or {}).get("etcdserver")

    def healthy_others(self):
        return sum(not self.health(self.client_url(name)) for name in self.members if name != self.name)

    def cluster(self):
        """(names and peer URLs of healthy other members, the member list or None, the URL that answered)."""
        healthy, listed, asked = set(), None, None
        for name in self.members:
            url = self.client_url(name)
            if name != self.name and not self.health(url):
                healthy |= {name, self.peer_url(name)}
                if listed is None:
                    listed, asked = self._list(url), url
        for member in listed or ():
            clients = member["clientURLs"]
            if member["name"] not in self.members and clients and not self.health(clients[0]):
                healthy |= {member["name"], *member["peerURLs"]}
        return healthy, listed, asked

    def _list(self, url):
        answer = self.call(url, "/v3/cluster/member/list", {})
        if not answer.ok:
            return None
        empty = {"name": "", "peerURLs": [], "clientURLs": []}
        return [{**empty, **member} for member in answer.json().get("members", ())]

    def change(self, url, what, name, body):
        """Change the cluster's member list. Raises FleetError."""
        answer = self.call(url, "/v3/cluster/member/" + what, body)
        if not answer.ok:
            raise FleetError("etcd.member-change-failed", what, name, answer.describe())


def join(member, check_mode):
    """Write the initial configuration of a member without data, and change the cluster's member list if necessary."""
    if member.has_data and shown(member.unit).get("MainPID", "0") != "0":
        return {"action": KEEP}
    healthy, listed, asked = member.cluster()
    planned = {name: member.peer_url(name) for name in member.members}
    decision = decide(member.name, planned, member.has_data, set(member.params["empty"]), healthy, listed)
    result = {"changed": decision.action != KEEP, "action": decision.action}
    if check_mode or decision.action == KEEP:
        return result
    if decision.action == REPLACE:
        member.change(asked, "remove", member.name, {"ID": decision.remove})
    if decision.action in (ADD, REPLACE):
        member.change(asked, "add", member.name, {"peerURLs": [member.peer_url(member.name)]})
    lines = (
        "ETCD_INITIAL_CLUSTER=" + ",".join("%s=%s" % pair for pair in sorted(decision.cluster.items())),
        "ETCD_INITIAL_CLUSTER_STATE=" + ("new" if decision.action == BOOTSTRAP else "existing"),
        "ETCD_INITIAL_CLUSTER_TOKEN=" + TOKEN,
    )
    write_atomic(member.params["initial"], "\n".join(lines) + "\n")
    return result


def remove(member, check_mode):
    """Remove another member, which does not return, from the cluster's member list. Raises FleetError."""
    leaving = member.params["leaving"]
    if not member.has_data:  # it joins later
        return {}
    own = member.client_url(member.name)
    healthy, listed, asked = member.cluster()
    if not member.health(own):
        healthy |= {member.name, member.peer_url(member.name)}
        listed, asked = (listed, asked) if listed is not None else (member._list(own), own)
    url = member.url_of(leaving["address"], member.params["peer_port"]) if leaving.get("address") else None
    gone = decide_removal(leaving["name"], url, healthy, listed)
    if gone is not None and not check_mode:
        member.change(asked, "remove", leaving["name"], {"ID": gone})
    return {"changed": gone is not None}


def run(params, check_mode):
    """The result of the operation. Raises FleetError."""
    member = Member(params)
    if params["state"] == "looked":
        return {**look(member, check_mode), "data": member.has_data}
    action = {"joined": join, "removed": remove, **ACTIONS}[params["state"]]
    settles = params["state"] in ("joined", "removed") and not check_mode
    end = time.monotonic() + (SETTLE_S if settles else 0)
    while True:  # it decides again each time, because a change without an answer may have been made
        try:
            return {"changed": False, **action(member, check_mode)}
        except FleetError as error:
            if error.code not in UNSETTLED or time.monotonic() >= end:
                raise
        time.sleep(POLL_S)


class Decision(NamedTuple):
    """action; remove: ID of the member to remove, or None; cluster: {name: peer URL} that it begins with."""

    action: str
    remove: str | None = None
    cluster: dict | None = None


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
            raise FleetError("etcd.removed-member", name)
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


def decide_removal(leaving, peer_url, healthy, members):
    """The ID of the member to remove, None if it is not in the list. Raises FleetError if the others have no quorum.

    leaving: its name. peer_url: its planned peer URL, None if it is not known. healthy, members: as decide().
    """
    if members is None:
        raise no_quorum(leaving, "no other member answers with a quorum")
    mine = next((one for one in members if one["name"] == leaving or peer_url in one["peerURLs"]), None)
    others = [one for one in members if one is not mine]
    well = [one for one in others if one["name"] in healthy or healthy & set(one["peerURLs"])]
    if mine is not None and len(well) <= len(others) // 2:
        raise no_quorum(leaving, "%d of %d other members of etcd are healthy" % (len(well), len(others)))
    return mine and mine["ID"]
