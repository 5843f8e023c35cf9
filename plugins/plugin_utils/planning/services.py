# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host needs of others: addresses of services, and how many servers a deployment has over its hosts.

A second pass over what the inventory declares; no node is asked. Placeholders: ${SERVICE} for each of the recipe's
services, and ${total_GROUP}, the number of servers of a group over all hosts with the same fleet_cluster.
"""

from __future__ import annotations

import re

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.verify.workers import ROLES
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.devices import assign, group_counts, server_names
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.placeholders import PLACEHOLDER, strings
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import group_name

TOTAL = re.compile(r"total_(.+)")
ADDRESS, HOST, CLUSTER, BIND = "fleet_address", "ansible_host", "fleet_cluster", "fleet_bind_address"


def endpoints(host, recipe, groups, variables_of, planned_of):
    """((placeholder, value), …) of what a recipe names of other hosts; hosts that nothing is asked of are not read.

    groups() -> {group: [hosts]} of the inventory. variables_of(host) -> fleet.HostVariables. planned_of(host) ->
    (recipe, Hardware) of a host, None for one without a recipe. FleetError names a variable that is not known here.
    """
    named = {match.group(1) for string in strings(recipe) for match in PLACEHOLDER.finditer(string)}
    found = [
        (name, ",".join(_service(name, service, groups(), variables_of)))
        for name, service in sorted((recipe.get("services") or {}).items())
        if name in named
    ]
    totals = sorted(name for name in named if name and TOTAL.fullmatch(name))
    if totals:
        counts = _counts(host, variables_of, groups().get("all", [host]), planned_of)
        found += [(name, counts.get(name, 0)) for name in totals]
    return tuple(found)


def _service(name, service, groups, variables_of):
    group = service.get("group") or name
    if not groups.get(group):
        raise FleetError(
            "plan.service-without-hosts",
            "services.%s is on the hosts of group '%s', which has none. Add one to the inventory, or set "
            "services.%s.group.",
            (name, group, name),
        )
    for host in groups[group]:
        address = address_of(host, variables_of(host))
        address = "[%s]" % address if ":" in address else address
        written = service.get("endpoint") or "{address}:{port}"
        yield written.replace("{address}", address).replace("{port}", str(service["port"]))


def address_of(host, variables):
    """The declared address of a host. FleetError names the variable that would need facts."""
    for name in (ADDRESS, HOST):
        value = variables.get(name)
        if value:
            return str(value)
    return host


def workers_elsewhere(host, groups, variables_of, planned_of):
    """[{host, name, role, bind, ports}] of the workers that other hosts of the same fleet_cluster have.

    What a frontend of `host` must find beside its own. Arguments: as endpoints().
    """
    found = []
    for other, (recipe, hardware) in _cluster(host, variables_of, groups().get("all", [host]), planned_of):
        if other == host:
            continue
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
