# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A member of an etcd cluster: how it joins, and when it is ready."""

from __future__ import annotations

import os
import ssl

from ..errors import FleetError
from ..host import http_client
from ..host.files import write_atomic
from ..host.values import url_host
from .etcd_decisions import ADD, BOOTSTRAP, KEEP, REPLACE, decide
from .service import ACTIONS, Service, look, shown

STATES = ("looked", "joined", "started", "restarted", "ready")
CALL_S = 15  # a member without a quorum answers after the election timeout, at least 5 s
TOKEN = "inference-fleet"


class Member(Service):
    """A member as the parameters of etcd_member describe it."""

    kind = "etcd"

    def __init__(self, params):
        super().__init__(params)
        self.initial = params["initial"]
        self.scheme = "https" if self.tls else "http"

    def peer_url(self, name):
        """URL of a member for other members."""
        return self._url(name, self.params["peer_port"])

    def client_url(self, name):
        """URL of a member for clients."""
        return self._url(name, self.params["client_port"])

    def _url(self, name, port):
        return "%s://%s:%d" % (self.scheme, url_host(self.members[name]), port)

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
            context = ssl.create_default_context(cafile=self.tls["ca"])
            context.load_cert_chain(self.tls["certificate"], self.tls["key"])
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

    def change(self, url, what, body):
        """Change the cluster's member list. Raises FleetError."""
        answer = self.call(url, "/v3/cluster/member/" + what, body)
        if not answer.ok:
            raise FleetError(
                "etcd.member-change-failed",
                "The cluster did not %s member '%s': %s. Check `etcdctl endpoint status --cluster` on a healthy member "
                "and run again.",
                (what, self.name, answer.describe()),
            )


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
        member.change(asked, "remove", {"ID": decision.remove})
    if decision.action in (ADD, REPLACE):
        member.change(asked, "add", {"peerURLs": [member.peer_url(member.name)]})
    lines = (
        "ETCD_INITIAL_CLUSTER=" + ",".join("%s=%s" % pair for pair in sorted(decision.cluster.items())),
        "ETCD_INITIAL_CLUSTER_STATE=" + ("new" if decision.action == BOOTSTRAP else "existing"),
        "ETCD_INITIAL_CLUSTER_TOKEN=" + TOKEN,
    )
    write_atomic(member.initial, "\n".join(lines) + "\n")
    return result


def run(params, check_mode):
    """The result of the operation. Raises FleetError."""
    member = Member(params)
    if params["state"] == "looked":
        return {**look(member, check_mode), "data": member.has_data}
    action = join if params["state"] == "joined" else ACTIONS[params["state"]]
    return {"changed": False, **action(member, check_mode)}
