# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's plan: what every host's variables say, put through recipe and plan, errors gathered into one message."""

from __future__ import annotations

import dataclasses
import functools

from ansible import context
from ansible_collections.inference.fleet.plugins.module_utils.containers.engine import ENGINES as CONTAINER_ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.containers.images import check_mirror
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.servers.api_keys import is_file
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import (
    capacity,
    notes,
    plan,
    server_keys,
    services,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import ACCELERATORS, parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import (
    HostVariables,
    check_names,
    check_variables,
    overlays_of,
    read_checked,
    recipe_paths,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import checks as input_checks
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides, tuning
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import TRUE, show, some

CAPACITY = ("refuse", "warn")  # fleet_capacity: what is done about servers that cannot fit
UNPLANNED = {"servers": [], "deployment": None, "capacity": []}  # of a host without fleet_recipe


def plan_one(variables, deploys=False, others=None):
    """{"servers": entries, "deployment": resolved recipe or None, "capacity": […]} of one host. Raises FleetError.

    variables: HostVariables. deploys: whether servers that cannot fit are a mistake; who stops them, or reads their
    logs, need not care. others: host -> HostVariables of the inventory's hosts. capacity: whether each server fits into
    the memory of its devices, see capacity.check.
    """
    mistakes = input_checks.Mistakes()
    with mistakes.noted():
        check_names(variables)
    name = None
    with mistakes.noted():
        name = variables.get("fleet_recipe")
    if name is None:
        mistakes.raise_any()
        return dict(UNPLANNED)
    check_variables(variables, mistakes)
    recipe, path, layers, hardware = declared_of(variables, mistakes)
    site, rule = _site(variables, recipe or {}, deploys, mistakes)
    mistakes.raise_any()
    label = recipes.label_of(path)
    try:
        planned_of = functools.partial(_planned, others)
        groups = functools.partial(_groups, others, variables.host)
        if others is not None:
            takes_one = ENGINES[recipe["engine"]].takes_one
            found = services.endpoints(variables.host, recipe, groups, others, planned_of, takes_one)
            named = services.named_services(variables.host, recipe, groups, others)
            signed = {name: one for name, one in named.items() if one.signs}
            site = dataclasses.replace(site, endpoints=found, signed=tuple(signed))
        entries = plan.plan_host(variables.host, recipe, hardware, site)
        used = {entry["name"].rpartition("-")[0] for entry in entries}
        deployment = plan.deployment(recipe, site, variables.host, used)
        if others is not None:
            deployment["service_clients"] = services.clients(entries, signed, NodePaths(site.root))
        if others is not None and site.clustered and "frontend" in {entry["role"] for entry in entries}:
            found = services.workers_elsewhere(variables.host, groups, others, planned_of)
            deployment["workers_elsewhere"] = found
        fits = notes.with_notes(capacity.check(entries, deployment, hardware), entries, deployment, hardware)
        if rule == "warn":
            fits = capacity.overruled(fits)
        refused = capacity.refusals(fits) if deploys else ""
        if refused:
            raise FleetError(
                "plan.does-not-fit-memory",
                "%s Where this count is wrong, fleet_capacity: warn overrules it.",
                (refused,),
            )
        return {"servers": entries, "deployment": deployment, "capacity": fits}
    except FleetError as error:
        used = [name for name, layer in layers if layer]
        where = "%s%s: " % (label, " with " + ", ".join(used) if used else "")
        raise error.within(where) from error


def declared_of(variables, mistakes):
    """(recipe, its path, layers of overrides, Hardware) of a host with a fleet_recipe; None for what is wrong, which is
    noted in `mistakes`."""
    before = len(mistakes.errors)
    recipe, path, layers, hardware = None, None, [], None
    for key in overrides.override_names(variables.names):
        with mistakes.noted():
            layers.append((key, variables.get(key)))
    overlays = ()
    with mistakes.noted():
        overlays = overlays_of(variables)
    wanted = read_checked(variables, "fleet_tuning", None, mistakes, _check_tuning)
    readable = len(mistakes.errors) == before
    with mistakes.noted():
        path = recipes.find_recipe(variables.get("fleet_recipe"), recipe_paths(variables))
        recipe = recipes.resolve_recipe(path, layers, overlays) if readable else None
    with mistakes.noted():
        if "fleet_hardware" not in variables.names:
            raise FleetError(
                "hardware.missing",
                "fleet_hardware is not set; declare what the node has, for example {accelerator: %s, count: 1}.",
                (recipe["needs"]["accelerators"][0] if recipe else next(iter(ACCELERATORS)),),
            )
        hardware = parse_hardware(variables.get("fleet_hardware"), "inventory")
    if recipe and hardware and wanted is not None:
        with mistakes.noted():
            recipe = recipes.resolve_recipe(path, layers, overlays, wanted, hardware.accelerator)
    return recipe, path, layers, hardware


def _check_tuning(name, value):
    if value is not None:
        tuning.check_wanted(name, value)


def _planned(others, host):
    """(recipe, Hardware) of a host, None where it has no recipe."""
    variables, mistakes = others(host), input_checks.Mistakes()
    if variables.get("fleet_recipe") is None:
        return None
    found, _path, _layers, hardware = declared_of(variables, mistakes)
    mistakes.raise_any()
    return found, hardware


def _groups(others, host):
    return others(host).get("groups") or {}


def _site(variables, recipe, deploys, mistakes):
    """(plan.Site, what fleet_capacity says) of a host; what is wrong is noted in ``mistakes``."""
    folder = functools.partial(input_checks.check_folder, example="/srv/inference-fleet; empty for the system's own")
    choice = input_checks.check_choice
    root = read_checked(variables, "fleet_root", "", mistakes, lambda name, value: value == "" or folder(name, value))
    bind = read_checked(variables, "fleet_bind_address", "127.0.0.1", mistakes, input_checks.check_address)
    engine = read_checked(
        variables, "fleet_container_engine", container_launch.DEFAULT_ENGINE, mistakes,
        lambda name, value: choice(name, value, CONTAINER_ENGINES),
    )  # fmt: skip
    rule = read_checked(
        variables, "fleet_capacity", CAPACITY[0], mistakes, lambda name, value: choice(name, value, CAPACITY)
    )
    if "container" in {one.get("launcher") for one in (recipe, *recipe.get("servers", ()))}:
        with mistakes.noted():
            check_mirror(variables.get("fleet_registry_mirror"))
    has_key = False
    with mistakes.noted():
        has_key = server_keys.has_key(variables, deploys)
    digests = read_checked(variables, "fleet_require_digests", False, mistakes, input_checks.check_switch)
    secrets = {**plan.secrets_of(recipe), **(server_keys.SECRETS if has_key else {})}
    versions = {
        key: read_checked(variables, secret + "_version", "1", mistakes, input_checks.check_version)
        for key, secret in sorted(secrets.items())
        if secret and not is_file(secret)
    }
    site = plan.Site(
        root=str(root).rstrip("/"),
        bind=str(bind),
        secret_versions=tuple((key, str(version)) for key, version in versions.items()),
        container_engine=engine,
        api_key=has_key,
        require_digests=str(digests).strip().lower() in TRUE | {"1"},
        clustered=variables.get(services.CLUSTER) is not None,
    )
    return site, rule


def plan_fleet(hosts, variables_of, inventory_sources=(), deploys=False, run_plan=None):
    """{host: its plan_one()} for all ``hosts``, in order.

    variables_of(host) -> mapping. run_plan: RunPlan, whose plans are taken where they are still right. One FleetError
    has every mistake of the fleet, equal ones of several hosts once.
    """
    planned, mistakes = {}, {}

    @functools.cache
    def others(host):
        return HostVariables(host, variables_of(host), inventory_sources)

    for host in hosts:
        try:
            item = run_plan.recall(host, others, deploys) if run_plan else None
            if item is None:
                asked = {host: None}
                item = plan_one(others(host), deploys, functools.partial(_asked, asked, others))
                if run_plan:
                    run_plan.note(host, [others(one) for one in asked], deploys, item)
            planned[host] = item
        except FleetError as error:
            for one in error.problems:
                mistakes.setdefault(one.message, (one, []))[1].append(host)
    for message, pair in _one_machine(planned, variables_of):
        mistakes.setdefault(message, (FleetError("inventory.one-machine-twice", message), list(pair)))
    if mistakes:
        raise FleetError.together(error.within(some(where) + ": ") for error, where in mistakes.values())
    return planned


def _asked(asked, others, host):
    """others(host), and that it was asked for."""
    asked[host] = None
    return others(host)


def _one_machine(planned, variables_of):
    """(message, two hosts) for names of one machine whose servers would be in each other's way.

    One machine is one address, port and kind of connection that Ansible takes to it.
    """
    if any("ansible_host" in str(given) for given in context.CLIARGS.get("extra_vars") or ()):
        return  # an address of the command line is every host's, and says nothing about the inventory
    machines = {}
    for host, item in planned.items():
        if not item["servers"] or len(planned) < 2:
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


def plan_inventory(hosts, variables, deploys=False, run_plan=None):
    """plan_fleet of inventory hosts, read from the variables that ansible gives a task (hostvars and the sources)."""
    hostvars, sources = variables["hostvars"], variables.get("ansible_inventory_sources") or []
    return plan_fleet(hosts, lambda host: hostvars[host], sources, deploys, run_plan)


def plan_each(hosts, variables, run_plan=None):
    """{host: its part of plan_fleet()}, None for one that cannot be planned: who needs its plan gets the reason."""
    planned = {}
    for host in hosts:
        for deploys in (True, False):
            try:
                planned[host] = plan_inventory([host], variables, deploys, run_plan)[host]
                break
            except FleetError:
                planned[host] = None
    return planned


def inference_hosts(hosts, hostvars, deployed=False):
    """Those of ``hosts`` that have fleet_recipe. deployed: also those that have fleet_hardware alone; servers of an
    earlier plan may run there."""
    given = (HostVariables(host, hostvars[host]) for host in hosts)
    return [one.host for one in given if (deployed and "fleet_hardware" in one.names) or one.has_recipe]


def no_recipe():
    """The FleetError of an inventory without an inference host."""
    return FleetError(
        "inventory.no-recipe",
        "no host has the variable fleet_recipe, so there is nothing to deploy; allowed: %s. Set it in the inventory, "
        "for example in group_vars/all.yml.",
        (", ".join(recipes.available([recipes.OWN_RECIPES])),),
    )


def host_warnings(hosts, hostvars, play_hosts):
    """Sentences on hosts that the playbooks leave alone though somebody may expect something else.

    hosts: of the inventory. play_hosts: what --limit leaves of them.
    """
    given = {host: HostVariables(host, hostvars[host]) for host in hosts}
    ours = {host for host in hosts if given[host].has_recipe}
    warnings = []
    forgotten = [host for host in hosts if host not in ours and "fleet_hardware" in given[host].names]
    if forgotten:
        warnings.append(
            "%s: fleet_hardware is set, but fleet_recipe is not, so no servers are planned there. Set fleet_recipe "
            "(recipes: %s), or remove fleet_hardware."
            % (some(forgotten), ", ".join(recipes.available([recipes.OWN_RECIPES])))
        )
    if ours and not ours.intersection(play_hosts):
        warnings.append("No host that --limit leaves has fleet_recipe, so nothing is deployed. Change the limit.")
    return warnings


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
        lines = ["%s: %s." % (some(where), words) for words, where in problems.items()]
        raise FleetError(
            "inventory.secret-missing",
            "Secrets of servers have no value, nothing was changed:\n%s",
            ("\n".join(lines),),
        )
