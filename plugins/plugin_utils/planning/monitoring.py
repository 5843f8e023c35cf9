# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Prometheus scrapes, from the plan and the inventory. No host is contacted."""

from __future__ import annotations

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.values import url_host
from ...module_utils.fleet_node.measure import result
from ..engines import ENGINES
from . import services
from .endpoint import ROLES, reachable_address
from .server_keys import is_loopback

NODE_EXPORTER = 9100  # port of Debian's package
ETCD_METRICS = 2381  # of the role's default
LIMITS = ("ttft_ms", "tpot_ms")


def targets(plans, variables_of, groups, monitor, accelerator_ports=None):
    """Return {job: [{targets: [ADDRESS:PORT], labels}]} for file_sd_configs, for the jobs engines, endpoint, etcd,
    services (for the blackbox exporter), nodes and accelerators.

    plans: [(servers, deployment)] of hosts. variables_of: {host: mapping of its variables}. groups: {group: hosts} of
    the inventory. monitor: the host of Prometheus. accelerator_ports: {platform: port of the exporter on its nodes}.
    Raises FleetError if a server listens on loopback of another host.
    """
    problems, found = [], {"engines": [], "endpoint": [], "etcd": [], "services": [], "nodes": [], "accelerators": []}

    def add(job, bind, port, name, host, **labels):
        try:
            address = reachable_address(bind, name, host, monitor, variables_of[host])
        except FleetError as error:
            return problems.append(error)
        target = "%s:%d" % (url_host(address), int(port))
        return found[job].append({"targets": [target], "labels": {"host": host, **labels}})

    for entries, deployment in plans:
        for entry in entries:
            port, path = entry["port"], ENGINES[entry["engine"]].metrics_path
            if entry["role"] not in ROLES or port is None:
                port, path = entry["ports"].get("system"), "/metrics"
            if port is None:
                continue  # a worker that is measured by its frontend
            add("engines", entry["bind"], port, entry["name"], entry["host"], server=entry["name"], role=entry["role"],
                model=entry["model_id"], engine=entry["engine"], recipe=deployment["name"],
                __metrics_path__=path)  # fmt: skip
        port = deployment and (accelerator_ports or {}).get(deployment["platform"])
        if port and entries:
            add("accelerators", "0.0.0.0", port, "the exporter", entries[0]["host"], platform=deployment["platform"])
    for host in groups.get("endpoint") or ():
        given = variables_of[host]
        address = given.get("endpoint_metrics_address") or "127.0.0.1"
        add("endpoint", address, given.get("endpoint_metrics_port") or 8405, "endpoint_metrics_address", host)
        if given.get("endpoint_certificate"):
            address, port = given.get("endpoint_address") or "0.0.0.0", given.get("endpoint_port") or 8080
            add("services", address, port, "the endpoint", host, service="endpoint", module="tls")
    hosts = [entry["host"] for entries, _deployment in plans for entry in entries]
    hosts += [host for name in ("endpoint", "monitoring") for host in groups.get(name) or ()]
    for service in ("etcd", "nats"):
        group = list(groups.get(variables_of[monitor].get(service + "_group") or service) or ())
        hosts += group
        tls = bool(group) and services.has_tls(service, group, variables_of[group[0]])
        for one in services.members(group, variables_of, service + "_name", loopback=not tls):
            if not is_loopback(one["address"]) or one["host"] == monitor:  # only its own host reaches loopback
                _member(add, service, one, tls, variables_of[one["host"]])
    for host in dict.fromkeys(hosts):
        add("nodes", "0.0.0.0", NODE_EXPORTER, "node exporter", host)
    if problems:
        raise FleetError.together(problems)
    return found


def _member(add, service, member, tls, variables):
    """Add the targets of a member: etcd's metrics; the client port, which answers with TLS or with NATS's greeting."""
    bind, host = member["address"], member["host"]
    if service == "etcd":
        add("etcd", bind, variables.get("etcd_metrics_port") or ETCD_METRICS, "etcd", host)
        if tls:
            add("services", bind, variables.get("etcd_client_port") or 2379, "etcd", host, service="etcd", module="tls")
    else:
        port, module = variables.get("nats_client_port") or 4222, "nats_tls" if tls else "nats"
        add("services", bind, port, "NATS", host, service="nats", module=module)


def limits(reports_dir):
    """Return {recipe: {ttft_ms, tpot_ms}}: the limits of the last good benchmark of each recipe that has limits.

    reports_dir: folder of the reports, which may not exist.
    """
    found = {}
    for document in result.history(reports_dir)[0]:
        if document["kind"] == "benchmark" and document.get("ok") and document.get("limits"):
            given = document["limits"]
            found[document["recipe"]] = {name: given[name] for name in LIMITS if given.get(name) is not None}
    return found
