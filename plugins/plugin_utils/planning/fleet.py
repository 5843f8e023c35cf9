# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's plan: applies recipes and planning to the variables of all hosts,
and reports all errors in one message."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

from ...module_utils.fleet_node.engines.registry import API_KEYS
from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.paths import NodePaths
from ...module_utils.fleet_node.host.server_spec import canonical
from ...module_utils.fleet_node.host.values import format_cpu_list
from ...module_utils.fleet_node.servers.api_keys import is_file
from ..base import checks as input_checks
from ..base.words import by_text, is_true, some
from ..engines import ENGINES
from ..measure import points
from ..platforms import PLATFORMS
from ..recipe import load as recipes
from ..recipe import overrides, tuning
from ..reporting.screen import folded
from . import capacity, plan, server_values, services, steps
from . import container as container_launch
from .hardware import parse_hardware
from .inventory import Hosts, cluster_of, one_machine
from .variables import check_variables, overlays_of, read_checked, recipe_paths


def plan_one(variables, deploys, others):
    """Return {"servers": entries, "deployment": resolved recipe or None, "capacity": […], "steps": […]} of a host.
    Raises FleetError.

    variables: HostVariables. deploys: whether servers that cannot fit are an error; they are not if servers are only
    stopped or their logs are read. others: Hosts. capacity:
    whether each server fits into the memory of its devices, see capacity.check. steps: the operations of a run on the
    host, see steps.steps_of.
    """
    mistakes = input_checks.Mistakes()
    mistakes.result_of(check_variables, variables)
    if mistakes.result_of(variables.get, "fleet_recipe") is None:
        mistakes.raise_any()
        return {"servers": [], "deployment": None, "capacity": [], "steps": []}
    recipe, path, layers, hardware = declared_of(variables, mistakes)
    site, rule = _site(variables, recipe or {}, deploys, mistakes)
    _check_profile(variables, recipe, mistakes)
    mistakes.raise_any()
    try:
        named = services.named_services(variables.host, recipe, others)
        found = services.endpoints(variables.host, recipe, named, ENGINES[recipe["engine"]].takes_one)
        signed = {name: one for name, one in named.items() if one.signs}
        site = dataclasses.replace(site, endpoints=tuple(found), signed=tuple(signed))
        entries = plan.plan_host(variables.host, recipe, hardware, site)
        used = {entry["name"].rpartition("-")[0] for entry in entries}
        deployment = plan.deployment(recipe, site, variables.host, used)
        deployment["service_clients"] = services.clients(entries, signed, NodePaths(site.root))
        if site.clustered and "frontend" in {entry["role"] for entry in entries}:
            workers = services.cluster_workers(variables.host, others, functools.partial(_planned, others))
            deployment["workers_elsewhere"] = [one for one in workers if one["host"] != variables.host]
        fits = with_notes(capacity.check(entries, deployment, hardware), entries, deployment, hardware)
        if rule == "warn":
            fits = capacity.overruled(fits)
        refused = capacity.refusals(fits) if deploys else ""
        if refused:
            raise FleetError("plan.does-not-fit-memory", refused)
        run = steps.steps_of(variables, entries, deployment)
        return {"servers": entries, "deployment": deployment, "capacity": fits, "steps": run}
    except FleetError as error:
        used = [name for name, layer in layers if layer]
        where = "%s%s: " % (recipes.label_of(path), " with " + ", ".join(used) if used else "")
        raise error.within(where) from error


def declared_of(variables, mistakes):
    """Return (recipe, its path, layers of overrides, Hardware) of a host with a fleet_recipe. A value is None if it is
    invalid; the error is noted in `mistakes`."""
    before = len(mistakes.errors)
    recipe, path, layers = None, None, []
    for key in overrides.override_names(variables.names):
        with mistakes.noted():
            layers.append((key, variables.get(key)))
    overlays = mistakes.result_of(overlays_of, variables)
    wanted = read_checked(variables, "fleet_tuning", None, mistakes, tuning.check_wanted)
    readable = len(mistakes.errors) == before
    with mistakes.noted():
        folders = recipe_paths(variables)
        path = recipes.find_recipe(variables.get("fleet_recipe"), folders)
        resolve = functools.partial(recipes.resolve_recipe, path, layers, overlays or (), folders=folders)
        recipe = resolve() if readable else None
    hardware = mistakes.result_of(lambda: parse_hardware(variables.get("fleet_hardware"), "inventory"))
    if recipe and hardware and wanted is not None:
        recipe = mistakes.result_of(resolve, wanted, hardware.accelerator) or recipe
    return recipe, path, layers, hardware


def _check_profile(variables, recipe, mistakes):
    """Note a benchmark_profile that the recipe does not have."""
    name = None
    with contextlib.suppress(FleetError):  # check_variables() has noted it, or a play templates it later
        name = variables.peek("benchmark_profile")
    if recipe and name and isinstance(name, str):
        mistakes.result_of(points.profile_of, recipe, name)


def _planned(others, host):
    """Return (recipe, Hardware) of a host, None if it has no recipe. Raises FleetError, which names the host."""
    variables, mistakes, key = others(host), input_checks.Mistakes(), ("declared", host)
    if key not in others.made:
        try:
            given = variables.get("fleet_recipe") is not None
            recipe, _path, _layers, hardware = declared_of(variables, mistakes) if given else (None,) * 4
            mistakes.raise_any()
        except FleetError as error:
            raise error.within(host + ": ") from error
        others.made[key] = (recipe, hardware) if given else None
    return others.made[key]


def _site(variables, recipe, deploys, mistakes):
    """Return (plan.Site, the value of fleet_capacity) of a host. Errors are noted in ``mistakes``."""
    # check_variables() notes errors in these variables
    read = functools.partial(read_checked, variables, mistakes=mistakes)
    root, bind = read("fleet_root", ""), read("fleet_bind_address", "127.0.0.1")
    engine = read("fleet_container_engine", container_launch.DEFAULT_ENGINE)
    rule = read("fleet_capacity", "refuse")
    has_key = mistakes.result_of(server_values.has_key, variables, deploys)
    digests = read("fleet_require_digests", False)
    secrets = {**plan.secrets_of(recipe), **(server_values.SECRETS if has_key else {})}
    versions = tuple(
        (key, str(read(secret + "_version", "1", check=input_checks.check_version)))
        for key, secret in sorted(secrets.items())
        if secret and not is_file(secret)
    )
    site = plan.Site(
        str(root).rstrip("/"), str(bind), versions, engine, has_key,
        require_digests=is_true(digests),
        clustered=cluster_of(variables) is not None,
    )  # fmt: skip
    return site, rule


def plan_fleet(hosts, variables_of, inventory_sources=(), deploys=False, run_plan=None, limit=None):
    """plan_hosts() for hosts whose variables are variables_of(host) -> mapping."""
    return plan_hosts(hosts, Hosts(variables_of, inventory_sources), deploys, run_plan, limit)


def plan_hosts(hosts, others, deploys=False, run_plan=None, limit=None):
    """Return {host: its plan_one()} for all ``hosts``, in order.

    others: Hosts. run_plan: RunPlan, whose plans are used if they are still valid. Raises one FleetError with all
    mistakes of the fleet; equal mistakes of several hosts are reported once. limit: the hosts whose mistakes count,
    None for all; other hosts that cannot be planned are left out.
    """
    planned = {}

    def make_one(host):
        item = run_plan.recall(host, others, deploys) if run_plan else None
        if item is None:
            item = plan_one(others(host), deploys, others)
            if run_plan:
                workers = others.made.get(("cluster", cluster_of(others(host))))
                run_plan.note(others(host), deploys, item, workers)
        planned[host] = item

    mistakes = _mistakes_of(hosts, make_one, limit)
    for error, together in (*one_machine(planned, others), *_clusters(planned, others)):
        if limit is None or set(together) & set(limit):
            mistakes.setdefault(error.message, (error, list(together)))
    _raise_any(mistakes)
    return planned


def _clusters(planned, others):
    """Yield (FleetError, hosts) for deployments on several hosts that do not agree. others: Hosts."""
    found = {}
    for host, item in planned.items() if len(planned) > 1 else ():
        cluster = cluster_of(others(host))
        for entry in item["servers"] if cluster is not None else ():
            found.setdefault((entry["engine"], cluster), []).append(entry)
    for (engine, _cluster), entries in found.items():
        hosts, mistakes = list(dict.fromkeys(entry["host"] for entry in entries)), input_checks.Mistakes()
        if len(hosts) > 1:
            ENGINES[engine].check_cluster(entries, mistakes)
        yield from ((error, hosts) for error in mistakes.errors)


def _mistakes_of(hosts, work, limit=None):
    """Return {message: (FleetError, hosts)} of the errors that work(host) raises. limit: hosts that count."""
    mistakes = {}
    for host in hosts:
        try:
            work(host)
        except FleetError as error:
            for one in error.problems if limit is None or host in limit else ():
                mistakes.setdefault(one.message, (one, []))[1].append(host)
    return mistakes


def _raise_any(mistakes):
    """Raises one FleetError of _mistakes_of(), if there are any."""
    if mistakes:
        raise FleetError.together(error.within(some(where) + ": ") for error, where in mistakes.values())


def plan_each(hosts, others, run_plan=None, reasons=None):
    """Return {host: its part of plan_hosts()}, None for a host that cannot be planned. reasons: a mapping that receives
    {host: reason} of these hosts."""
    planned, reasons = {}, {} if reasons is None else reasons
    for host in hosts:
        for deploys in (True, False):
            try:
                planned[host] = plan_hosts([host], others, deploys, run_plan)[host]
                reasons.pop(host, None)
                break
            except FleetError as error:
                planned[host], reasons[host] = None, error.message
    return planned


def host_warnings(hosts, others):
    """Return warnings about hosts that the playbooks ignore, although the inventory suggests otherwise.

    hosts: of the inventory. others: Hosts.
    """
    forgotten = [host for host in hosts if not others(host).has_recipe and "fleet_hardware" in others(host).names]
    words = (
        "%s: fleet_hardware is set, but fleet_recipe is not, so no servers are planned there. Set fleet_recipe "
        "(recipes: %s), or remove fleet_hardware."
    )
    return forgotten and [words % (some(forgotten), ", ".join(recipes.available([recipes.OWN_RECIPES])))]


def check_secrets(planned, hosts, others):
    """Raises FleetError with all secrets of the hosts' planned servers that have no value.

    planned: of plan_hosts(), others: Hosts. Encrypted values require the vault's password.
    """
    found = ((server_values.missing_secrets(planned[host]["servers"], others(host)), host) for host in hosts)
    problems = by_text((words, host) for sentences, host in found for words in sentences)
    if problems:
        lines = ["%s: %s." % (some(where), words) for words, where in problems.items()]
        raise FleetError("inventory.secret-missing", "\n".join(lines))


def with_notes(found, entries, deployment, hardware):
    """Return capacity.check's result, with the notes of each server's engine and platform among its warnings.

    deployment: the resolved recipe. hardware: Hardware.
    """
    entries, result = {entry["name"]: entry for entry in entries}, []
    for item in found:
        entry = entries[item["server"]]
        own = (deployment.get("instances") or {}).get(entry["name"]) or {}
        recipe = plan.layered(plan.for_group(deployment, capacity.group_of(entry, deployment)), own)
        recipe["container"] = recipe.get("container") if entry["container"] else None
        engine = ENGINES[entry["engine"]].running(recipe.get("backend"))
        notes = [*engine.notes(entry, engine.version(recipe), hardware), *PLATFORMS[entry["platform"]].notes(entry)]
        result.append({**item, "warnings": [*item["warnings"], *notes]})
    return result


def make(hosts, play_hosts, ours, others, run_plan, options):
    """Return ({plan, warnings, report}, whether all hosts could be planned). Raises FleetError.

    hosts: the hosts to plan. play_hosts: those that --limit selects. ours: those with a recipe. others: Hosts.
    run_plan: RunPlan that receives the plan. options: the arguments of inference.fleet.plan.
    """
    planned, reasons = {}, {}
    if options["only_check"]:
        _raise_any(_mistakes_of(play_hosts, lambda host: check_variables(others(host))))
        hosts = play_hosts = []
    elif options["strict"]:
        planned = plan_hosts(hosts, others, True, run_plan, play_hosts)
    else:
        planned = {host: item for host, item in plan_each(hosts, others, run_plan, reasons).items() if item}
        run_plan.refuse({host: why for host, why in reasons.items() if host in play_hosts})
    if options["secrets"]:
        check_secrets(planned, play_hosts, others)
    if options["restarts"]:
        restarted = [host for host in play_hosts if host in ours and host in planned]
        batches = functools.partial(server_values.batches, meant=options["restart"])
        _raise_any(_mistakes_of(restarted, lambda host: batches(planned[host]["servers"])))
    warnings = host_warnings(hosts, others)
    outside = [host for host in hosts if host not in planned and host not in play_hosts]
    if outside:
        warnings.append("%s: outside of --limit, and cannot be planned. plan.yml reports the reason." % some(outside))
    warnings += [*capacity_warnings(planned), *exposed_warnings(planned)]
    report = None
    if options["report"]:
        report = [plan_table(planned), *tuning_tables(planned), capacity_table(planned)]
    return {"plan": run_plan.packed, "warnings": warnings, "report": report}, len(planned) == len(hosts)


def plan_table(planned):
    """Return the plan as a report {title, columns, rows} for people.
    Hosts whose plans differ only in their own address share rows."""
    rows, equal = [], {}
    for host, item in planned.items():
        equal[host] = str([canonical({**entry, "host": None, "hash": None}) for entry in item["servers"]])
        for bind in {entry["bind"] for entry in item["servers"]} - {"0.0.0.0", "::"}:
            if not server_values.is_loopback(bind):
                equal[host] = equal[host].replace(bind, "${bind}")
        for entry in item["servers"]:
            address = "%s:%s" % (entry["bind"], entry["port"]) if entry["port"] else "-"
            recipe = " + ".join([item["deployment"]["name"], *item["deployment"].get("overlays", ())])
            rows.append([
                host, entry["name"], entry["role"], address, format_cpu_list(entry["devices"]) or "-",
                entry["model_id"], recipe, ", ".join(entry["start"]["after"]) or "-", entry["hash"][:12],
            ])  # fmt: skip
    columns = ["host", "server", "role", "address", "devices", "model id", "recipe", "after", "hash"]
    return {"title": "Plan", "columns": columns, "rows": folded(columns, rows, equal)}


def tuning_tables(planned):
    """Return the applied measured settings (fleet_tuning) as reports [{title, columns, rows}]; [] if there are none."""
    found = by_text(((item["deployment"] or {}).get("tuning"), host) for host, item in planned.items())
    rows = [[some(hosts), text] for text, hosts in found.items() if text]
    return [{"title": "Tuning", "columns": ["host", "setting"], "rows": rows}] if rows else []


def capacity_table(planned):
    """Return the capacity as a report {title, columns, rows}, with one row for equal servers of a host.
    Sizes of one device."""
    rows = []
    for host, item in planned.items():
        for names, fits in capacity.grouped(item["capacity"]):
            sizes = [fits.get(key) for key in capacity.SIZES]
            sizes = [None if size is None else capacity.gib(size * capacity.GIB) for size in sizes]
            rows.append([host, capacity.servers_text(names), *sizes, fits["verdict"], fits["text"]])
    columns = ["host", "server", "memory", "weights", "kv cache", "verdict", "details"]
    return {"title": "Capacity", "columns": columns, "rows": rows}


def capacity_warnings(planned):
    """Return warnings about capacity, as sentences for people.
    Equal warnings of several servers or hosts are merged."""
    found = []
    for host, item in planned.items():
        warned = by_text((one, fits["server"]) for fits in item["capacity"] for one in fits["warnings"])
        found += [("%s: %s" % (capacity.servers_text(names), warning), host) for warning, names in warned.items()]
    return ["%s: %s" % (some(hosts), text) for text, hosts in by_text(found).items()]


def exposed_warnings(planned):
    """Return [a sentence on all servers that listen beyond loopback and require no API key]; [] if there are none."""
    exposed = [
        entry
        for item in planned.values()
        for entry in item["servers"]
        if entry["port"] and not server_values.is_loopback(entry["bind"]) and not set(API_KEYS) & set(entry["secrets"])
    ]
    hosts, addresses = (list(dict.fromkeys(entry[key] for entry in exposed)) for key in ("host", "bind"))
    words = (
        "%s: the servers listen on %s (fleet_bind_address) and ask for no API key, so any client that reaches "
        "them can use them. Set fleet_api_key, or leave fleet_bind_address at 127.0.0.1 and put a gateway that asks "
        "for a key in front."
    )
    return [words % (some(hosts), some(addresses))] if exposed else []
