# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planned servers as backends of a proxy, checks of the proxy's settings, and what a Prometheus scrapes. No host is
contacted."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import re
import zlib

from ansible.module_utils.parsing.convert_bool import boolean

from ...module_utils.fleet_node.engines.registry import API_KEYS, engine_of
from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.server_spec import answers, server_ports
from ...module_utils.fleet_node.host.values import url_host
from ...module_utils.fleet_node.measure import result as history
from ...module_utils.fleet_node.servers.api_keys import api_keys
from ..base.checks import Mistakes, address_of, check_number, invalid, taken_twice
from ..engines import ENGINES
from ..engines.base import SERVED
from ..models import family_of
from . import services
from .server_values import is_loopback
from .variables import LIMITS, table

LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # addresses of servers that listen on all addresses of this host
OTHER = re.compile(r"[^A-Za-z0-9_.-]")
NAME = re.compile(r"[!-~]+")  # a model's name in a map file of HAProxy
NAME_WORDS = "a name of ASCII characters without spaces"


def backends(plans, variables_of, endpoint=None, alias="", ports=()):
    """Return [{name, model, servers: [{name, host, server, address, port, netloc, metrics_path, family, disabled,
    track, secret}]}]: a backend for each model id, then for each LoRA adapter, then for the alias.

    plans: [(servers, deployment)] of hosts. variables_of: {host: mapping of its variables}. endpoint: the host of the
    proxy, None for a proxy that this collection does not manage; ports: that it listens on. alias: name that all
    servers accept, "" for none. disabled: the host is in maintenance. track: the server of an adapter or the alias is
    checked in this backend. secret: name of the variable with the server's API key, None for none. Raises FleetError.
    """
    models, adapters, weights, problems = {}, {}, {}, Mistakes()
    if alias and not NAME.fullmatch(alias):
        problems.keep(invalid("endpoint_alias", alias, NAME_WORDS))
    for entry, deployment in ((entry, deployment) for entries, deployment in plans for entry in entries):
        model, where = entry["model_id"], (entry["name"], entry["host"])
        if entry["host"] == endpoint:
            for port in sorted({port for port, _kind in server_ports(entry)} & set(ports)):
                problems.add("endpoint.port-taken", port, *where)
        if not answers(entry):
            continue
        if alias and not _accepts(entry, alias):
            problems.add("endpoint.alias-unknown", alias, *where, model, SERVED)
        if not NAME.fullmatch(model):
            problems.keep(invalid("the model of %s on %s" % where, model, NAME_WORDS))
        server = problems.result_of(_server, entry, endpoint, variables_of[entry["host"]])
        models.setdefault(model, []).append(server)
        weights.setdefault(_weights(entry, deployment), where)
        for name in (engine_of(entry).adapter_model(entry, one) for one in entry.get("adapters", ())):
            adapters.setdefault(name, []).append((model, server))
    if not models:
        problems.add("endpoint.no-server")
    if alias and len(weights) > 1:
        first, second, *_others = weights.values()
        problems.add("endpoint.alias-models", alias, *first, *second)
    for name, servers in adapters.items():
        if name in (*models, alias) or len({model for model, _one in servers}) > 1:
            other = "the endpoint's alias" if name == alias else "another model or its adapter"
            problems.keep(taken_twice("model.adapters", "the name %s" % name, other))
    problems.raise_any()
    names = {}
    for model in models:
        suffix = _digest(model) if _plain(model) in map(_plain, names) else ""
        names[model] = "model.%s%s" % (_plain(model), suffix)
    result = [(names[model], model, servers) for model, servers in models.items()]
    if alias and list(models) != [alias]:
        adapters[alias] = [(model, server) for model, servers in models.items() for server in servers]
    for name, servers in adapters.items():
        suffix = "" if name == alias else _digest(name)
        tracked = [{**one, "track": names[model]} for model, one in servers]
        result.append(("alias.%s%s" % (_plain(name), suffix), name, tracked))
    return [{"name": name, "model": model, "servers": servers} for name, model, servers in result]


def _server(entry, endpoint, variables):
    """Return a server of backends(). Raises FleetError if the proxy does not reach it."""
    address = reachable_address(entry["bind"], entry["name"], entry["host"], endpoint, variables)
    return {
        "name": _plain("%s.%s" % (entry["host"], entry["name"])),
        "host": entry["host"],
        "server": entry["name"],
        "address": address,
        "port": entry["port"],
        "netloc": "%s:%d" % (url_host(address), entry["port"]),
        "metrics_path": ENGINES[entry["engine"]].metrics_path,
        "family": entry.get("family"),
        "disabled": boolean(variables.get("fleet_maintenance", False), strict=False),
        "secret": next((entry["secrets"][name] for name in API_KEYS if name in entry["secrets"]), None),
        "track": None,
    }


def _digest(name):
    return "-%08x" % zlib.crc32(name.encode())


def _plain(model):
    return OTHER.sub("_", model)


def reachable_address(bind, name, host, client, variables, variable="fleet_bind_address"):
    """Return the address at which a host reaches `name` on `host`, which listens on `bind`, the value of `variable`.
    client: the host that connects, None for any other. Raises FleetError for an address that is loopback of another
    host."""
    if host == client:
        return LOCAL.get(bind, bind)
    if is_loopback(bind):
        raise FleetError("endpoint.loopback-server", name, host, bind, variable)
    return address_of(host, variables) if bind in LOCAL else bind


def _accepts(entry, alias):
    """Return whether a server accepts requests for the model `alias`."""
    names = entry["arguments"].get(SERVED)
    names = names if isinstance(names, list) else [names]
    return ENGINES[entry["engine"]].any_model_name or alias in (entry["model_id"], *names)


def _weights(entry, deployment):
    """Return a value that is equal for servers with the same model: its dimensions, or the repository of an unknown
    model."""
    models = [model for model in deployment.get("models", ()) if model["path"] in entry["weights"]]
    model = (models or [deployment["model"]])[0]
    return family_of(deployment).models.get(model["repo"], model["repo"])


def server_keys(groups, variables_of):
    """Return {name of the backend: API key of its servers} of backends(), without those whose servers have no key.

    variables_of: as backends(). Raises FleetError if servers of a backend have different keys.
    """
    found = {}
    for group in groups:
        keys = {}
        for one in group["servers"]:
            given = api_keys(variables_of[one["host"]].get(one["secret"]), one["secret"]) if one["secret"] else []
            keys.setdefault(given[0] if given else "", one)
        if len(keys) > 1:
            places = [one[key] for one in list(keys.values())[:2] for key in ("server", "host")]
            raise FleetError("endpoint.server-keys", group["model"], *places)
        found[group["name"]] = next(iter(keys))
    return {name: key for name, key in found.items() if key}


def key_names(keys):
    """Return {SHA-256 of a key in hexadecimal digits: name} of {name: key or list of keys}. Raises FleetError, which
    never shows a key."""
    found = {}
    for name, given in (keys or {}).items():
        kind = table()["kinds"]["name"]
        if not isinstance(name, str) or not re.fullmatch(kind["pattern"], name):
            raise invalid("a name in endpoint_keys", name, kind["words"])
        for key in api_keys(given, "endpoint_keys.%s" % name):
            digest = hashlib.sha256(key.encode()).hexdigest()
            if digest in found:
                raise FleetError("endpoint.key-twice", found[digest], name)
            found[digest] = name
    return found


def check_access(keys, address, limits=None):
    """Raise FleetError if a proxy that other hosts reach has no keys, or for a limit without a key or number; else
    return True.

    keys: of key_names(); address: of the proxy's port; limits: {name of a key: requests per minute}, None for none.
    """
    for name, limit in (limits or {}).items():
        if name not in keys.values():
            raise invalid("a name in endpoint_rate_limits", name, "a name in endpoint_keys")
        check_number("endpoint_rate_limits.%s" % name, limit, 1000000, low=0)
    if not keys and not is_loopback(address):
        raise FleetError("endpoint.no-keys", address)
    return True


def certificate(chain, key):
    """Return the PEM file of a proxy from the contents of a certificate chain and its private key; "" without both.

    Raises FleetError if they cannot be used together now.
    """
    if not chain and not key:
        return ""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    public = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    why = "are not a certificate and its private key in PEM format without a passphrase"
    if not (chain and key):
        raise FleetError("endpoint.certificate-invalid", "are not both set")
    with contextlib.suppress(ValueError, TypeError):
        first = x509.load_pem_x509_certificate(chain.encode())
        private = serialization.load_pem_private_key(key.encode(), None)
        begins, ends = (
            # cryptography 42 has the first
            getattr(first, name + "_utc", None) or getattr(first, name).replace(tzinfo=datetime.timezone.utc)
            for name in ("not_valid_before", "not_valid_after")
        )
        if first.public_key().public_bytes(*public) == private.public_key().public_bytes(*public):
            why = "are valid from %s to %s" % tuple(f"{one:%Y-%m-%d %H:%M UTC}" for one in (begins, ends))
            if begins <= datetime.datetime.now(datetime.timezone.utc) < ends:
                return "%s\n%s\n" % (chain.strip(), key.strip())
    raise FleetError("endpoint.certificate-invalid", why)


def hosts(members, limited):
    """Return the hosts of the group that are in this run. limited: hosts of the run. Raises FleetError if none is."""
    found = [host for host in members if host in limited]
    if not found:
        raise FleetError("endpoint.no-host", ", ".join(members) or "no hosts")
    return found


# -- Prometheus -------------------------------------------------------------------------------------------------------

NODE_EXPORTER = 9100  # port of Debian's package
# Port of clients, and the blackbox exporter's modules without and with TLS, which expect TLS or NATS's greeting.
CLIENTS = {"etcd": (2379, None, "tls"), "nats": (4222, "nats", "nats_tls")}
JOBS = ("engines", "endpoint", "etcd", "services", "nodes", "accelerators")


def targets(plans, variables_of, groups, monitor, accelerator_ports=None):
    """Return {job: [{targets: [ADDRESS:PORT], labels}]} for file_sd_configs, for JOBS; services is for the blackbox
    exporter.

    plans: [(servers, deployment)] of hosts. variables_of: {host: mapping of its variables}. groups: {group: hosts} of
    the inventory. monitor: the host of Prometheus. accelerator_ports: {platform: port of the exporter on its nodes}.
    Raises FleetError if a server listens on loopback of another host.
    """
    problems, found = Mistakes(), {job: [] for job in JOBS}

    def add(job, bind, port, name, host, variable="fleet_bind_address", **labels):
        with problems.noted():
            address = reachable_address(bind, name, host, monitor, variables_of[host], variable)
            target = "%s:%d" % (url_host(address), int(port))
            found[job].append({"targets": [target], "labels": {"host": host, **labels}})

    for entries, deployment in plans:
        for entry in entries:
            port, path = entry["port"], ENGINES[entry["engine"]].metrics_path
            if not answers(entry):
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
        address, variable = given.get("endpoint_metrics_address") or "127.0.0.1", "endpoint_metrics_address"
        add("endpoint", address, given.get("endpoint_metrics_port") or 8405, "the endpoint's metrics", host, variable)
        if given.get("endpoint_certificate"):
            address, port = given.get("endpoint_address") or "0.0.0.0", given.get("endpoint_port") or 8080
            add("services", address, port, "the endpoint", host, "endpoint_address", service="endpoint", module="tls")
    planned = [entry["host"] for entries, _deployment in plans for entry in entries]
    hosts = planned + [host for name in ("endpoint", "monitoring") for host in groups.get(name) or ()]
    for service in CLIENTS:
        group = list(groups.get(variables_of[monitor].get(service + "_group") or service) or ())
        hosts += group
        tls = bool(group) and services.has_tls(service, group, variables_of[group[0]])
        for one in services.members(group, variables_of, service + "_name", loopback=not tls):
            bind, host, given = one["address"], one["host"], variables_of[one["host"]]
            if is_loopback(bind) and host != monitor:
                continue  # only its own host reaches loopback
            if service == "etcd":
                add("etcd", bind, given.get("etcd_metrics_port") or 2381, service, host)
            port, *modules = CLIENTS[service]
            if modules[tls]:
                port = given.get(service + "_client_port") or port
                add("services", bind, port, service, host, service=service, module=modules[tls])
    for host in dict.fromkeys(hosts):
        if host in planned and variables_of[host].get("fleet_root"):
            continue  # node exporter is not installed there
        add("nodes", "0.0.0.0", NODE_EXPORTER, "node exporter", host)
    problems.raise_any()
    return found


def limits(reports_dir):
    """Return {recipe: {ttft_ms, tpot_ms}}: the limits of the last good benchmark of each recipe that has limits.

    reports_dir: folder of the reports, which may not exist.
    """
    found = {}
    for document in history.history(reports_dir)[0]:
        if document["kind"] == "benchmark" and document.get("ok") and document.get("limits"):
            given = document["limits"]
            found[document["recipe"]] = {name: given[name] for name in LIMITS if given.get(name) is not None}
    return found
