# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of NATS on its node: looked at, configured, started, waited for."""

from __future__ import annotations

import json
import os
import pwd
import time

from ..errors import FleetError
from ..node import commands
from ..node.files import read_text, write_atomic
from . import certificates, containers, nats_client, units
from .members import can_stop, check_members

STATES = ("looked", "configured", "started", "restarted", "ready", "stopped")
LOGIN = "login.conf"  # included by the configuration, which may be shown
POLL_S = 1
# Arguments that say again what the configuration says: {name: (key of the parameters, variable)}. A switch says true.
SAID_AGAIN = {
    "m": ("monitor_port", "nats_monitor_port"), "http_port": ("monitor_port", "nats_monitor_port"),
    "p": ("client_port", "nats_client_port"), "port": ("client_port", "nats_client_port"),
    "js": ("jetstream", "nats_jetstream"), "jetstream": ("jetstream", "nats_jetstream"),
}  # fmt: skip
# Arguments that would overrule it. Unknown ones are refused by the server itself.
OVERRULING = frozenset((
    "a", "addr", "auth", "c", "cluster", "cluster_listen", "cluster_name", "config", "config_digest", "h", "help", "ms",
    "https_port", "n", "name", "net", "P", "pass", "pid", "routes", "s", "sd", "server_name", "signal", "sl",
    "store_dir", "t", "tls", "tlscacert", "tlscert", "tlskey", "tlsverify", "user", "v", "version",
))  # fmt: skip


class Server:
    """What a module's parameters say of this server and its cluster."""

    def __init__(self, params):
        self.params = params
        self.name, self.unit, self.tls = params["name"], params["unit"], params["tls"]
        self.folder, self.conf = os.path.dirname(params["conf"]), params["conf"]
        self.members = {one["name"]: one["address"] for one in params["members"]}

    @property
    def login(self):
        """(user, password) or None."""
        return (self.params["user"], self.params["password"]) if self.params["password"] else None

    def files(self):
        """{path: content}, the login's with them."""
        words = ""
        if self.login:
            # its configuration reads JSON's strings
            words = "authorization { user: %s, password: %s }\n" % tuple(map(json.dumps, self.login))
        return {**self.params["files"], os.path.join(self.folder, LOGIN): words}

    def watched(self):
        """Files that a running process has read at its start."""
        return [*self.files(), *([self.tls["certificate"], self.tls["ca"]] if self.tls else [])]

    def certificate_faults(self):
        """[what is wrong]. FleetError where the certificates are the operator's."""
        if not self.tls:
            return []
        return certificates.faults_of(
            self.name, self.tls, self.params["names"], self.params["renew_days"], self.params["tls_given"]
        )

    def fault(self):
        """What is wrong with the running server, or ""."""
        port = self.params["monitor_port"]
        answer, words = nats_client.monitored(port, "/healthz")
        if answer is None:
            return words
        if self.params["jetstream"]:
            answer, words = nats_client.monitored(port, "/jsz")
            if answer is None or answer.get("disabled"):
                return "JetStream is not up: %s" % (words or "it is disabled")
        routed = self.routed()
        if routed < len(self.members) // 2:
            return "it is connected with %d of %d other servers" % (routed, len(self.members) - 1)
        address = self.members[self.name]
        return nats_client.publish_and_receive(address, self.params["client_port"], self.tls, self.login)

    def ports(self):
        """[(address, port)] that it listens on."""
        names = ["client_port", "cluster_port"] if len(self.members) > 1 else ["client_port"]
        found = [(self.members[self.name], self.params[name]) for name in names]
        return [*found, ("127.0.0.1", self.params["monitor_port"])]

    def routed(self):
        """How many other servers this one is connected with. Releases before 2.10 tell their IDs, not their names."""
        answer, _words = nats_client.monitored(self.params["monitor_port"], "/routez")
        return len({one.get("remote_id") for one in (answer or {}).get("routes") or ()} - {None})


def check_arguments(name, params):
    """FleetError for an argument that would have the server do something else than its configuration says."""
    words = [str(one) for one in params["arguments"]]
    for index, word in enumerate(words):
        if not word.startswith("-"):
            continue
        argument, equals, value = word.lstrip("-").partition("=")
        if argument in OVERRULING:
            raise FleetError(
                "nats.argument-reserved",
                "Server '%s': nats_arguments holds %s, which the role sets or which starts no server. Remove it; use "
                "the role's variables, or nats_settings.",
                (name, word),
            )
        key, variable = SAID_AGAIN.get(argument, (None, None))
        if key is None:
            continue
        if not equals:
            value = "true" if key == "jetstream" else (words[index + 1 :] or ["nothing"])[0]
        if value != str(params[key]).lower():
            raise FleetError(
                "nats.argument-contradicts",
                "Server '%s': nats_arguments holds %s with the value %s, but the configuration says %s. Set %s to the "
                "same, or remove the argument.",
                (name, word, value, str(params[key]).lower(), variable),
            )


def look(server, check_mode):
    """What is to be done here; nothing is changed and no other server is asked."""
    params = server.params
    check_members("nats", params["members"])
    check_arguments(server.name, params)
    faults = server.certificate_faults()
    image = containers.image_fault(params["container"])
    due = units.reasons(server.unit, server.files(), params["programs"], faults, server.watched(), image)
    if "unit" in due and not units.is_up(server.unit):
        units.check_ports("nats", server.ports())
    if not due:
        fault = server.fault()
        if fault:
            due["ready"] = fault
    authority = os.path.isfile(os.path.join(server.folder, "tls", certificates.AUTHORITY_KEY))
    return {
        "due": due, "name": server.name, "authority": authority, "message": "; ".join(due.values()),
        "changed": bool(check_mode and due), "diff": units.diff(params["files"]),
        "engine_missing": containers.engine_missing(params["container"]),
    }  # fmt: skip


def configure(server, check_mode):
    """Put the files in place, once the server itself has read them."""
    files = server.files()
    changed = units.differing(files)
    if check_mode or not changed:
        return {"changed": bool(changed)}
    account = pwd.getpwnam(server.params["account"])
    login = os.path.join(server.folder, LOGIN)
    before, wanted = read_text(login), files.pop(login)
    if before != wanted:
        write_atomic(login, wanted, 0o600, (account.pw_uid, account.pw_gid))
    beside = server.conf + ".new"  # in the same folder, since it includes the login's file
    write_atomic(beside, files[server.conf])
    try:
        argv = [*server.params["nats_server"], "-t", "-c", beside, *server.params["arguments"]]
        done = commands.run(argv, merged=True)
    finally:
        os.unlink(beside)
    if done.returncode:
        if before not in (None, wanted):
            write_atomic(login, before, 0o600, (account.pw_uid, account.pw_gid))
        raise FleetError(
            "nats.configuration-refused",
            "nats-server refuses the configuration of '%s', so the old one stays: %s. Correct nats_settings, or "
            "nats_arguments.",
            (server.name, " ".join(done.stdout.split())[-300:]),
        )
    for path, content in files.items():
        if read_text(path) != content:
            write_atomic(path, content)
    return {"changed": True}


def start(server, check_mode):
    """Start it where it does not run; it may be long until it is ready."""
    return {"changed": units.ensure_started(server.unit, check_mode)}


def restart(server, check_mode):
    """Restart it where its files are younger than its process and the others keep a quorum meanwhile."""
    stale = units.is_stale(units.shown(server.unit), server.watched())
    if check_mode or not stale:
        return {"changed": stale}
    routed = server.routed()
    if not can_stop(len(server.members), routed):
        raise FleetError(
            "nats.restart-refused",
            "Server '%s' is to be restarted for its new configuration, but without it the cluster has no quorum: "
            "it is connected with %d of %d others. Repair those first and run again.",
            (server.name, routed, len(server.members) - 1),
        )
    units.start(server.unit, restart=True)
    _wait(server)
    return {"changed": True}


def stop(server, check_mode):
    """Stop it, and prove that nothing of it is left."""
    changed = units.ensure_stopped(server.unit, check_mode)
    if not check_mode:
        containers.prove_stopped("Server '%s'" % server.name, server.ports(), server.params["container"])
    return {"changed": changed}


def ready(server, _check_mode):
    """Wait until JetStream is up, where asked, and what is published is received."""
    if not units.is_stale(units.shown(server.unit), server.watched()):  # that one knows the old login; see restart()
        _wait(server)
    return {}


def _wait(server):
    end = time.monotonic() + server.params["timeout_s"]
    while True:
        words = server.fault()
        if not words:
            return
        if time.monotonic() > end:
            raise FleetError(
                "nats.not-ready",
                "Server '%s' was not ready within %d s: %s. See that the servers of its cluster run and reach each "
                "other, and run again. The end of its journal:\n%s",
                (server.name, server.params["timeout_s"], words, units.journal(server.unit)),
            )
        time.sleep(POLL_S)


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    server = Server(params)
    actions = {"looked": look, "configured": configure, "started": start, "restarted": restart, "ready": ready}
    if params["state"] == "stopped":
        return stop(server, check_mode)
    return {"changed": False, **actions[params["state"]](server, check_mode)}
