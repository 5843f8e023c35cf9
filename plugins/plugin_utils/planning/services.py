# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dependencies of a host on others: addresses of services, for the placeholder ${SERVICE} of each of the recipe's
services, and the workers of a deployment on all its hosts.

A second pass over the declarations of the inventory; no node is accessed.
"""

from __future__ import annotations

import typing
import zlib

from ...module_utils.fleet_node.host.redact import strings
from ...module_utils.fleet_node.host.values import url_host
from ...module_utils.fleet_node.shared_services.service import check_members
from ...module_utils.fleet_node.verify.probes import ROLES
from ..base.checks import PLACEHOLDER, address_of, invalid
from ..base.words import is_true
from ..recipe.overrides import group_name
from .hardware import assign, ports_of, server_names
from .inventory import PROVIDED, cluster_of
from .plan import for_group

LOOPBACK = "127.0.0.1"


class Service(typing.NamedTuple):
    """A service as declared in the inventory: hosts; (address, port) of each; the scheme of its addresses, "" if it is
    not known; whether it accepts only TLS; whether a role makes the certificates of its clients."""

    hosts: list
    addresses: list
    scheme: str = ""
    tls: bool = False
    signs: bool = False


def members(hosts, variables_of, name_key, loopback=False):
    """Return [{host, name, address}] of the members of a service, in the order of the group.

    variables_of: {host: mapping of its variables}. name_key: the variable with a member's name; by default the host's.
    loopback: a single member listens on loopback.
    """
    alone = {hosts[0]: LOOPBACK} if loopback and len(hosts) == 1 else {}
    return [
        {"host": host, "name": str(own.get(name_key) or host), "address": alone.get(host) or address_of(host, own)}
        for host, own in ((host, variables_of[host]) for host in hosts)
    ]


def has_tls(name, hosts, variables):
    """Return whether the members of etcd or nats use TLS: NAME_tls in a member's variables, else if there are several.
    hosts: the members."""
    given = variables.get(name + "_tls")
    return len(hosts) > 1 if given is None else is_true(given)


def endpoints(host, recipe, named, takes_one):
    """Return [(placeholder, value)] of the services that a recipe names.

    named: of named_services(). takes_one(name, tls) -> whether the engine accepts only one address of a service: the
    address of this host, or of a member that is chosen by the host's name.
    """
    found = []
    for name, service in named.items():
        addresses = service.addresses
        if takes_one(name, service.tls):
            turn = service.hosts.index(host) if host in service.hosts else zlib.crc32(host.encode()) % len(addresses)
            addresses = [addresses[turn]]
        written = (recipe["services"][name].get("endpoint") or "{address}:{port}").replace("{scheme}", service.scheme)
        places = [written.replace("{address}", url_host(one)).replace("{port}", str(port)) for one, port in addresses]
        found.append((name, ",".join(places)))
    return found


def named_services(host, recipe, variables_of):
    """Return {name: Service} of the services in the recipe's strings. Hosts of other services are not read.
    Raises FleetError.

    variables_of(host) -> HostVariables; `groups` among them is {group: [hosts]} of the inventory.
    """
    named = {match.group(1) for string in strings(recipe) for match in PLACEHOLDER.finditer(string)}
    return {
        name: _service(host, name, service, variables_of)
        for name, service in sorted((recipe.get("services") or {}).items())
        if service and name in named
    }


def _service(host, name, service, variables_of):
    group = service.get("group") or name
    hosts = list((variables_of(host).get("groups") or {}).get(group) or ())
    if not hosts:
        raise invalid("the group '%s' of services.%s" % (group, name), [], "a group with hosts (services.NAME.group)")
    port, first = service["port"], variables_of(hosts[0])
    if name not in PROVIDED or group != (first.get(name + "_group") or name):
        return Service(hosts, [(address_of(one, variables_of(one)), port) for one in hosts])
    port = first.get(name + "_client_port") or port
    tls = has_tls(name, hosts, first)
    scheme = PROVIDED[name][tls]
    if not tls and len(hosts) == 1:
        if hosts != [host]:
            allowed = "true; or three hosts, since '%s' alone listens on %s" % (hosts[0], LOOPBACK)
            raise invalid("%s_tls of the group '%s'" % (name, group), False, allowed)
        return Service(hosts, [(LOOPBACK, port)], scheme)
    found = members(hosts, {one: variables_of(one) for one in hosts}, name + "_name")
    check_members(name, found)
    addresses = [(one["address"], port) for one in found]
    return Service(hosts, addresses, scheme, tls, tls and not first.get(name + "_certificates"))


def clients(entries, signed, paths):
    """Return [{name, folder, owner, members, endpoints}] of the services whose client
    certificates a host's servers read.

    signed: {name: Service} of the services whose certificates this collection makes. paths: NodePaths. folder: of the
    certificate on the host; owner: the account of its servers, null for the deploying account; members: hosts that can
    sign it; endpoints: "address:port" of the service.
    """
    read = {path for entry in entries for path in [*entry["secrets"].values(), *entry["environment"].values()]}
    return [
        {
            "name": name,
            "folder": paths.client_tls(name),
            "owner": entries[0]["user"],
            "members": one.hosts,
            "endpoints": ["%s:%s" % (url_host(address), port) for address, port in one.addresses],
        }
        for name, one in sorted(signed.items())
        if any(path.startswith(paths.client_tls(name) + "/") for path in read)
    ]


def cluster_workers(host, others, planned_of):
    """Return [{host, name, role, bind, ports}] of the workers of the hosts with the fleet_cluster of `host`. It is
    computed once for a cluster, from the variables of all its hosts.

    others: Hosts. planned_of(host) -> (recipe, Hardware) of a host, None for a host without
    a recipe.
    """
    cluster = cluster_of(others(host))
    hosts = (others(host).get("groups") or {}).get("all", [host])
    hosts = [other for other in hosts if cluster_of(others(other)) == cluster]
    if ("cluster", cluster) in others.made:
        return others.made["cluster", cluster]
    workers = []
    for other in hosts:
        planned = planned_of(other)
        if planned is None:
            continue
        recipe, hardware = planned
        kept = assign(recipe, hardware, server_names(recipe, hardware))
        bind = str(others(other).get("fleet_bind_address") or LOOPBACK)
        for group in recipe["servers"]:
            own = for_group(recipe, group)
            for name in kept[group_name(group)] if group["role"] in ROLES else ():
                ports = ports_of(own, group, name)
                workers.append({"host": other, "name": name, "role": group["role"], "bind": bind, "ports": ports})
    others.made["cluster", cluster] = workers
    return workers
