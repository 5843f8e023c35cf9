# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan for people: tables and warnings."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import API_KEYS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.cpu_list import format_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.server_spec import canonical
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import some
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, server_keys
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.tables import folded


def plan_table(planned):
    """The plan as a report {title, columns, rows} for people; hosts whose plans differ in their own address alone share
    their rows."""
    rows, equal = [], {}
    for host, item in planned.items():
        texts = [
            canonical({**entry, "host": None, "hash": None}).decode("utf-8", "replace") for entry in item["servers"]
        ]
        binds = {entry["bind"] for entry in item["servers"] if not server_keys.is_loopback(entry["bind"])}
        for bind in binds - {"0.0.0.0", "::"}:
            texts = [text.replace(bind, "${bind}") for text in texts]
        equal[host] = str(texts)
        for entry in item["servers"]:
            rows.append(
                [
                    host,
                    entry["name"],
                    entry["role"],
                    "%s:%s" % (entry["bind"], entry["port"]) if entry["port"] else "-",
                    format_cpu_list(entry["devices"]) or "-",
                    entry["model_id"],
                    " + ".join([item["deployment"]["name"], *item["deployment"].get("overlays", ())]),
                    ", ".join(entry["start"]["after"]) or "-",
                    entry["hash"][:12],
                ]
            )
    columns = ["host", "server", "role", "address", "devices", "model id", "recipe", "after", "hash"]
    return {"title": "Plan", "columns": columns, "rows": folded(columns, rows, equal)}


def tuning_tables(planned):
    """Which measured settings were taken (fleet_tuning), as reports [{title, columns, rows}]; [] where none was."""
    found = {}
    for host, item in planned.items():
        if item["deployment"] and item["deployment"].get("tuning"):
            found.setdefault(item["deployment"]["tuning"], []).append(host)
    rows = [[some(hosts), text] for text, hosts in found.items()]
    return [{"title": "Tuning", "columns": ["host", "setting"], "rows": rows}] if rows else []


def capacity_table(planned):
    """Whether it fits, as a report {title, columns, rows}: one row for equal servers of a host. Sizes of one device."""
    rows = []
    for host, item in planned.items():
        for names, fits in capacity.grouped(item["capacity"]):
            sizes = [
                capacity.gib(fits[key] * capacity.GIB) if fits.get(key) is not None else None for key in capacity.SIZES
            ]
            rows.append([host, capacity.servers_text(names), *sizes, fits["verdict"], fits["text"]])
    return {
        "title": "Capacity",
        "columns": ["host", "server", "memory", "weights", "kv cache", "verdict", "details"],
        "rows": rows,
    }


def capacity_warnings(planned):
    """What may not fit, as sentences for people; equal ones of several servers, and of several hosts, once."""
    found = {}
    for host, item in planned.items():
        warned = {}
        for fits in item["capacity"]:
            for warning in fits["warnings"]:
                warned.setdefault(warning, []).append(fits["server"])
        for warning, names in warned.items():
            found.setdefault("%s: %s" % (capacity.servers_text(names), warning), []).append(host)
    return ["%s: %s" % (some(hosts), text) for text, hosts in found.items()]


def exposed_warnings(planned):
    """[A sentence on all servers that listen beyond loopback and ask for no API key]; [] where there are none."""
    addresses, hosts = {}, {}
    for host, item in planned.items():
        for entry in item["servers"]:
            exposed = entry["port"] and not server_keys.is_loopback(entry["bind"])
            if exposed and not set(API_KEYS) & set(entry["secrets"]):
                addresses[entry["bind"]] = hosts[host] = True
    if not hosts:
        return []
    return [
        "%s: the servers listen on %s (fleet_bind_address) and ask for no API key, so whoever reaches them can use "
        "them. Set fleet_api_key, or leave fleet_bind_address at 127.0.0.1 and put a gateway that asks for a key in "
        "front." % (some(list(hosts)), some(list(addresses)))
    ]
