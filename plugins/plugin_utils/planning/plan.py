# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: a pure function from a recipe and declared hardware to the list of servers of a host."""

from __future__ import annotations

import dataclasses
import posixpath
import re

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.cpu_list import parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import NAME, SCHEMA, check_entries, entry_hash
from ansible_collections.inference.fleet.plugins.module_utils.weights import hub
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import (
    ENGINES,
    canonical_flag,
    effective,
    flag_argv,
    text,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.models.gpt_oss import MODELS
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import artifacts, server_keys
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import Hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import neuron
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import rules as recipe_rules
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.checks import Mistakes, check_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import apply, group_name
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import show

PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
HUB_DEFAULTS = {"include": [], "exclude": list(hub.DEFAULT_EXCLUDE), "workers": 8}
START = {"order": "together", "restart_with_leader": False, "budget_s": 300, "poll_s": 2, "health_path": "/health"}
PORT_KINDS = ("metrics", "system", "side_channel")
FIRST_PORT = 1024  # those below are the superuser's
MAX_SERVERS = 1024  # of a host
MAX_WORD = 128 * 1024 - 64  # of an argv or environment: MAX_ARG_STRLEN, less the variable's name
SYSTEM_USER = "inference-fleet"
HOME = re.compile(r"^/home/([a-z_][a-z0-9_-]*)/")


@dataclasses.dataclass(frozen=True)
class Site:
    """What the inventory says beside recipe and hardware.

    root: fleet_root. bind: address that servers listen on. secret_versions: {ENV: version} as pairs. container_engine:
    what a recipe's container.engine auto means. api_key: whether fleet_api_key holds one.
    """

    root: str = ""
    bind: str = "127.0.0.1"
    secret_versions: tuple = ()
    container_engine: str = container_launch.DEFAULT_ENGINE
    api_key: bool = False


@dataclasses.dataclass(frozen=True)
class _Host:
    """What is the same for all servers of a host. names: {group: [server]}, context: placeholders with their values."""

    recipe: dict
    prepared: dict
    hardware: Hardware
    site: Site
    paths: NodePaths
    context: dict
    names: dict


@dataclasses.dataclass(frozen=True)
class _Given:
    """What recipe, group and instance give one server; placeholders as they are written, nothing is null."""

    command: list
    arguments: dict
    environment: dict
    config: dict


@dataclasses.dataclass(frozen=True)
class _Started:
    """What one server is started with. arguments: {flag: value} as in the recipe, argv: all of it as words, of which
    command are the first."""

    command: list
    argv: list
    arguments: dict
    environment: dict
    config: dict


def ranges(numbers):
    """Numbers as the runtimes take them: [0, 1, 2, 5] -> "0-2,5". Sorted, each once."""
    parts = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join("%d" % low if low == high else "%d-%d" % (low, high) for low, high in parts)


def substitute(value, context, where):
    """``value`` with each ${name} replaced from ``context``; $${ stands for ${. Texts in lists and mappings too.

    FleetError names the place, the placeholder and those allowed. A placeholder whose value is None has no value here
    (a port that is not set) and is an error as well.
    """
    if isinstance(value, dict):
        for key in value:
            if PLACEHOLDER.search(key):
                raise FleetError(
                    "plan.placeholder-in-key",
                    "%s has the key %s; a key holds no placeholder, its value may. Write the name itself.",
                    (where, show(key)),
                )
        return {key: substitute(item, context, "%s.%s" % (where, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, context, "%s[%d]" % (where, index)) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def one(match):
        if match.group(0) == "$${":
            return "${"
        name = match.group(1)
        if not match.group(2):
            raise FleetError(
                "plan.placeholder-open",
                "%s is %s, where ${ has no } behind it; allowed: ${name}, or $${ for ${ itself. Close it, or "
                "write $${.",
                (where, show(value)),
            )
        if context.get(name) is None:
            close = recipe_rules.close_to(name.strip(), [key for key in context if context[key] is not None])
            raise FleetError(
                "plan.placeholder-unknown",
                "%s uses ${%s}, which %s%s; allowed: %s",
                (
                    where,
                    name,
                    "has no value here" if name in context else "is unknown",
                    "; did you mean ${%s}?" % close if close else "",
                    ", ".join("${%s}" % key for key in sorted(context) if context[key] is not None)
                    + ". Use one of these.",
                ),
            )
        return str(context[name])

    return PLACEHOLDER.sub(one, value)


def base_context(recipe, paths, host):
    """Placeholders that hold for a whole host."""
    return {
        "host": host,
        "recipe": recipe["name"],
        "root": paths.root,
        "lib": paths.lib,
        "models": paths.models,
        "venvs": paths.venvs,
        "encodings": paths.encodings,
    }


def deployment(recipe, site, host):
    """The recipe as the roles read it: paths of model, draft and venv are resolved, defaults are filled in."""
    context = base_context(recipe, NodePaths(site.root), host)
    result = dict(recipe)
    for key in ("model", "venv"):
        if recipe.get(key):
            result[key] = substitute(recipe[key], context, key)
    model = result["model"]
    example = "/srv/models/gpt-oss-120b"
    for key, value in (("path", model["path"]), ("source_path", model.get("source_path")),
                       ("draft.path", (model.get("draft") or {}).get("path"))):  # fmt: skip
        if value is not None:
            check_folder("model.%s" % key, value, example, site.root, key != "source_path")
    if result.get("venv"):
        made = result["venv"].get("create", True)
        check_folder("venv.path", result["venv"]["path"], "/opt/vllm", site.root if made else "", made)
    result["model"] = {**model, **{key: model.get(key) or value for key, value in HUB_DEFAULTS.items()}}
    if model.get("exclude") is not None:
        result["model"]["exclude"] = model["exclude"]
    result["hub_packages"] = list(hub.PACKAGES.get(model["source"], ()))
    known = MODELS.get(result["model"]["repo"])
    if known:
        # A draft is held against its target before that is on any disk.
        result["model"] = {**result["model"], "hidden_size": known.hidden, "vocab_size": known.vocab}
    if result.get("venv"):
        result["venv"] = {"create": True, **result["venv"]}
    result["start"] = {**START, **recipe.get("start", {})}
    result["verify"] = {
        "effort_parameter": "reasoning_effort", "responses_api": True, "timeout_s": 120, **recipe.get("verify", {})
    }  # fmt: skip
    result["probes"] = recipe.get("probes", [])
    return result


def check_needs(recipe, hardware):
    """FleetError unless the declared hardware is of the kind that the recipe needs."""
    needs = recipe["needs"]
    if hardware.accelerator not in needs["accelerators"]:
        raise FleetError(
            "plan.accelerator-not-for-recipe",
            "fleet_hardware.accelerator is '%s'; recipe %s runs on: %s. Correct it, or choose another fleet_recipe.",
            (hardware.accelerator, recipe["name"], ", ".join(needs["accelerators"])),
        )
    if hardware.platform != recipe["platform"]:
        raise FleetError(
            "plan.platform-not-for-recipe",
            "recipe %s is for platform %s, but fleet_hardware.accelerator '%s' is of platform %s. Choose another "
            "fleet_recipe.",
            (recipe["name"], recipe["platform"], hardware.accelerator, hardware.platform),
        )
    if recipe["platform"] == "ascend" and recipe["model"]["format"] == "mxfp4":
        raise FleetError(
            "plan.format-not-for-platform",
            "model.format is 'mxfp4', which no Ascend NPU can load; allowed: 'bf16', with a checkpoint of that format.",
        )
    if "lnc" in needs and hardware.lnc != needs["lnc"]:
        raise FleetError(
            "plan.lnc-not-for-recipe",
            "fleet_hardware.lnc is %d; recipe %s needs %d. Set that where the node has it.",
            (hardware.lnc, recipe["name"], needs["lnc"]),
        )
    if hardware.memory_gib and hardware.memory_gib < needs.get("device_memory_gib", 0):
        raise FleetError(
            "plan.device-memory-too-small",
            "fleet_hardware.memory_gib is %g; recipe %s needs %g for each device. Correct it, or choose another "
            "fleet_recipe.",
            (hardware.memory_gib, recipe["name"], needs["device_memory_gib"]),
        )


def group_counts(recipe, hardware):
    """How many servers each group gets: [int]. FleetError where they do not fit or do not divide."""
    groups = recipe["servers"]
    automatic = [group for group in groups if group["count"] == "auto"]
    if len(automatic) > 1:
        raise FleetError(
            "plan.count-auto-twice",
            "%s are 'auto'; allowed for one group only. Give the others a number.",
            (" and ".join("servers.%s.count" % group_name(group) for group in automatic),),
        )
    numbered = [group for group in groups if group["count"] != "auto"]
    fixed = sum(group["count"] * group["devices"] for group in numbered)
    left = hardware.units - fixed
    if left < 0:
        taking = [group for group in numbered if group["count"] and group["devices"]]
        raise FleetError(
            "plan.devices-too-few",
            "the servers need %d %ss (%s), but %s has %d. Lower %s or devices there, or correct fleet_hardware.",
            (
                fixed,
                hardware.unit,
                " + ".join("%s: %d x %d" % (group_name(group), group["count"], group["devices"]) for group in taking),
                hardware.accelerator,
                hardware.units,
                " or ".join("servers.%s.count" % group_name(group) for group in taking),
            ),
        )
    counts = [group["count"] if group in numbered else _automatic(group, left, hardware) for group in groups]
    if not 0 < sum(counts) <= MAX_SERVERS:
        raise FleetError(
            "plan.servers-too-many",
            "%s %d servers on the host; allowed: 1 to %d. Change the count%s.",
            (
                " + ".join("servers.%s.count" % group_name(group) for group in groups) + " is",
                sum(counts),
                MAX_SERVERS,
                "" if sum(counts) else ", or remove fleet_recipe from a host that is to have none",
            ),
        )
    return counts


def _automatic(group, left, hardware):
    """How many servers of ``group``, whose count is auto, ``left`` devices make."""
    name, size = group_name(group), group["devices"]
    if not size:
        raise FleetError(
            "plan.count-auto-without-devices",
            "servers.%s.count is auto, but servers.%s.devices is 0; set the count to a number.",
            (name, name),
        )
    if left < size or left % size:
        fits = [str(part) for part in range(1, left + 1) if left % part == 0 and hardware.fits_chips(part)]
        raise FleetError(
            "plan.devices-do-not-divide",
            "%d %ss do not divide into servers of %d (servers.%s.devices, with count auto); allowed devices: %s.",
            (left, hardware.unit, size, name, ", ".join(fits) or "none, all are taken"),
        )
    return left // size


def plan_host(host, recipe, hardware, site):
    """The servers of ``host``: a list of plan entries (module_utils/server_spec.py), in the order of the recipe.

    Pure: no node is touched. The same input gives the same bytes. Raises FleetError with one sentence; the caller
    says for which host.
    """
    check_needs(recipe, hardware)
    paths = NodePaths(site.root)
    prepared = deployment(recipe, site, host)
    context = base_context(recipe, paths, host)
    context["model"] = prepared["model"]["path"]
    context["model_id"] = prepared["model"]["id"]
    draft = prepared["model"].get("draft")
    context["draft"] = draft["path"] if draft else None
    context["draft_tokens"] = draft["tokens"] if draft else None
    context["venv"] = prepared["venv"]["path"] if prepared.get("venv") else None
    context["bind"] = site.bind
    context["lnc"] = hardware.lnc

    counts = group_counts(recipe, hardware)
    names = _names(recipe, counts)
    unknown = sorted(set(recipe.get("instances", {})) - {name for group in names.values() for name in group})
    if unknown:
        raise FleetError(
            "plan.instance-unknown",
            "instances.%s is for a server that is not there; allowed: %s. Use one of these names.",
            (unknown[0], ", ".join(name for group in names.values() for name in group)),
        )
    host = _Host(recipe, prepared, hardware, site, paths, context, names)
    entries, keys, first, mistakes, failed = [], {}, 0, Mistakes(), set()
    for group, count in zip(recipe["servers"], counts):
        for index in range(count):
            devices = list(range(first, first + group["devices"]))
            first += group["devices"]
            own = (recipe.get("instances") or {}).get(names[group_name(group)][index])
            if own is None and group_name(group) in failed:
                continue  # for the same reasons
            try:
                entry, keys[names[group_name(group)][index]] = _entry(host, group, index, devices)
                entries.append(entry)
            except FleetError as error:
                failed |= {group_name(group)} if own is None else set()
                mistakes.keep(error)
    _check_ports(entries, recipe, mistakes)
    mistakes.raise_any()
    if recipe["platform"] == "neuron":
        artifacts.order(entries, keys, prepared["start"]["order"] == "leader-first")
    for entry in entries:
        entry["start"]["restart_with_leader"] &= bool(entry["start"]["after"])
        entry["hash"] = entry_hash(entry)
    check_entries(entries)
    return entries


def _names(recipe, counts):
    """{group name: [server names]}; FleetError where two are equal or too long."""
    names = {}
    for group, count in zip(recipe["servers"], counts):
        base = group_name(group)
        if base in names:
            raise FleetError(
                "plan.group-twice", "two groups of servers are named '%s'; give each its own name.", (base,)
            )
        names[base] = ["%s-%d" % (base, index) for index in range(count)]
        for name in names[base][-1:]:
            if not NAME.match(name):
                raise FleetError("plan.name-too-long", "server name '%s' is too long; allowed: 40 characters.", (name,))
    every = [name for group in names.values() for name in group]
    double = sorted({name for name in every if every.count(name) > 1})
    if double:
        raise FleetError("plan.name-twice", "two servers are named '%s'; rename one of the groups.", (double[0],))
    return names


def _entry(host, group, index, devices):
    """(entry without its hash, artifact key) of one server."""
    recipe, prepared, site = host.recipe, host.prepared, host.site
    name = host.names[group_name(group)][index]
    where = "server '%s'" % name
    own = recipe.get("instances", {}).get(name) or {}
    declared = _container(recipe, group, own, where)
    local = _context(host, group, own, index, devices)
    if declared and container_launch.has_own_network(declared):
        local["bind"] = "0.0.0.0"  # inside; the ports are published on the host's address
    given = _given(host, group, own, local)
    key = _artifact_key({**prepared, "container": declared}, host.hardware, len(devices), local, where, given)
    # Without a leader each server compiles for itself, so each has an artifact of its own.
    local["artifact_key"] = key if prepared["start"]["order"] == "leader-first" else "%s-%s" % (key, name)
    directories = _directories(host, name, local, where)
    local.update(directories)

    started = _started(host, group, given, local, devices, where)
    compiles = recipe["platform"] == "neuron" and bool(devices)
    if compiles:
        neuron.check_shape(where, group_name(group), host.hardware, devices, started.arguments)
        neuron.check_server(where, recipe, host.hardware, devices, started, directories, key)
    start = prepared["start"]
    after, leaders = _after(host, group, index, compiles, where)
    hooks = {"compile_cache": {"key": key, "leaders": leaders, "variable": neuron.ARTIFACTS}} if compiles else {}
    secrets = {key: value for key, value in recipe.get("secrets", {}).items() if value is not None}
    argv, environment = started.argv, started.environment
    if site.api_key:
        secrets, argv, environment = server_keys.give_keys(
            where, recipe["engine"], secrets, argv, environment, host.paths.engine_lib
        )
    versions = dict(site.secret_versions)
    entry = {
        "schema": SCHEMA,
        "host": host.context["host"],
        "name": name,
        "role": group["role"],
        "launcher": recipe.get("launcher", "process"),
        "platform": recipe["platform"],
        "engine": recipe["engine"],
        "devices": devices,
        "bind": site.bind,
        "port": local["port"],
        "ports": _ports(group, index),
        "command": argv,
        "arguments": effective(recipe["engine"], started.command, started.arguments, started.config),
        "environment": environment,
        "secrets": secrets,
        "secret_versions": {key: str(versions.get(key, "1")) for key in secrets},
        "config": started.config,
        "container": None,
        "launch": argv,
        "directories": directories,
        "user": None if site.root or declared else _user(prepared),
        "model_id": prepared["model"]["id"],
        "reasoning_field": recipe.get("reasoning_field", "reasoning"),
        "health": {
            "port": None,
            "path": start["health_path"],
            "budget_s": start["budget_s"],
            "poll_s": start["poll_s"],
        },
        "start": {"after": after, "restart_with_leader": start["restart_with_leader"]},
        "hooks": hooks,
        "cpus": cpus(group, own, devices, host.hardware, where),
        "weights": [path for path in (local["model"], local["draft"]) if path],
    }
    if declared:
        _contain(entry, declared, local, site, where)
    return entry, key


def _ports(group, index):
    """{kind: port} of a server's ports beside the one it answers on."""
    given = group.get("ports", {})
    return {kind: given[kind] + index for kind in PORT_KINDS if given.get(kind) is not None}


def _context(host, group, own, index, devices):
    """Placeholders of one server, but for its directories and its artifact's key; None: has no value here."""
    base = group_name(group)
    local = dict(host.context)
    local.update(
        name=host.names[base][index],
        group=base,
        index=index,
        role=group["role"],
        port=own.get("port") or (group["port"] + index if group.get("port") else None),
        devices=",".join(str(device) for device in devices) or None,
        device_range=ranges(devices) or None,
        device_count=len(devices),
        config=None,
        max_num_seqs=None,
    )
    ports = _ports(group, index)
    local.update({kind: ports.get(kind) for kind in PORT_KINDS})
    return local


def _given(host, group, own, local):
    """The _Given of one server: recipe, group and instance laid over each other.

    Sets ${config} and ${max_num_seqs} in its context.
    """
    recipe = host.recipe
    config = None
    arguments = _merged("arguments", recipe, group, own)
    sequences = {artifacts.flag_name(flag): value for flag, value in arguments.items()}.get("max-num-seqs")
    local["max_num_seqs"] = None if "${" in str(sequences) else sequences
    for layer in (recipe.get("config"), group.get("config"), own.get("config")):
        config = apply(config, layer) if config and layer else layer or config
    if config:
        ending = {"yaml": "yml", "json": "json"}[config["format"]]
        local["config"] = "%s/%s.%s" % (host.paths.configs, local["name"], ending)
    return _Given(
        group.get("command") or recipe["command"],
        arguments,
        _merged("environment", recipe, group, own),
        config,
    )


def _directories(host, name, local, where):
    """{kind: absolute path, in its shortest form: texts are compared} of one server."""
    directories = dict(host.paths.directories(name))
    directories.update(substitute(host.recipe.get("directories", {}), local, "directories"))
    for kind, path in directories.items():
        directories[kind] = "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else path
        check_folder(
            "%s: directories.%s" % (where, kind), directories[kind], "/scratch/${name}/%s" % kind, host.site.root
        )
    return directories


def _started(host, group, given, local, devices, where):
    """The _Started of what a server is given, with all placeholders filled in and held against the plan."""
    config = given.config
    if config:
        content = substitute(config["content"], local, "%s: config" % where)
        config = {"path": local["config"], "format": config["format"], "content": content}
    command = substitute(given.command, local, "%s: command" % where)
    if not command:
        raise FleetError("plan.command-empty", "%s: command is empty; allowed: the engine's argv.", (where,))
    engine = host.recipe["engine"]
    argv, values = list(command), {}
    for flag, value in given.arguments.items():
        values[flag] = substitute(value, local, "%s: arguments.%s" % (where, flag))
        argv += flag_argv(engine, flag, values[flag])
    written = recipe_rules.check_flags(where, engine, values)
    model = MODELS.get(host.prepared["model"]["repo"])
    content = config["content"] if config else {}
    recipe_rules.check_sizes(where, engine, values, content, given.environment, model)
    _check_plan(engine, values, written, where, len(devices), local, group_name(group))
    variables = {
        key: text(substitute(value, local, "%s: environment.%s" % (where, key)))
        for key, value in given.environment.items()
    }
    server_keys.check_not_in_the_open(where, engine, command, values, variables, config)
    _check_bytes(where, {"command": command})
    _check_bytes(where, {"arguments.%s" % flag: flag_argv(engine, flag, value) for flag, value in values.items()})
    _check_bytes(where, {"environment.%s" % key: [value] for key, value in variables.items()})
    return _Started(command, argv, values, variables, config)


def _after(host, group, index, compiles, where):
    """(servers that one starts after, those of them that are waited for only until their artifact is whole)."""
    names, start = host.names, host.prepared["start"]
    after = [other for group_after in group.get("after", []) for other in _group_names(names, group_after, where)]
    leader = names[group_name(group)][0]
    if start["order"] != "leader-first" or index == 0 or leader in after:
        return after, []
    # on other platforms, and for servers that restart together, the order has another reason
    return [*after, leader], [leader] if compiles and not start["restart_with_leader"] else []


def _contain(entry, declared, local, site, where):
    """Let the entry's engine run in the declared container."""
    argv, variables, config = entry["command"], entry["environment"], entry["config"]
    texts = [*argv, *variables.values(), *_texts(config["content"] if config else {})]
    inputs = [local["config"], local["model"], local["draft"], local["encodings"], NodePaths(site.root).engine_lib]
    entry["container"] = container_launch.resolve(
        substitute(declared, dict(local, device="${device}"), "%s: container" % where),
        where, site.container_engine, entry["devices"], inputs, list(entry["directories"].values()), texts,
    )  # fmt: skip
    if container_launch.has_own_network(declared):
        entry["container"]["flags"] += ["--publish=%s:%d:%d" % (_url_host(site.bind), number, number)
                                        for number in [entry["port"], *entry["ports"].values()] if number]  # fmt: skip
    by_name = container_launch.named_variables(entry["container"]["engine"], variables)
    container_launch.check_secrets(where, [*entry["secrets"], *by_name])
    entry["launch"] = container_launch.launch_argv(entry, site.root)
    _check_bytes(where, {"container": entry["launch"]})
    container_launch.check_texts(where, entry["launch"])


def _artifact_key(prepared, hardware, devices, local, where, given):
    """artifacts.artifact_key of what a server is given, read as every equal server reads it."""
    neutral = artifacts.neutral_context(local)
    return artifacts.artifact_key(
        prepared,
        hardware.accelerator,
        devices,
        hardware.lnc,
        substitute(given.command, neutral, "%s: command" % where),
        {flag: substitute(value, neutral, "%s: arguments.%s" % (where, flag))
         for flag, value in given.arguments.items()},
        {name: text(substitute(value, neutral, "%s: environment.%s" % (where, name)))
         for name, value in given.environment.items()},
        substitute(given.config["content"], neutral, "%s: config" % where) if given.config else None,
    )  # fmt: skip


def _user(prepared):
    """Who servers run as: the recipe's user; the owner of the home in which a machine image has its environment."""
    if prepared.get("user"):
        return prepared["user"]
    venv = prepared.get("venv") or {}
    home = HOME.match(venv.get("path", ""))
    return home.group(1) if home and not venv["create"] else SYSTEM_USER


def _container(recipe, group, own, where):
    """The recipe's container for one server, None where its engine is a process."""
    if recipe.get("launcher", "process") != "container":
        return None
    result = recipe.get("container") or {}
    for layer in (group.get("container"), own.get("container")):
        result = apply(result, layer) if layer else result
    result = {key: value for key, value in result.items() if value is not None}
    result["ulimits"] = {key: value for key, value in result.get("ulimits", {}).items() if value is not None}
    if not result.get("image"):
        raise FleetError(
            "plan.image-missing", "%s: launcher is container, but container.image is not set; give the image.", (where,)
        )
    return result


def _texts(value):
    """All texts in nested mappings and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _url_host(address):
    return "[%s]" % address if ":" in address else address


def cpus(group, own, devices, hardware, where):
    """CPUs of one server as text, None for all: the instance's own, else the group's, else those of its devices."""
    for layer in (own, group):
        if layer.get("cpus"):
            try:
                return ranges(parse_cpu_list(layer["cpus"]))
            except ValueError as error:
                raise FleetError("plan.cpus-invalid", "%s: cpus: %s.", (where, error)) from None
    near = dict(hardware.cpu_affinity)
    lacking = [device for device in devices if device not in near]
    if not near or len(lacking) == len(devices):
        return None
    if lacking:
        raise FleetError(
            "plan.affinity-incomplete",
            "%s: fleet_hardware.cpu_affinity lacks the device %d, but has others of the same server; give all or none.",
            (where, lacking[0]),
        )
    return ranges({number for device in devices for number in parse_cpu_list(near[device])})


def _merged(key, recipe, group, own):
    result = recipe.get(key, {})
    for layer in (group.get(key), own.get(key)):
        result = apply(result, layer) if layer else result
    return {name: value for name, value in result.items() if value is not None}


def _group_names(names, group, where):
    if group not in names:
        raise FleetError(
            "plan.after-unknown", "%s: after names the group '%s'; allowed: %s.", (where, group, ", ".join(names))
        )
    return names[group]


def _check_bytes(where, words):
    """argv and environment end at a NUL byte; one inside would cut what the engine sees. words: {key: its words}."""
    for key, values in words.items():
        for value in values:
            if "\0" in value:
                raise FleetError(
                    "plan.nul",
                    "%s: %s has %s with a NUL character, which no argv or environment can hold. Remove it.",
                    (where, key, show(value)),
                )
            if len(value.encode("utf-8", "surrogatepass")) >= MAX_WORD:
                raise FleetError(
                    "plan.word-too-long",
                    "%s: %s has a word of %d KiB; allowed: less than %d KiB, as Linux takes no longer one. Shorten it.",
                    (where, key, len(value) // 1024, MAX_WORD // 1024),
                )


def _check_plan(engine, values, written, where, devices, local, group):
    """Flags that say what the plan says must say the same. written: {canonical flag: as written in values}."""
    known = ENGINES[engine]
    sizes = {}
    for name in known.parallel:
        flag = written.get(name)
        if flag is not None:
            sizes[flag] = int(values[flag])
    served = written.get("served-model-name")
    if served is not None and local["model_id"] not in (
        values[served] if isinstance(values[served], list) else [text(values[served])]
    ):
        raise FleetError(
            "plan.model-id-not-served",
            "%s: arguments.%s is %s, but model.id is %s; the id must be among the names. Write ${model_id} there and "
            "set model.id.",
            (where, served, show(values[served]), show(local["model_id"])),
        )
    product = 1
    for size in sizes.values():
        product *= size
    if sizes and product != devices:
        raise FleetError(
            "plan.parallel-not-devices",
            "%s: %s needs %d devices, but the server is given %d. Set servers.%s.devices to %d or change the argument.",
            (where, " x ".join("arguments.%s %d" % item for item in sizes.items()), product, devices, group, product),
        )
    for name, key in ((known.port, "port"), (known.bind, "bind")):
        flag, expected = written.get(canonical_flag(engine, name)), local[key]
        plan_key = "servers.%s.port" % group if key == "port" else "fleet_bind_address"
        if flag is not None and expected is not None and str(values[flag]) != str(expected):
            raise FleetError(
                "plan.argument-not-as-planned",
                "%s: arguments.%s is %s, but %s is %s; write ${%s} there and set %s.",
                (where, flag, show(values[flag]), plan_key, expected, key, plan_key),
            )


def _check_ports(entries, recipe, mistakes):
    """All ports of a host are ones that its servers may have, and none is taken twice."""
    taken = {}
    for entry in entries:
        first = 1 if entry["launcher"] == "container" or entry["user"] == "root" else FIRST_PORT
        own = (recipe.get("instances") or {}).get(entry["name"]) or {}
        group = "servers.%s" % entry["name"].rpartition("-")[0]
        ports = [("instances.%s.port" % entry["name"] if own.get("port") else group + ".port", entry["port"])]
        ports += [("%s.ports.%s" % (group, kind), port) for kind, port in entry["ports"].items()]
        for key, port in ports:
            if port is None:
                continue
            text = "%s gives '%s' the port %d" % (key, entry["name"], port)
            if not first <= port <= 65535:
                why = "; those below are for root alone" if 0 < port < first else ""
                mistakes.add(
                    "plan.port-invalid", "%s; allowed: %d to 65535%s. Set another first port.", (text, first, why)
                )
            if port in taken:
                mistakes.add(
                    "plan.port-twice",
                    "%s, which is also that of %s. Set another first port for one of them.",
                    (text, taken[port]),
                )
            taken.setdefault(port, "%s ('%s')" % (key, entry["name"]))
