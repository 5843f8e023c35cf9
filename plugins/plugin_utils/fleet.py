# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's plan: what every host's variables say, put through recipe and plan, errors gathered into one message."""

from __future__ import annotations

import difflib
import os

from ansible_collections.inference.fleet.plugins.module_utils.container_engine import ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.container_images import check_mirror
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils import (
    capacity,
    container_launch,
    overrides,
    plan,
    recipes,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe_schema import show

PLATFORM_GROUPS = ("cpu", "neuron", "nvidia", "ascend")
ENGINE_GROUPS = ("vllm", "trtllm", "dynamo")
CAPACITY = ("refuse", "warn")  # fleet_capacity: what is done about servers that cannot fit
# Shared variables of the collection; those of roles carry the role's name instead.
KNOWN = (
    "fleet_artifact_dir",
    "fleet_artifact_force",
    "fleet_artifact_remote",
    "fleet_artifact_source",
    "fleet_bind_address",
    "fleet_ca_bundle",
    "fleet_capacity",
    "fleet_clean",
    "fleet_clean_shared",
    "fleet_container_engine",
    "fleet_deployment",
    "fleet_hardware",
    "fleet_hf_endpoint",
    "fleet_hf_token",
    "fleet_host_key",
    "fleet_log_lines",
    "fleet_log_server",
    "fleet_modelscope_endpoint",
    "fleet_modelscope_token",
    "fleet_node",
    "fleet_override",
    "fleet_pip_index_url",
    "fleet_plan_file",
    "fleet_play_hosts",
    "fleet_proxy_env",
    "fleet_purge",
    "fleet_purge_artifacts",
    "fleet_purge_images",
    "fleet_recipe",
    "fleet_recipe_paths",
    "fleet_registry_auth",
    "fleet_registry_mirror",
    "fleet_reports_dir",
    "fleet_root",
    "fleet_serial",
    "fleet_server",
    "fleet_servers",
    "fleet_verify",
)


class HostVariables:
    """One host's variables, read one by one: only those that the plan needs are ever templated or decrypted."""

    def __init__(self, host, variables):
        self.host = host
        self.names = set(variables)
        self._variables = variables

    def get(self, name, default=None):
        """The variable's value, or ``default``. FleetError names a variable that cannot be worked out here."""
        if name not in self.names:
            return default
        try:
            return plain(self._variables[name])
        except FleetError:
            raise
        except Exception as error:  # whatever the templating engine raises: undefined facts, a locked vault, bad Jinja
            raise FleetError(
                "variable %s cannot be worked out for the plan: %s. The plan touches no node and reads no facts; "
                "write the value into the inventory." % (name, " ".join(str(error).split()).rstrip("."))
            ) from error


def plain(value):
    """``value`` without the engine's lazy and tagged containers: dict, list, str, int, float, bool, None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def recipe_paths(variables, inventory_sources):
    """Folders that recipes are looked for in, before the collection's own."""
    configured = variables.get("fleet_recipe_paths", [])
    if isinstance(configured, str):
        configured = [part for part in configured.split(os.pathsep) if part]
    if not isinstance(configured, list):
        raise FleetError("fleet_recipe_paths is %s; allowed: a list of folders." % show(configured))
    folders = [os.path.expanduser(str(folder)) for folder in configured]
    for source in inventory_sources:
        folder = source if os.path.isdir(source) else os.path.dirname(source)
        folders.append(os.path.join(folder, "recipes"))
    return list(dict.fromkeys(folders))


def check_names(variables):
    """FleetError for a variable that is one slip away from one of ours: it would be ignored without a word."""
    for name in sorted(variables.names):
        if name.startswith("fleet_") and name not in KNOWN and not overrides.VARIABLE.match(name):
            close = difflib.get_close_matches(name, KNOWN, 1, cutoff=0.9)
            if close:
                raise FleetError("variable %s is unknown; did you mean %s?" % (name, close[0]))


def without_recipe(names, groups):
    """What is wrong with a host that has no fleet_recipe; "" where its groups do not say that it has servers.

    names: of the host's variables. groups: names of the host's groups.
    """
    ours = [group for group in (*PLATFORM_GROUPS, *ENGINE_GROUPS) if group in groups]
    if not ours:
        return ""
    unset = ["fleet_recipe", *(["fleet_hardware"] if "fleet_hardware" not in names else [])]
    return (
        "%s not set, but the host is in %s, so it should have servers; write %s into the inventory, for example into "
        "group_vars/%s.yml (recipes: %s), or take the host out of there."
        % (
            " and ".join(unset) + (" are" if len(unset) > 1 else " is"),
            ("groups " if len(ours) > 1 else "group ") + " and ".join("'%s'" % group for group in ours),
            "them" if len(unset) > 1 else "it",
            ours[0],
            ", ".join(recipes.available([recipes.OWN_RECIPES])),
        )
    )


def plan_one(host, variables, groups=(), inventory_sources=(), deploys=False, required=True):
    """(entries, deployment, capacity) of one host; ([], None, []) where it has no fleet_recipe. Raises FleetError.

    variables: HostVariables. groups: names of the host's groups. inventory_sources: paths given with -i. deploys:
    whether servers that cannot fit are a mistake; who stops them, or reads their logs, need not care. required: whether
    a host of a platform or an engine needs a fleet_recipe; who stops what runs there does not.
    """
    check_names(variables)
    name = variables.get("fleet_recipe")
    if name is None:
        lacking = without_recipe(variables.names, groups) if required else ""
        if lacking:
            raise FleetError(lacking)
        return [], None, []
    path = recipes.find_recipe(name, recipe_paths(variables, inventory_sources))
    layers = [(key, variables.get(key)) for key in overrides.override_names(variables.names)]
    recipe = recipes.resolve_recipe(path, layers)
    label = recipes.label_of(path)
    for kind, value, known in (
        ("platform", recipe["platform"], PLATFORM_GROUPS),
        ("engine", recipe["engine"], ENGINE_GROUPS),
    ):
        wrong = sorted(set(groups) & set(known) - {value})
        if wrong:
            raise FleetError(
                "%s is for %s %s, but the host is in group '%s'; move it to group '%s' or choose another fleet_recipe."
                % (label, kind, value, wrong[0], value)
            )
    if "fleet_hardware" not in variables.names:
        raise FleetError(
            "fleet_hardware is not set; declare what the node has, for example {accelerator: %s, count: 1}."
            % recipe["needs"]["accelerators"][0]
        )
    hardware = parse_hardware(variables.get("fleet_hardware"), "inventory")
    root = variables.get("fleet_root", "")
    if root and not str(root).startswith("/"):
        raise FleetError("fleet_root is %s; allowed: an absolute path, or empty for the system's own." % show(root))
    engine = variables.get("fleet_container_engine", container_launch.DEFAULT_ENGINE)
    if engine not in ENGINES:
        raise FleetError("fleet_container_engine is %s; allowed: %s." % (show(engine), ", ".join(ENGINES)))
    if recipe.get("launcher") == "container":
        check_mirror(variables.get("fleet_registry_mirror"))
    rule = variables.get("fleet_capacity", CAPACITY[0])
    if rule not in CAPACITY:
        raise FleetError("fleet_capacity is %s; allowed: %s." % (show(rule), ", ".join(CAPACITY)))
    site = plan.Site(
        root=str(root or "").rstrip("/"),
        bind=str(variables.get("fleet_bind_address", "127.0.0.1")),
        secret_versions=tuple(
            (key, str(variables.get(secret + "_version", "1")))
            for key, secret in sorted(recipe.get("secrets", {}).items())
            if secret
        ),
        container_engine=engine,
    )
    try:
        entries, deployment = plan.plan_host(host, recipe, hardware, site), plan.deployment(recipe, site, host)
        fits = capacity.check(entries, deployment, hardware)
        if rule == "warn":
            fits = capacity.overruled(fits)
        refused = capacity.refusals(fits) if deploys else ""
        if refused:
            raise FleetError(refused + " Where this count is wrong, fleet_capacity: warn overrules it.")
        return entries, deployment, fits
    except FleetError as error:
        used = [name for name, layer in layers if layer]
        raise FleetError("%s%s: %s" % (label, " with " + ", ".join(used) if used else "", error.message)) from error


def plan_fleet(hosts, variables_of, groups_of, inventory_sources=(), deploys=False, required=True):
    """{host: {"servers": entries, "deployment": resolved recipe or None, "capacity": […]}} for all ``hosts``, in order.

    capacity: whether each server fits into the memory of its devices, see capacity.check.
    variables_of(host) -> mapping, groups_of(host) -> names. deploys, required: see plan_one. One FleetError tells
    every mistake of the fleet, equal ones of several hosts once.
    """
    planned, mistakes = {}, {}
    for host in hosts:
        try:
            entries, deployment, fits = plan_one(
                host, HostVariables(host, variables_of(host)), groups_of(host), inventory_sources, deploys, required
            )
        except FleetError as error:
            mistakes.setdefault(error.message, []).append(host)
        else:
            planned[host] = {"servers": entries, "deployment": deployment, "capacity": fits}
    if mistakes:
        raise FleetError("\n".join("%s: %s" % (_hosts_text(where), message) for message, where in mistakes.items()))
    return planned


def _hosts_text(hosts):
    return ", ".join(hosts[:3]) + (" and %d more" % (len(hosts) - 3) if len(hosts) > 3 else "")


def plan_inventory(hosts, variables, deploys=False, required=True):
    """plan_fleet of inventory hosts, read from the variables that ansible gives a task (hostvars and the sources)."""
    hostvars = variables["hostvars"]
    return plan_fleet(
        hosts,
        lambda host: hostvars[host],
        lambda host: hostvars[host]["group_names"],
        [str(source) for source in variables.get("ansible_inventory_sources") or []],
        deploys,
        required,
    )


def plan_each(hosts, variables):
    """{host: its part of plan_fleet(), or None where it cannot be planned} of those that have servers, or should."""
    planned = {}
    for host in hosts:
        try:
            planned[host] = plan_inventory([host], variables)[host]
        except FleetError:
            planned[host] = None  # whoever is to do something with it says what is wrong
    return {host: item for host, item in planned.items() if item is None or item["servers"]}


def plan_table(planned):
    """The plan as a report {title, columns, rows} for people."""
    rows = []
    for host, item in planned.items():
        for entry in item["servers"]:
            rows.append(
                [
                    host,
                    entry["name"],
                    entry["role"],
                    "%s:%s" % (entry["bind"], entry["port"]) if entry["port"] else "-",
                    plan.ranges(entry["devices"]) or "-",
                    entry["model_id"],
                    item["deployment"]["name"],
                    ", ".join(entry["start"]["after"]) or "-",
                    entry["hash"][:12],
                ]
            )
    return {
        "title": "Plan",
        "columns": ["host", "server", "role", "address", "devices", "model id", "recipe", "after", "hash"],
        "rows": rows,
    }


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
    return ["%s: %s" % (_hosts_text(hosts), text) for text, hosts in found.items()]
