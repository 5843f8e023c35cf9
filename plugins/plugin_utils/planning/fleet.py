# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's plan: what every host's variables say, put through recipe and plan, errors gathered into one message."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os

from ansible import context
from ansible_collections.inference.fleet.plugins.module_utils.containers.engine import ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.containers.images import check_mirror
from ansible_collections.inference.fleet.plugins.module_utils.engines.registry import API_KEYS
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, plan, server_keys, services
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import ACCELERATORS, parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import checks as input_checks
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import show

PLATFORM_GROUPS = ("cpu", "neuron", "nvidia", "ascend")
ENGINE_GROUPS = ("vllm", "trtllm", "dynamo")
CAPACITY = ("refuse", "warn")  # fleet_capacity: what is done about servers that cannot fit
# Shared variables of the collection; those of roles carry the role's name instead.
KNOWN = (
    "fleet_address",
    "fleet_api_key",
    "fleet_api_key_version",
    "fleet_artifact_dir",
    "fleet_artifact_force",
    "fleet_artifact_remote",
    "fleet_artifact_source",
    "fleet_bind_address",
    "fleet_ca_bundle",
    "fleet_capacity",
    "fleet_clean",
    "fleet_clean_shared",
    "fleet_cluster",
    "fleet_container_engine",
    "fleet_deployment",
    "fleet_hardware",
    "fleet_hf_endpoint",
    "fleet_hf_token",
    "fleet_host_key",
    "fleet_log_file_mb",
    "fleet_log_files",
    "fleet_log_lines",
    "fleet_log_rate",
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
    "fleet_start_on_boot",
    "fleet_status_file",
    "fleet_status_strict",
    "fleet_verify",
    "fleet_watchdog",
    "fleet_watchdog_failures",
    "fleet_watchdog_interval_s",
    "fleet_watchdog_timeout_s",
    "fleet_weights_min_rate",
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
            return input_checks.clean(self._variables[name], "variable " + name)
        except FleetError:
            raise
        except Exception as error:  # whatever the templating engine raises: undefined facts, a locked vault, bad Jinja
            text = " ".join(str(error).split()).rstrip(".")
            locked = any(word in text.lower() for word in ("vault", "decrypt"))
            raise FleetError(
                "inventory.variable-unresolvable",
                "variable %s cannot be worked out for the plan: %s. %s",
                (
                    name,
                    text,
                    "Give the vault's password (--ask-vault-pass), or write the value where it is not encrypted."
                    if locked
                    else "The plan touches no node and reads no facts; write the value into the inventory.",
                ),
            ) from error


def plain(value):
    """``value`` without the engine's lazy and tagged containers: dict, list, str, int, float, bool, None."""
    return input_checks.clean(value, "a value")


def recipe_paths(variables, inventory_sources):
    """Folders that recipes are looked for in, before the collection's own."""
    configured = variables.get("fleet_recipe_paths") or []
    if isinstance(configured, str):
        configured = [part for part in configured.split(os.pathsep) if part]
    if not isinstance(configured, list) or not all(isinstance(folder, str) and folder for folder in configured):
        raise FleetError(
            "inventory.recipe-paths-not-a-list",
            "fleet_recipe_paths is %s; allowed: a list of folders, for example [/srv/recipes].",
            (show(configured),),
        )
    folders = [os.path.expanduser(folder) for folder in configured]
    missing = [folder for folder in folders if not os.path.isdir(folder)]
    if missing:
        raise FleetError(
            "inventory.recipe-path-missing",
            "fleet_recipe_paths names %s, which is no folder on the controller; allowed: folders that are there. Make "
            "it, or remove it from the list.",
            (", ".join(show(folder) for folder in missing),),
        )
    for source in inventory_sources:
        folder = source if os.path.isdir(source) else os.path.dirname(source)
        folders.append(os.path.join(folder, "recipes"))
    return list(dict.fromkeys(folders))


def check_names(variables):
    """FleetError for variables that are one slip away from one of ours: they would be ignored."""
    mistakes = input_checks.Mistakes()
    for name in sorted(variables.names):
        usual = name.lower().replace("-", "_")
        if usual.startswith("fleet") and name not in KNOWN and not overrides.VARIABLE.match(name):
            close = difflib.get_close_matches(usual, KNOWN, 1, cutoff=0.9)
            if close:
                mistakes.add(
                    "inventory.variable-unknown",
                    "variable %s is unknown; did you mean %s? Use that name.",
                    (name, close[0]),
                )
    mistakes.raise_any()


# What each variable of a host must be, beside those that the plan itself reads. None of them may be in a vault.
CHECKS = {
    "fleet_artifact_force": input_checks.check_switch,
    "fleet_log_lines": lambda name, value: input_checks.check_number(name, value, 10**6),
    "fleet_purge": input_checks.check_switch,
    "fleet_purge_artifacts": input_checks.check_switch,
    "fleet_purge_images": input_checks.check_switch,
    "fleet_reports_dir": lambda name, value: value == "" or input_checks.check_string(name, value),
    "fleet_serial": input_checks.check_batches,
    "fleet_verify": lambda name, value: input_checks.check_choice(name, value, ("auto", "full", "quick")),
}


def check_variables(variables, mistakes):
    """Note each variable of CHECKS whose value cannot be."""
    for name, check in CHECKS.items():
        with mistakes.noted():
            value = variables.get(name)
            if value is not None:
                check(name, value)


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


def plan_one(host, variables, groups=(), inventory_sources=(), deploys=False, required=True, others=None):
    """(entries, deployment, capacity) of one host; ([], None, []) where it has no fleet_recipe. Raises FleetError.

    variables: HostVariables. groups: names of the host's groups. inventory_sources: paths given with -i. deploys:
    whether servers that cannot fit are a mistake; who stops them, or reads their logs, need not care. required: whether
    a host of a platform or an engine needs a fleet_recipe; who stops what runs there does not. others: host ->
    HostVariables of the inventory's hosts.
    """
    mistakes = input_checks.Mistakes()
    with mistakes.noted():
        check_names(variables)
    name = None
    with mistakes.noted():
        name = variables.get("fleet_recipe")
        if name is None:
            lacking = without_recipe(variables.names, groups) if required else ""
            if lacking:
                mistakes.add("inventory.recipe-missing", lacking)
    if name is None:
        mistakes.raise_any()
        return [], None, []
    check_variables(variables, mistakes)
    recipe, path, layers, hardware = declared_of(variables, inventory_sources, mistakes)
    if recipe is not None:
        with mistakes.noted():
            _check_groups(recipes.label_of(path), recipe, groups)
    site, rule = _site(variables, recipe or {}, deploys, mistakes)
    mistakes.raise_any()
    label = recipes.label_of(path)
    try:
        if others is not None:
            site = dataclasses.replace(site, endpoints=_endpoints(host, recipe, others, inventory_sources))
        entries, deployment = plan.plan_host(host, recipe, hardware, site), plan.deployment(recipe, site, host)
        fits = capacity.check(entries, deployment, hardware)
        if rule == "warn":
            fits = capacity.overruled(fits)
        refused = capacity.refusals(fits) if deploys else ""
        if refused:
            raise FleetError(
                "plan.does-not-fit-memory",
                "%s Where this count is wrong, fleet_capacity: warn overrules it.",
                (refused,),
            )
        return entries, deployment, fits
    except FleetError as error:
        used = [name for name, layer in layers if layer]
        where = "%s%s: " % (label, " with " + ", ".join(used) if used else "")
        raise error.within(where) from error


def declared_of(variables, inventory_sources, mistakes):
    """(recipe, its path, layers of overrides, Hardware) of a host with a fleet_recipe; None for what is wrong, which is
    noted in `mistakes`."""
    before = len(mistakes.errors)
    recipe, path, layers, hardware = None, None, [], None
    for key in overrides.override_names(variables.names):
        with mistakes.noted():
            layers.append((key, variables.get(key)))
    overridden = len(mistakes.errors) == before
    with mistakes.noted():
        path = recipes.find_recipe(variables.get("fleet_recipe"), recipe_paths(variables, inventory_sources))
        recipe = recipes.resolve_recipe(path, layers) if overridden else None
    with mistakes.noted():
        if "fleet_hardware" not in variables.names:
            raise FleetError(
                "hardware.missing",
                "fleet_hardware is not set; declare what the node has, for example {accelerator: %s, count: 1}.",
                (recipe["needs"]["accelerators"][0] if recipe else next(iter(ACCELERATORS)),),
            )
        hardware = parse_hardware(variables.get("fleet_hardware"), "inventory")
    return recipe, path, layers, hardware


def _endpoints(host, recipe, others, inventory_sources):
    """services.endpoints() of a host."""

    def planned_of(other):
        variables, mistakes = others(other), input_checks.Mistakes()
        if variables.get("fleet_recipe") is None:
            return None
        found, _path, _layers, hardware = declared_of(variables, inventory_sources, mistakes)
        mistakes.raise_any()
        return found, hardware

    return services.endpoints(host, recipe, lambda: others(host).get("groups") or {}, others, planned_of)


def _check_groups(label, recipe, groups):
    for kind, known in (("platform", PLATFORM_GROUPS), ("engine", ENGINE_GROUPS)):
        wrong = sorted(set(groups) & set(known) - {recipe[kind]})
        if wrong:
            raise FleetError(
                "inventory.group-does-not-fit",
                "%s is for %s %s, but the host is in group '%s'; move it to group '%s' or choose another fleet_recipe.",
                (label, kind, recipe[kind], wrong[0], recipe[kind]),
            )


def _site(variables, recipe, deploys, mistakes):
    """(plan.Site, what fleet_capacity says) of a host; what is wrong is noted in ``mistakes``."""
    folder = functools.partial(input_checks.check_folder, example="/srv/inference-fleet; empty for the system's own")
    choice = input_checks.check_choice
    root = _read(variables, "fleet_root", "", mistakes, lambda name, value: value == "" or folder(name, value))
    bind = _read(variables, "fleet_bind_address", "127.0.0.1", mistakes, input_checks.check_address)
    engine = _read(
        variables, "fleet_container_engine", container_launch.DEFAULT_ENGINE, mistakes,
        lambda name, value: choice(name, value, ENGINES),
    )  # fmt: skip
    rule = _read(variables, "fleet_capacity", CAPACITY[0], mistakes, lambda name, value: choice(name, value, CAPACITY))
    if "container" in {one.get("launcher") for one in (recipe, *recipe.get("servers", ()))}:
        with mistakes.noted():
            check_mirror(variables.get("fleet_registry_mirror"))
    has_key = False
    with mistakes.noted():
        has_key = server_keys.has_key(variables, deploys)
    secrets = {**plan.secrets_of(recipe), **(server_keys.SECRETS if has_key else {})}
    versions = {
        key: _read(variables, secret + "_version", "1", mistakes, input_checks.check_version)
        for key, secret in sorted(secrets.items())
        if secret
    }
    site = plan.Site(
        root=str(root).rstrip("/"),
        bind=str(bind),
        secret_versions=tuple((key, str(version)) for key, version in versions.items()),
        container_engine=engine,
        api_key=has_key,
    )
    return site, rule


def _read(variables, name, default, mistakes, check):
    """A variable's value, ``default`` where it is not set or null; what is wrong with it is noted."""
    value = default
    with mistakes.noted():
        given = variables.get(name)
        value = default if given is None else given
        check(name, value)
    return value


def plan_fleet(hosts, variables_of, groups_of, inventory_sources=(), deploys=False, required=True):
    """{host: {"servers": entries, "deployment": resolved recipe or None, "capacity": […]}} for all ``hosts``, in order.

    capacity: whether each server fits into the memory of its devices, see capacity.check.
    variables_of(host) -> mapping, groups_of(host) -> names. deploys, required: see plan_one. One FleetError tells
    every mistake of the fleet, equal ones of several hosts once.
    """
    planned, mistakes = {}, {}
    others = functools.lru_cache(maxsize=None)(lambda host: HostVariables(host, variables_of(host)))
    for host in hosts:
        try:
            entries, deployment, fits = plan_one(
                host, others(host), groups_of(host), inventory_sources, deploys, required, others
            )
        except FleetError as error:
            for one in error.problems:
                mistakes.setdefault(one.message, (one, []))[1].append(host)
        else:
            planned[host] = {"servers": entries, "deployment": deployment, "capacity": fits}
    for message, pair in _one_machine(planned, variables_of, groups_of):
        mistakes.setdefault(message, (FleetError("inventory.one-machine-twice", message), list(pair)))
    if mistakes:
        raise FleetError.together(error.within(_hosts_text(where) + ": ") for error, where in mistakes.values())
    return planned


def _one_machine(planned, variables_of, groups_of):
    """(message, two hosts) for names of one machine whose servers would be in each other's way.

    One machine is one address, port and kind of connection that Ansible takes to it.
    """
    if any("ansible_host" in str(given) for given in context.CLIARGS.get("extra_vars") or ()):
        return  # an address of the command line is every host's, and says nothing about the inventory
    machines = {}
    for host, item in planned.items():
        deployed = set(groups_of(host)) & {*PLATFORM_GROUPS, *ENGINE_GROUPS}
        if not item["servers"] or not deployed or len(planned) < 2:
            continue
        variables = HostVariables(host, variables_of(host))
        try:
            kind = variables.get("ansible_connection") or "ssh"
            address = "localhost" if kind == "local" else variables.get("ansible_host") or host
            port, root = variables.get("ansible_port"), variables.get("fleet_root") or ""
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


def check_secrets(planned, hosts, variables):
    """FleetError that names every secret of the hosts' planned servers that has no value.

    planned: of plan_inventory(), variables: what ansible gives a task. Vaults must be open for it.
    """
    problems = {}
    for host in hosts:
        given = HostVariables(host, variables["hostvars"][host])
        for words in server_keys.missing_secrets(planned[host]["servers"], given):
            problems.setdefault(words, []).append(host)
    if problems:
        lines = ["%s: %s." % (_hosts_text(where), words) for words, where in problems.items()]
        raise FleetError(
            "inventory.secret-missing",
            "Secrets of servers have no value, nothing was changed:\n%s",
            ("\n".join(lines),),
        )


def check_playbooks(planned, variables):
    """Warnings for hosts that the playbooks leave alone. FleetError where they would do nothing that was meant.

    planned: plan_inventory()'s result for the hosts of a run.
    """
    groups_of = {host: variables["hostvars"][host]["group_names"] for host in planned}
    if planned and not any(item["deployment"] for item in planned.values()):
        raise FleetError(
            "inventory.no-recipe",
            "no host has the variable fleet_recipe, so there is nothing to deploy; allowed: %s. Set it in the "
            "inventory, for example in group_vars/all.yml.",
            (", ".join(recipes.available([recipes.OWN_RECIPES])),),
        )
    known = (*PLATFORM_GROUPS, *ENGINE_GROUPS)
    outside = [host for host in planned if planned[host]["deployment"] and not set(groups_of[host]) & set(known)]
    text = (
        "%s: fleet_recipe is set, but the host is in none of the groups that the playbooks deploy; allowed: %s. Put it "
        "into one of them." % (_hosts_text(outside), ", ".join(known))
    )
    if len(outside) == sum(bool(item["deployment"]) for item in planned.values()) > 0:
        raise FleetError("inventory.outside-all-groups", text)
    warnings = {}
    for host, item in planned.items():
        lacking = "" if item["deployment"] else without_recipe(variables["hostvars"][host], groups_of[host])
        if lacking:
            warnings.setdefault(lacking, []).append(host)
    lines = ["%s: %s" % (_hosts_text(hosts), lacking) for lacking, hosts in warnings.items()]
    return ["%s Until then it is left alone." % line for line in [*lines, *([text] if outside else [])]]


def plan_each(hosts, variables):
    """{host: its part of plan_fleet(), or None where it cannot be planned} of those that have servers, or should."""
    planned = {}
    for host in hosts:
        try:
            planned[host] = plan_inventory([host], variables, required=False)[host]
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


def exposed_warnings(planned):
    """[A sentence on all servers that listen beyond loopback and ask for no API key]; [] where there are none."""
    addresses, hosts = {}, {}
    for host, item in planned.items():
        for entry in item["servers"]:
            if (
                entry["port"]
                and not server_keys.is_loopback(entry["bind"])
                and not set(API_KEYS) & set(entry["secrets"])
            ):
                addresses[entry["bind"]] = hosts[host] = True
    if not hosts:
        return []
    return [
        "%s: the servers listen on %s (fleet_bind_address) and ask for no API key, so whoever reaches them can use "
        "them. Set fleet_api_key, or leave fleet_bind_address at 127.0.0.1 and put a gateway that asks for a key in "
        "front." % (_hosts_text(list(hosts)), ", ".join(addresses))
    ]
