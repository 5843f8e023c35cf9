# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an inventory is to this collection: which hosts it deploys on, and which of them are one machine."""

from __future__ import annotations

from ansible import context
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show, some

# Services that a role of the same name provides: the schemes of their addresses without and with TLS. A host that is
# alone listens on loopback without TLS, several with it, unless the variable NAME_tls says otherwise.
PROVIDED = {"etcd": ("http", "https"), "nats": ("nats", "tls")}


def inference_hosts(hosts, others, deployed=False):
    """Those of ``hosts`` that have fleet_recipe. others: Hosts. deployed: also those that have fleet_hardware alone;
    servers of an earlier plan may run there."""
    given = map(others, hosts)
    return [one.host for one in given if (deployed and "fleet_hardware" in one.names) or one.has_recipe]


def no_recipe():
    """The FleetError of an inventory without an inference host."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes

    return FleetError(
        "inventory.no-recipe",
        "no host has the variable fleet_recipe, so there is nothing to deploy; allowed: %s. Set it in the inventory, "
        "for example in group_vars/all.yml.",
        (", ".join(recipes.available([recipes.OWN_RECIPES])),),
    )


def no_host(sources):
    """The FleetError of an inventory without any host."""
    return FleetError(
        "inventory.no-host",
        "the inventory has no host (%s), so there is nothing to do. Name an inventory with hosts: -i inventories/NAME.",
        (", ".join(show(str(source)) for source in sources) or "none was given with -i",),
    )


def check_limit(ours, play_hosts, variables):
    """FleetError where --limit leaves no host that this collection does anything on.

    ours: inference hosts. play_hosts: what --limit leaves of the inventory. variables: what ansible gives a task.
    """
    names = (variables.get(name + "_group", name) for name in PROVIDED)
    served = {host for name in names for host in variables["groups"].get(name, ())}
    if not set(play_hosts) & {*ours, *served}:
        raise FleetError(
            "inventory.limit-leaves-nobody",
            "--limit leaves no host that has fleet_recipe (of %s); allowed: one of %s. Change the limit.",
            (some(list(play_hosts)) or "none", some(list(ours))),
        )


def address_given():
    """Whether the command line gives ansible_host, every host's then."""
    return any("ansible_host" in str(given) for given in context.CLIARGS.get("extra_vars") or ())


def one_machine(planned, others):
    """(message, two hosts) for names of one machine whose servers would be in each other's way.

    One machine is one address, port and kind of connection that Ansible takes to it. others: Hosts.
    """
    if address_given():
        return  # an address of the command line is every host's, and says nothing about the inventory
    machines = {}
    for host, item in planned.items():
        if not item["servers"] or len(planned) < 2:
            continue
        variables = others(host)
        try:
            kind = variables.peek("ansible_connection") or "ssh"
            address = "localhost" if kind == "local" else variables.peek("ansible_host") or host
            port, root = variables.peek("ansible_port"), variables.peek("fleet_root") or ""
        except FleetError:
            continue  # whoever connects to it says what is wrong
        for other, other_root in machines.setdefault((str(kind), str(address), str(port)), []):
            if root == other_root:
                yield (
                    "both are one machine (%s), with one fleet_root (%s), so each would remove the other's servers; "
                    "allowed: one name for it, or a fleet_root for each. Remove one of the names." % (
                        "ansible_connection local" if kind == "local" else "ansible_host %s" % address, show(root))
                ), (other, host)  # fmt: skip
            else:
                taken = set(_listening(planned[other]["servers"])) & set(_listening(item["servers"]))
                for port_number in sorted(taken):
                    yield (
                        "both are one machine (%s), and both have a server on port %d; allowed: a port once. Set "
                        "another servers.NAME.port in fleet_override of one, or remove one of the names." % (
                            "ansible_connection local" if kind == "local" else "ansible_host %s" % address, port_number)
                    ), (other, host)  # fmt: skip
        machines[(str(kind), str(address), str(port))].append((host, root))


def _listening(entries):
    return [port for entry in entries for port in [entry["port"], *entry["ports"].values()] if port]
