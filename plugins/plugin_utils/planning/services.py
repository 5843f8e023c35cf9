# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host needs of others: addresses of services, and how many servers a deployment has over its hosts.

A second pass over what the inventory declares; no node is asked. Placeholders: ${SERVICE} for each of the recipe's
services, and ${total_GROUP}, the number of servers of a group over all hosts with the same fleet_cluster.
"""

from __future__ import annotations

import re
import typing
import zlib

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify.workers import ROLES
from ansible_collections.inference.fleet.plugins.plugin_utils.base.addresses import address_of
from ansible_collections.inference.fleet.plugins.plugin_utils.base.placeholders import PLACEHOLDER, strings
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import TRUE
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import (
    assign,
    group_counts,
    server_names,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import PROVIDED
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import group_name

LOOPBACK = "127.0.0.1"
TOTAL = re.compile(r"total_(.+)")
CLUSTER, BIND = "fleet_cluster", "fleet_bind_address"


class Service(typing.NamedTuple):
    """A service as the inventory declares it: hosts; (address, port) of each; the scheme of its addresses, "" where
    none is known; whether it takes TLS alone; whether a role makes the certificates of its clients."""

    hosts: list
    addresses: list
    scheme: str = ""
    tls: bool = False
    signs: bool = False


def members(hosts, variables_of, name_key, loopback=False):
    """[{host, name, address}] of the members of a service, in the order of the group.

    variables_of: {host: mapping of its variables}. name_key: the variable with a member's name; by default the host's.
    loopback: a single member listens on loopback.
    """
    found = []
    for host in hosts:
        variables = variables_of[host]
        address = LOOPBACK if loopback and len(hosts) == 1 else address_of(host, variables)
        found.append({"host": host, "name": str(variables.get(name_key) or host), "address": address})
    return found


def endpoints(host, recipe, groups, variables_of, planned_of, takes_one=lambda name, tls: False, made=None):
    """((placeholder, value), …) of what a recipe names of other hosts; hosts that nothing is asked of are not read.

    groups() -> {group: [hosts]} of the inventory. variables_of(host) -> fleet.HostVariables. planned_of(host) ->
    (recipe, Hardware) of a host, None for one without a recipe. takes_one(name, tls) -> whether the engine takes one
    address of a service: this host's own, or that of another one, which hosts take by turns. made: of Hosts. FleetError
    names a variable that is not known here.
    """
    found = []
    for name, service in named_services(host, recipe, groups, variables_of).items():
        addresses = service.addresses
        if takes_one(name, service.tls):
            turn = service.hosts.index(host) if host in service.hosts else zlib.crc32(host.encode()) % len(addresses)
            addresses = [addresses[turn]]
        written = recipe["services"][name].get("endpoint") or "{address}:{port}"
        found.append((name, ",".join(_written(written, service.scheme, *one) for one in addresses)))
    totals = sorted(name for name in _placeholders(recipe) if TOTAL.fullmatch(name))
    if totals:
        counts = _of_cluster("counts", _counts, host, groups, variables_of, planned_of, made)
        found += [(name, counts.get(name, 0)) for name in totals]
    return tuple(found)


def named_services(host, recipe, groups, variables_of):
    """{name: Service} of those that the recipe's strings name. Arguments: as endpoints()."""
    named = _placeholders(recipe)
    return {
        name: _service(host, name, service, groups(), variables_of)
        for name, service in sorted((recipe.get("services") or {}).items())
        if service and name in named
    }


def _placeholders(recipe):
    return {match.group(1) for string in strings(recipe) for match in PLACEHOLDER.finditer(string)} - {None}


def _service(host, name, service, groups, variables_of):
    group = service.get("group") or name
    hosts = list(groups.get(group) or ())
    if not hosts:
        raise FleetError(
            "plan.service-without-hosts",
            "services.%s is on the hosts of group '%s', which has none. Add one to the inventory, or set "
            "services.%s.group.",
            (name, group, name),
        )
    port, first = service["port"], variables_of(hosts[0])
    if name not in PROVIDED or group != (first.get(name + "_group") or name):
        return Service(hosts, [(address_of(one, variables_of(one)), port) for one in hosts])
    port = first.get(name + "_client_port") or port
    given = first.get(name + "_tls")
    tls = len(hosts) > 1 if given is None else str(given).strip().lower() in TRUE | {"1"}
    scheme = PROVIDED[name][tls]
    if not tls and len(hosts) == 1:
        if hosts != [host]:
            raise FleetError(
                "plan.service-on-loopback",
                "services.%s is on '%s' alone, where it listens on %s, which other hosts do not reach. Set %s_tls: "
                "true for the group '%s', or put three hosts into it.",
                (name, hosts[0], LOOPBACK, name, group),
            )
        return Service(hosts, [(LOOPBACK, port)], scheme)
    addresses = [(address_of(one, variables_of(one)), port) for one in hosts]
    return Service(hosts, addresses, scheme, tls, tls and not first.get(name + "_certificates"))


def _written(text, scheme, address, port):
    address = "[%s]" % address if ":" in address else address
    return text.replace("{scheme}", scheme).replace("{address}", address).replace("{port}", str(port))


def clients(entries, signed, paths):
    """[{name, folder, owner, members, endpoints}] of the services whose client certificates a host's servers read.

    signed: {name: Service} of those whose certificates are made here. paths: NodePaths. folder: where the host keeps
    its certificate; owner: the account of its servers, null for who deploys; members: hosts that can sign it;
    endpoints: "address:port" of the service.
    """
    read = {path for entry in entries for path in [*entry["secrets"].values(), *entry["environment"].values()]}
    return [
        {
            "name": name,
            "folder": paths.client_tls(name),
            "owner": entries[0]["user"],
            "members": one.hosts,
            "endpoints": [_written("{address}:{port}", "", *where) for where in one.addresses],
        }
        for name, one in sorted(signed.items())
        if any(path.startswith(paths.client_tls(name) + "/") for path in read)
    ]


def cluster_workers(host, groups, variables_of, planned_of, made=None):
    """[{host, name, role, bind, ports}] of the workers of all hosts of the fleet_cluster of `host`.

    Arguments: as endpoints().
    """
    return _of_cluster("workers", _workers, host, groups, variables_of, planned_of, made)


def elsewhere(workers, host):
    """Those that other hosts have: what a frontend of `host` must find beside its own."""
    return [one for one in workers if one["host"] != host]


def noted_workers(made, variables):
    """The list that cluster_workers() has made for a host's cluster, None where nothing asked for it."""
    return made.get(("workers", variables.get(CLUSTER)))


def _of_cluster(what, make, host, groups, variables_of, planned_of, made):
    """make() of a host's cluster; once for all its hosts, which are asked for nevertheless."""
    made, cluster = {} if made is None else made, variables_of(host).get(CLUSTER)
    hosts = groups().get("all", [host])
    if not cluster:
        return make(host, variables_of, hosts, planned_of)
    if (what, cluster) not in made:
        made[what, cluster] = make(host, variables_of, hosts, planned_of)
    for other in hosts:
        variables_of(other)
    return made[what, cluster]


def _workers(host, variables_of, hosts, planned_of):
    found = []
    for other, (recipe, hardware) in _cluster(host, variables_of, hosts, planned_of):
        names = server_names(recipe, group_counts(recipe, hardware))
        kept = assign(recipe, hardware, names)
        bind = str(variables_of(other).get(BIND) or "127.0.0.1")
        for group in recipe["servers"]:
            for index, name in enumerate(names[group_name(group)]):
                if group["role"] in ROLES and name in kept:
                    ports = {kind: port + index for kind, port in group.get("ports", {}).items() if port is not None}
                    found.append({"host": other, "name": name, "role": group["role"], "bind": bind, "ports": ports})
    return found


def _cluster(host, variables_of, hosts, planned_of):
    """(host, planned_of() of it) of each host of one cluster with a recipe; of the host alone where it is in none."""
    cluster = variables_of(host).get(CLUSTER)
    for other in hosts if cluster else [host]:
        if other != host and variables_of(other).get(CLUSTER) != cluster:
            continue
        planned = planned_of(other)
        if planned is not None:
            yield other, planned


def _counts(host, variables_of, hosts, planned_of):
    """{"total_GROUP": number of servers} over the hosts of one cluster; of the host alone where it is in none."""
    counts = {}
    for _other, (recipe, hardware) in _cluster(host, variables_of, hosts, planned_of):
        names = server_names(recipe, group_counts(recipe, hardware))
        kept = assign(recipe, hardware, names)
        for group in recipe["servers"]:
            key = "total_" + group_name(group)
            counts[key] = counts.get(key, 0) + sum(name in kept for name in names[group_name(group)])
    return counts
