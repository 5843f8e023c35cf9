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
            "host-key.connection-has-none",
            "fleet_node %s is reached by the connection '%s', which has no host key. There is nothing to "
            "replace: run "
            "site.yml --limit %s.",
            (node, kind, node),
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
            "host-key.connection-wrong", "The connection variables of %s are wrong: %s", (node, error)
        ) from error


def check_node(node, groups, ours, play_hosts):
    """The name of the one node that is meant. Raises FleetError that says which there are.

    ours: the inference hosts. play_hosts: what --limit leaves of the inventory.
    """
    inventory, ours = sorted(groups["all"]), sorted(ours)
    some = ", ".join(ours[:10]) + (" and %d more" % (len(ours) - 10) if len(ours) > 10 else "")
    if node is None or node == "":
        raise FleetError(
            "host-key.node-missing",
            "fleet_node is missing: say which node was replaced, -e fleet_node=NAME. There are: %s.",
            (some,),
        )
    if not isinstance(node, str):
        raise FleetError(
            "host-key.node-not-a-name", "fleet_node is %r; allowed: the name of one node. There are: %s.", (node, some)
        )
    if node in inventory:
        if node not in ours:
            raise FleetError(
                "host-key.node-not-planned",
                "fleet_node '%s' has no fleet_recipe, so no servers are planned for it. There are: %s.",
                (node, some),
            )
        if node not in play_hosts:
            raise FleetError(
                "host-key.node-excluded-by-limit",
                "fleet_node '%s' is left out by --limit; fleet_node is limit enough.",
                (node,),
            )
        return node
    if node in groups:
        raise FleetError(
            "host-key.node-is-a-group",
            "fleet_node '%s' is a group; one node after another is replaced. Its nodes: %s.",
            (node, ", ".join(sorted(groups[node])) or "none"),
        )
    if any(sign in node for sign in ",:*?[!&~") and any(host in node for host in inventory):
        raise FleetError(
            "host-key.node-is-several",
            "fleet_node '%s' names several; one node after another is replaced. There are: %s.",
            (node, some),
        )
    close = difflib.get_close_matches(node, ours, 1)
    raise FleetError(
        "host-key.node-unknown",
        "fleet_node '%s' is not in the inventory%s There are: %s.",
        (node, "; did you mean '%s'?" % close[0] if close else ".", some),
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
            "No fingerprint of the new host key of %s was given. It shows:\n%s\nCompare with what the node itself "
            "says, on its "
            "console: `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`. Where they are equal, type:\n  %s\nNothing "
            "was "
            "changed.",
            (where, shown, replace_command(node, keys[0].fingerprint)),
        )
    if not right:
        raise FleetError(
            "host-key.fingerprint-differs",
            "The host key of %s is not the one that was expected. It shows:\n%s\nfleet_host_key has:\n%s\nEither "
            "that is of "
            "another node or of before it was replaced, or somebody is between here and the node. Nothing was changed.",
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
