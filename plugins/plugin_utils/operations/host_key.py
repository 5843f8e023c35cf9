# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetches a node's host keys with OpenSSH and returns the accepted keys for ansible.builtin.known_hosts."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import tempfile

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.plugins.loader import connection_loader

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host import commands
from ..planning.inventory import PROVIDED, Hosts, inference_hosts
from ..reporting.screen import replace_command

# A server presents one key per connection.
ALGORITHMS = ("ssh-ed25519", "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521", "rsa-sha2-512,rsa-sha2-256")
NONE = ("", "none", "/dev/null")


def host_key(action, arguments, task_vars):
    """Return {name, path, hashed, keys, outdated}; nothing runs on the node. arguments: {node, accept, timeout}.

    Raises FleetError.
    """
    node = arguments.get("node")
    ours = inference_hosts(task_vars["ansible_play_hosts_all"], Hosts.of_task(task_vars))
    if not isinstance(node, str) or node not in ours:
        raise FleetError("host-key.node-unknown", node or "", ", ".join(sorted(ours)))
    variables = task_vars["hostvars"][node]
    accept = arguments.get("accept", variables.get("fleet_host_key")) or []
    accept = [accept] if isinstance(accept, str) else accept
    host, ssh = _ssh(action, node, variables)
    options, shown = fetch(ssh, host, int(arguments.get("timeout", 15)))
    return {"changed": False, **accepted(node, options, shown, {one.rstrip("=") for one in accept})}


def node_removal(action, arguments, task_vars):
    """Return {name, path, outdated, keys: []}, as host_key(), for a node that leaves; nothing is contacted.
    arguments: {node}.

    Raises FleetError if etcd or NATS cannot be without it.
    """
    node, groups = str(arguments.get("node") or ""), task_vars["groups"]
    if not node:
        raise FleetError("host-key.node-missing")
    for service in PROVIDED:
        group = groups.get(task_vars.get(service + "_group") or service) or ()
        left = [host for host in group if host != node]
        if node in group and len(left) in (0, 2):
            raise FleetError(
                "service.cannot-leave",
                node,
                service,
                "%s and %s alone have no quorum without both" % tuple(left) if left else "no host is left",
            )
    try:
        host, ssh = _ssh(action, node, task_vars["hostvars"][node] if node in groups["all"] else {})
    except FleetError as error:
        if error.code != "host-key.connection-without-key":
            raise
        return {"changed": False, "name": node, "path": None, "outdated": False, "keys": []}
    options = _options(ssh, host)
    name = options["hostname"] if options["port"] == "22" else "[%(hostname)s]:%(port)s" % options
    name = options.get("hostkeyalias", name)
    path, known = _known(options, name)
    return {"changed": False, "name": name, "path": path, "outdated": bool(known), "keys": []}


def _options(ssh, host):
    """Return {option: value} of ssh for a host. Raises FleetError."""
    done = _run([*ssh, "-G", "--", host])
    if done.returncode:
        raise FleetError("host-key.ssh-failed", ssh[0], done.stderr.strip() or "status %d" % done.returncode)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def _known(options, name):
    """Return (path of known_hosts or None, {fingerprints} of the keys that it contains for the name)."""
    path = options.get("userknownhostsfile", "").split(" ")[0]
    path = None if path in NONE else os.path.expanduser(path)
    if not path or not os.path.isfile(path):
        return path, set()
    lines = _run(["ssh-keygen", "-F", name, "-f", path]).stdout.splitlines()
    return path, {fingerprint(line) for line in lines if not line.startswith(("#", "@"))}


def _ssh(action, node, variables):
    """Return (host, [ssh and its arguments]) as Ansible's connection plugin uses them for the node.
    Raises FleetError."""
    kind = str(variables.get("ansible_connection", C.DEFAULT_TRANSPORT))
    if kind.rpartition(".")[2] not in ("ssh", "smart"):
        raise FleetError("host-key.connection-without-key", node, kind)
    connection = connection_loader.get("ssh", action._play_context)
    names = C.config.get_plugin_vars("connection", connection._load_name)
    try:
        connection.set_options(var_options={name: variables[name] for name in names if name in variables})
        option = connection.get_option
        # in Ansible's order: of several values ssh uses the first
        arguments = shlex.split(option("ssh_args") or "")
        for name, value in (("Port", option("port")), ("User", option("remote_user"))):
            arguments += ["-o", "%s=%s" % (name, value)] if value else []
        for name in ("ssh_common_args", "ssh_extra_args"):
            arguments += shlex.split(option(name) or "")
        return option("host") or node, [option("ssh_executable"), *arguments]
    except (AnsibleError, ValueError) as error:
        raise FleetError("host-key.connection-wrong", node, error) from error


def fetch(ssh, host, timeout):
    """Return ({option: value} of ssh for a host, {fingerprint: line of known_hosts} of the keys that the host
    presents).

    ssh itself writes the key into an empty file, after the host has proved that it owns the private key and before any
    login. ProxyJump, ProxyCommand, HostKeyAlias and ports are honoured. Raises FleetError.
    """
    options = _options(ssh, host)
    found, said = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        for number, algorithms in enumerate(ALGORITHMS):
            path = os.path.join(folder, str(number))  # ssh adds no key if the file contains a key of another type
            settings = {
                "HostKeyAlgorithms": algorithms, "UserKnownHostsFile": path, "GlobalKnownHostsFile": "/dev/null",
                "StrictHostKeyChecking": "accept-new", "HashKnownHosts": "no", "CheckHostIP": "no",
                "ControlMaster": "no", "ControlPath": "none", "RemoteCommand": "none", "ConnectTimeout": timeout,
                "BatchMode": "yes", "PreferredAuthentications": "none",
            }  # fmt: skip
            given = [word for setting in settings.items() for word in ("-o", "%s=%s" % setting)]
            done = _run([ssh[0], *given, *ssh[1:], "--", host, "exit"])
            said = said or done.stderr.strip()
            if os.path.exists(path):
                with open(path, encoding="utf-8") as stream:
                    found.update({fingerprint(line): line for line in stream.read().splitlines()})
    if not found:
        raise FleetError(
            "host-key.not-fetched",
            options.get("hostname", host),
            options.get("port"),
            (said or "ssh printed nothing").splitlines()[-1],
        )
    return options, found


def _run(command):
    try:
        return commands.run(command, limit_s=120, cwd=os.getcwd())
    except OSError as error:
        raise FleetError("host-key.ssh-failed", command[0], error) from error


def fingerprint(line):
    """Return the fingerprint of the key in a line of known_hosts, as OpenSSH prints it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[2])).digest()
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


def accepted(node, options, shown, accept):
    """Return {name, path, hashed, keys, outdated} of the accepted keys. Raises FleetError.

    accept: fingerprints; if empty, only keys that known_hosts already contains are accepted. outdated: whether
    known_hosts contains other keys of the host.
    """
    name = next(iter(shown.values())).split()[0]
    path, known = _known(options, name)
    right = {one: line for one, line in shown.items() if one in (accept or known)}
    keys = "\n".join("  %s (%s)" % (one, line.split()[1]) for one, line in shown.items())
    if not right and not accept:
        raise FleetError("host-key.fingerprint-missing", node, keys, replace_command(node, next(iter(shown))))
    if not right:
        raise FleetError("host-key.fingerprint-differs", node, keys, "\n".join("  " + one for one in sorted(accept)))
    return {
        "name": name,
        "path": path,
        "hashed": options.get("hashknownhosts") == "yes",
        "keys": list(right.values()) if path and accept else [],
        "outdated": bool(path and accept and known - set(shown)),
    }
