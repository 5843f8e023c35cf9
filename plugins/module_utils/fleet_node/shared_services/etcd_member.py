# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A member of an etcd cluster on its node: looked at, brought into its cluster, started, waited for."""

from __future__ import annotations

import os
import time

from ..errors import FleetError
from ..node import commands
from ..node.files import write_atomic
from . import certificates, containers, units
from .etcd_api import Members
from .etcd_decisions import ADD, BOOTSTRAP, KEEP, REPLACE, decide
from .members import can_stop, check_members

STATES = ("looked", "joined", "started", "restarted", "ready", "stopped")
POLL_S = 1
SNAPSHOT_S = 600


class Member:
    """What a module's parameters say of this member and its cluster."""

    def __init__(self, params):
        self.params = params
        self.name, self.unit, self.data_dir = params["name"], params["unit"], params["data_dir"]
        self.tls = params["tls"]
        self.scheme = "https" if self.tls else "http"
        self.members = {one["name"]: one["address"] for one in params["members"]}

    def peer_url(self, name):
        return self._url(name, self.params["peer_port"])

    def client_url(self, name):
        return self._url(name, self.params["client_port"])

    def _url(self, name, port):
        address = self.members[name]
        return "%s://%s:%d" % (self.scheme, "[%s]" % address if ":" in address else address, port)

    @property
    def has_data(self):
        folder = os.path.join(self.data_dir, "member")
        return os.path.isdir(folder) and bool(os.listdir(folder))

    def certificate_faults(self):
        """[what is wrong]. FleetError where the certificates are the operator's, whom nobody can replace."""
        if not self.tls:
            return []
        return certificates.faults_of(
            self.name, self.tls, self.params["names"], self.params["renew_days"], self.params["tls_given"]
        )

    def ports(self):
        """[(address, port)] that it listens on."""
        address = self.members[self.name]
        return [(address, self.params[port]) for port in ("client_port", "peer_port")]

    def api(self):
        return Members(self.tls)

    def cluster(self):
        """(names and peer URLs of healthy others, the members as the first of them lists them or None, its URL)."""
        api, healthy, listed, asked = self.api(), set(), None, None
        for name in self.members:
            if name != self.name and api.healthy(self.client_url(name)):
                healthy |= {name, self.peer_url(name)}
                if listed is None:
                    listed, asked = api.list(self.client_url(name)), self.client_url(name)
        for one in listed or ():
            known = one["name"] in self.members
            if not known and one["clientURLs"] and api.healthy(one["clientURLs"][0]):
                healthy |= {one["name"], *one["peerURLs"]}
        return healthy, listed, asked


def look(member, check_mode):
    """What is to be done here; nothing is changed and no other member is asked."""
    params = member.params
    check_members("etcd", params["members"])
    faults = member.certificate_faults()
    image = containers.image_fault(params["container"])
    due = units.reasons(member.unit, params["files"], params["programs"], faults, image=image)
    if "unit" in due and not units.is_up(member.unit):
        units.check_ports("etcd", member.ports())
    if not due and not member.api().healthy(member.client_url(member.name)):
        due["ready"] = "it has no quorum"
    authority = os.path.isfile(os.path.join(os.path.dirname(params["initial"]), "tls", certificates.AUTHORITY_KEY))
    return {
        "due": due, "name": member.name, "data": member.has_data, "authority": authority,
        "message": "; ".join(due.values()), "changed": bool(check_mode and due), "diff": units.diff(params["files"]),
        "engine_missing": containers.engine_missing(params["container"]),
    }  # fmt: skip


def join(member, check_mode):
    """Write what it begins with; tell the others of it, and have them forget the dead member whose name it takes."""
    if member.has_data and units.is_up(member.unit):
        return {"action": KEEP, "snapshot": None}
    healthy, listed, asked = member.cluster()
    planned = {name: member.peer_url(name) for name in member.members}
    decision = decide(member.name, planned, member.has_data, set(member.params["empty"]), healthy, listed)
    result = {"changed": decision.action != KEEP, "action": decision.action, "snapshot": None}
    if check_mode or decision.action == KEEP:
        return result
    if decision.action == REPLACE:
        result["snapshot"] = _snapshot(member, asked)
        _told("remove", member.api().remove(asked, decision.remove), member.name)
    if decision.action in (ADD, REPLACE):
        _told("add", member.api().add(asked, member.peer_url(member.name)), member.name)
    cluster = ",".join("%s=%s" % pair for pair in sorted(decision.cluster.items()))
    lines = (
        "ETCD_INITIAL_CLUSTER=" + cluster,
        "ETCD_INITIAL_CLUSTER_STATE=" + ("new" if decision.action == BOOTSTRAP else "existing"),
        "ETCD_INITIAL_CLUSTER_TOKEN=" + member.params["token"],
    )
    write_atomic(member.params["initial"], "\n".join(lines) + "\n")
    return result


def _told(what, words, name):
    if words:
        raise FleetError(
            "etcd.member-change-failed",
            "The cluster did not %s member '%s': %s. Look at `etcdctl endpoint status --cluster` on a healthy member "
            "and run again.",
            (what, name, words),
        )


def _snapshot(member, url):
    """Path of a snapshot of the cluster, taken on this node before a member is removed."""
    folder = member.params["backup_dir"]
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, "before-replacing-%s-%s.db" % (member.name, time.strftime("%Y%m%dT%H%M%S")))
    tls = member.tls or {}
    options = [
        "--%s=%s" % (flag, tls[key]) for flag, key in (("cacert", "ca"), ("cert", "certificate"), ("key", "key")) if tls
    ]
    argv = [*member.params["etcdctl"], "--endpoints", url, *options, "snapshot", "save", path]
    done = commands.run(argv, limit_s=SNAPSHOT_S, merged=True, env={**os.environ, "ETCDCTL_API": "3"})
    if done.returncode or not os.path.isfile(path):
        raise FleetError(
            "etcd.no-snapshot",
            "No snapshot could be taken before member '%s' is replaced, so nothing was changed: %s. "
            "Correct that and run again.",
            (member.name, " ".join(done.stdout.split())[-300:]),
        )
    return path


def start(member, check_mode):
    """Start it where it does not run; it may be long until it is ready."""
    return {"changed": units.ensure_started(member.unit, check_mode)}


def restart(member, check_mode):
    """Restart it where its files are younger than its process and the others keep a quorum meanwhile."""
    stale = units.is_stale(units.shown(member.unit), member.params["files"])
    if check_mode or not stale:
        return {"changed": stale}
    healthy, _listed, _asked = member.cluster()
    if not can_stop(len(member.members), len(healthy & set(member.members))):
        raise FleetError(
            "etcd.restart-refused",
            "Member '%s' is to be restarted for its new configuration, but without it the cluster has no quorum: "
            "only %s healthy of %d members. Repair the others first and run again.",
            (member.name, ", ".join(sorted(healthy & set(member.members))) or "none", len(member.members)),
        )
    units.start(member.unit, restart=True)
    _wait(member)
    return {"changed": True}


def stop(member, check_mode):
    """Stop it, and prove that nothing of it is left."""
    changed = units.ensure_stopped(member.unit, check_mode)
    if not check_mode:
        containers.prove_stopped("Member '%s'" % member.name, member.ports(), member.params["container"])
    return {"changed": changed}


def ready(member, _check_mode):
    """Wait until a quorum answers a write and reads it back."""
    if not units.is_stale(units.shown(member.unit), member.params["files"]):  # that one has old ports; see restart()
        _wait(member)
    return {}


def _wait(member):
    api, url, end = member.api(), member.client_url(member.name), time.monotonic() + member.params["timeout_s"]
    while True:
        words = api.write_and_read(url, member.name)
        if not words:
            return
        if time.monotonic() > end:
            raise FleetError(
                "etcd.not-ready",
                "Member '%s' did not answer a write within %d s: %s. See that more than half of the members run and "
                "reach each other, and run again. The end of its journal:\n%s",
                (member.name, member.params["timeout_s"], words, units.journal(member.unit)),
            )
        time.sleep(POLL_S)


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    member = Member(params)
    actions = {"looked": look, "joined": join, "started": start, "restarted": restart, "ready": ready}
    if params["state"] == "stopped":
        return stop(member, check_mode)
    return {"changed": False, **actions[params["state"]](member, check_mode)}
