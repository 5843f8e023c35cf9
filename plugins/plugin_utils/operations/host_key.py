# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replaces a node's host key in the user's known_hosts by the one it has now, if that is one of those accepted."""

from __future__ import annotations

import difflib
import shlex

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.plugins.loader import connection_loader
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.connection import host_keys, known_hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts, inference_hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.unreachable import replace_command


def host_key(action, arguments, task_vars):
    """Returns {changed, diff, msg, keys}: known_hosts of the control node has the accepted host key of a replaced node.

    Nothing runs on the node. arguments: {node, accept, timeout}. Raises FleetError.
    """
    ours = inference_hosts(task_vars["groups"]["all"], Hosts.of_task(task_vars))
    node = check_node(arguments.get("node"), task_vars["groups"], ours, task_vars["ansible_play_hosts_all"])
    variables = task_vars["hostvars"][node]
    accepted = known_hosts.accepted_fingerprints(arguments.get("accept", variables.get("fleet_host_key")))
    target = host_keys.ssh_target(*_ssh(action, node, variables))
    keys = host_keys.fetch(target, int(arguments.get("timeout", 15)))
    return exchange(node, target, keys, accepted, action._task.check_mode)


def _ssh(action, node, variables):
    """(host, arguments, program) as Ansible's connection plugin has them for the node. Raises FleetError."""
    kind = str(variables.get("ansible_connection", C.DEFAULT_TRANSPORT))
    if kind.rpartition(".")[2] not in ("ssh", "smart"):
        raise FleetError(
            "host-key.connection",
            "%s has no host key to fetch: %s. Set its connection variables for ssh, or run site.yml --limit %s.",
            (node, "its connection is %s" % kind, node),
        )
    connection = connection_loader.get("ssh", action._play_context)
    names = C.config.get_plugin_vars("connection", connection._load_name)
    try:
        connection.set_options(var_options={name: variables[name] for name in names if name in variables})
        option = connection.get_option
        # in the order in which Ansible gives them: of several values ssh takes the first
        arguments = shlex.split(option("ssh_args") or "")
        for name, value in (("Port", option("port")), ("User", option("remote_user"))):
            arguments += ["-o", "%s=%s" % (name, value)] if value else []
        for name in ("ssh_common_args", "ssh_extra_args"):
            arguments += shlex.split(option(name) or "")
        return option("host") or node, arguments, option("ssh_executable")
    except (AnsibleError, ValueError) as error:
        raise FleetError(
            "host-key.connection",
            "%s has no host key to fetch: %s. Set its connection variables for ssh, or run site.yml --limit %s.",
            (node, error, node),
        ) from error


def check_node(node, groups, ours, play_hosts):
    """The name of the one node that was replaced. Raises FleetError if it is not such a node.

    ours: the inference hosts. play_hosts: the hosts of the inventory that --limit leaves.
    """
    if not isinstance(node, str) or not node:
        reason = "it is not the name of a node"
    elif node in ours and node in play_hosts:
        return node
    elif node in ours:
        reason = "--limit excludes it"
    elif node in groups["all"]:
        reason = "it has no fleet_recipe"
    elif node in groups:
        reason = "it is a group"
    else:
        close = difflib.get_close_matches(node, ours, 1)
        reason = "it is not in the inventory" + ("; did you mean '%s'?" % close[0] if close else "")
    names = sorted(ours)
    some = ", ".join(names[:10]) + (" and %d more" % (len(names) - 10) if len(names) > 10 else "")
    raise FleetError(
        "host-key.node-invalid",
        "fleet_node is %r: %s. Inference hosts: %s. Name one replaced node with -e fleet_node=NAME.",
        (node, reason.rstrip("?"), some),
    )


def exchange(node, target, keys, accepted, check=False):
    """Bring known_hosts to the keys that the node shows, as far as they are accepted: {changed, diff, msg, keys}.

    Without `accepted` a key that known_hosts has already is good. Raises FleetError; then no file was changed.
    """
    right = [key for key in keys if key.fingerprint in accepted]
    shown = "\n".join("  %s (%s)" % (key.fingerprint, key.type) for key in keys)
    where = "%s, at %s port %d" % (node, target.host, target.port)
    if not accepted:
        known = set().union(*(known_hosts.known_keys(path, target.names[:1]) for path in target.files))
        if known & {key.fingerprint for key in keys}:
            return _result(keys, "The host key of %s is the one in known_hosts." % node)
        raise FleetError(
            "host-key.fingerprint-missing",
            "The host key of %s is new, and no fingerprint was given. The node shows:\n%s\nNothing was changed. "
            "Compare with the output of `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the console of the node. "
            "If they are equal, run:\n  %s",
            (where, shown, replace_command(node, keys[0].fingerprint)),
        )
    if not right:
        raise FleetError(
            "host-key.fingerprint-differs",
            "The host key of %s is not the expected key. The node shows:\n%s\nfleet_host_key has:\n%s\nNothing was "
            "changed. Check on the console of the node whether fleet_host_key is from another or the former node; if "
            "not, somebody is between here and the node.",
            (where, shown, "\n".join("  " + one for one in accepted)),
        )
    if not target.files:
        return _result(keys, "The host key of %s is right; ssh keeps no known_hosts file for it." % node)
    gone, new = [], []
    for position, path in enumerate(target.files):
        # the new key first: whatever happens after that, ssh finds it
        more = known_hosts.replace(path, target.names, right, target.hashed, right if position == 0 else (), check)
        gone, new = gone + more[0], new + more[1]
    if not gone and not new:
        return _result(keys, "The host key of %s is right and in %s already." % (node, target.files[0]))
    text = "The host key of %s %s replaced in %s." % (node, "would be" if check else "is", target.files[0])
    return _result(keys, text, gone, new)


def _result(keys, text, gone=(), new=()):
    return {
        "changed": bool(gone or new),
        "msg": text,
        "keys": [{"type": key.type, "fingerprint": key.fingerprint} for key in keys],
        "diff": {"before": "".join(line + "\n" for line in gone), "after": "".join(line + "\n" for line in new)},
    }
