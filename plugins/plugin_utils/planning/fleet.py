# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's plan: what every host's variables say, put through recipe and plan, errors gathered into one message."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.api_keys import is_file
from ansible_collections.inference.fleet.plugins.plugin_utils.base import checks as input_checks
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import TRUE, some
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.measure import points
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import (
    capacity,
    notes,
    plan,
    restart,
    server_keys,
    services,
    steps,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import ACCELERATORS, parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.host_variables import Hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import one_machine
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.site_recipes import check_inventory_folders
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import (
    check_variables,
    overlays_of,
    read_checked,
    recipe_paths,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides, tuning

UNPLANNED = {"servers": [], "deployment": None, "capacity": [], "steps": []}  # of a host without fleet_recipe


def plan_one(variables, deploys=False, others=None, made=None):
    """{"servers": entries, "deployment": resolved recipe or None, "capacity": […], "steps": […]} of one host. Raises
    FleetError.

    variables: HostVariables. deploys: whether servers that cannot fit are a mistake; who stops them, or reads their
    logs, need not care. others: host -> HostVariables of the inventory's hosts. made: of Hosts. capacity: whether each
    server fits into the memory of its devices, see capacity.check. steps: what a run does there, see steps.steps_of.
    """
    made = {} if made is None else made
    mistakes = input_checks.Mistakes()
    check_variables(variables, mistakes)
    name = None
    with mistakes.noted():
        name = variables.get("fleet_recipe")
    if name is None:
        mistakes.raise_any()
        return dict(UNPLANNED)
    recipe, path, layers, hardware = declared_of(variables, mistakes)
    site, rule = _site(variables, recipe or {}, deploys, mistakes)
    _check_profile(variables, recipe, mistakes)
    mistakes.raise_any()
    label = recipes.label_of(path)
    try:
        planned_of = functools.partial(_planned, others, made)
        groups = functools.partial(_groups, others, variables.host)
        if others is not None:
            takes_one = ENGINES[recipe["engine"]].takes_one
            found = services.endpoints(variables.host, recipe, groups, others, planned_of, takes_one, made)
            named = services.named_services(variables.host, recipe, groups, others)
            signed = {name: one for name, one in named.items() if one.signs}
            site = dataclasses.replace(site, endpoints=found, signed=tuple(signed))
        entries = plan.plan_host(variables.host, recipe, hardware, site)
        used = {entry["name"].rpartition("-")[0] for entry in entries}
        deployment = plan.deployment(recipe, site, variables.host, used)
        if others is not None:
            deployment["service_clients"] = services.clients(entries, signed, NodePaths(site.root))
        if others is not None and site.clustered and "frontend" in {entry["role"] for entry in entries}:
            found = services.cluster_workers(variables.host, groups, others, planned_of, made)
            deployment["workers_elsewhere"] = services.elsewhere(found, variables.host)
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
        run = steps.steps_of(variables, entries, deployment)
        return {"servers": entries, "deployment": deployment, "capacity": fits, "steps": run}
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


def _check_profile(variables, recipe, mistakes):
    """Note a benchmark_profile that the recipe does not have."""
    name = None
    with contextlib.suppress(FleetError):  # check_variables() has noted it, or a play is to template it
        name = variables.peek("benchmark_profile")
    if recipe and name and isinstance(name, str):
        with mistakes.noted():
            points.profile_of(recipe, name)


def _check_tuning(name, value):
    if value is not None:
        tuning.check_wanted(name, value)


def _planned(others, made, host):
    """(recipe, Hardware) of a host, None where it has no recipe."""
    variables, mistakes = others(host), input_checks.Mistakes()
    if ("declared", host) not in made:
        found = None
        if variables.get("fleet_recipe") is not None:
            recipe, _path, _layers, hardware = declared_of(variables, mistakes)
            mistakes.raise_any()
            found = recipe, hardware
        made["declared", host] = found
    return made["declared", host]


def _groups(others, host):
    return others(host).get("groups") or {}


def _site(variables, recipe, deploys, mistakes):
    """(plan.Site, what fleet_capacity says) of a host; what is wrong is noted in ``mistakes``."""
    # what is wrong with these is noted by check_variables()
    read = functools.partial(read_checked, variables, mistakes=mistakes)
    root = read("fleet_root", "")
    bind = read("fleet_bind_address", "127.0.0.1")
    engine = read("fleet_container_engine", container_launch.DEFAULT_ENGINE)
    rule = read("fleet_capacity", "refuse")
    has_key = False
    with mistakes.noted():
        has_key = server_keys.has_key(variables, deploys)
    digests = read("fleet_require_digests", False)
    secrets = {**plan.secrets_of(recipe), **(server_keys.SECRETS if has_key else {})}
    versions = {
        key: read(secret + "_version", "1", check=input_checks.check_version)
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


def plan_fleet(hosts, variables_of, inventory_sources=(), deploys=False, run_plan=None, limit=None):
    """plan_hosts() of hosts whose variables are variables_of(host) -> mapping."""
    return plan_hosts(hosts, Hosts(variables_of, inventory_sources), deploys, run_plan, limit)


def plan_hosts(hosts, others, deploys=False, run_plan=None, limit=None):
    """{host: its plan_one()} for all ``hosts``, in order.

    others: Hosts. run_plan: RunPlan, whose plans are taken where they are still right. One FleetError has every mistake
    of the fleet, equal ones of several hosts once. limit: the hosts whose mistakes count, all for None; others that
    cannot be planned are left out.
    """
    planned, mistakes = {}, {}
    check_inventory_folders(others.inventory_sources)
    for host in hosts:
        try:
            item = run_plan.recall(host, others, deploys) if run_plan else None
            if item is None:
                asked = {host: None}
                item = plan_one(others(host), deploys, functools.partial(_asked, asked, others), others.made)
                if run_plan:
                    everyone = None
                    if "workers_elsewhere" in (item["deployment"] or ()):
                        everyone = services.noted_workers(others.made, others(host))
                    run_plan.note(host, [others(one) for one in asked], deploys, item, everyone)
            planned[host] = item
        except FleetError as error:
            for one in error.problems if limit is None or host in limit else ():
                mistakes.setdefault(one.message, (one, []))[1].append(host)
    for message, pair in one_machine(planned, others):
        if limit is None or set(pair) & set(limit):
            mistakes.setdefault(message, (FleetError("inventory.one-machine-twice", message), list(pair)))
    _raise_any(mistakes)
    return planned


def _raise_any(mistakes):
    """One FleetError of {message: (FleetError, hosts)}."""
    if mistakes:
        raise FleetError.together(error.within(some(where) + ": ") for error, where in mistakes.values())


def check_hosts(hosts, others):
    """FleetError with what is wrong in the variables of hosts, whether or not they are inference hosts.

    others: Hosts.
    """
    mistakes = {}
    check_inventory_folders(others.inventory_sources)
    for host in hosts:
        found = input_checks.Mistakes()
        check_variables(others(host), found)
        for one in (one for error in found.errors for one in error.problems):
            mistakes.setdefault(one.message, (one, []))[1].append(host)
    _raise_any(mistakes)


def check_restarted(planned, hosts, meant):
    """FleetError unless the servers `meant` (see restart.batches) are planned for each of the hosts."""
    mistakes = {}
    for host in hosts:
        try:
            if host in planned:
                restart.batches(planned[host]["servers"], meant)
        except FleetError as error:
            mistakes.setdefault(error.message, (error, []))[1].append(host)
    _raise_any(mistakes)


def _asked(asked, others, host):
    """others(host), and that it was asked for."""
    asked[host] = None
    return others(host)


def plan_each(hosts, others, run_plan=None, reasons=None):
    """{host: its part of plan_hosts()}, None for one that cannot be planned. reasons: takes {host: why} of those."""
    planned = {}
    for host in hosts:
        for deploys in (True, False):
            try:
                planned[host] = plan_hosts([host], others, deploys, run_plan)[host]
                break
            except FleetError as error:
                planned[host] = None
                if reasons is not None and not deploys:
                    reasons[host] = error.message
    return planned


def host_warnings(hosts, others):
    """Sentences on hosts that the playbooks leave alone though somebody may expect something else.

    hosts: of the inventory. others: Hosts.
    """
    ours = {host for host in hosts if others(host).has_recipe}
    warnings = []
    forgotten = [host for host in hosts if host not in ours and "fleet_hardware" in others(host).names]
    if forgotten:
        warnings.append(
            "%s: fleet_hardware is set, but fleet_recipe is not, so no servers are planned there. Set fleet_recipe "
            "(recipes: %s), or remove fleet_hardware."
            % (some(forgotten), ", ".join(recipes.available([recipes.OWN_RECIPES])))
        )
    return warnings


def check_secrets(planned, hosts, others):
    """FleetError that names every secret of the hosts' planned servers that has no value.

    planned: of plan_hosts(), others: Hosts. Vaults must be open for it.
    """
    problems = {}
    for host in hosts:
        for words in server_keys.missing_secrets(planned[host]["servers"], others(host)):
            problems.setdefault(words, []).append(host)
    if problems:
        lines = ["%s: %s." % (some(where), words) for words, where in problems.items()]
        raise FleetError(
            "inventory.secret-missing",
            "Secrets of servers have no value, nothing was changed:\n%s",
            ("\n".join(lines),),
        )
