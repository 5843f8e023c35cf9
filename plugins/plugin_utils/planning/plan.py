# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: a pure function from a recipe and declared hardware to the list of servers of a host."""

from __future__ import annotations

import contextlib
import dataclasses
import posixpath
import re

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.paths import NodePaths
from ...module_utils.fleet_node.host.redact import strings
from ...module_utils.fleet_node.host.server_spec import SCHEMA, check_entries, check_order, entry_hash
from ...module_utils.fleet_node.host.values import format_cpu_list, url_host
from ...module_utils.fleet_node.weights import wanted as hub
from ..base.checks import Mistakes, base_context, check_folder, invalid, substitute, taken_twice, unknown_key
from ..engines import ENGINES
from ..engines.base import Unreadable, conflict, text
from ..models import DEFAULT, family_of, model_of
from ..platforms import PLATFORMS
from ..recipe.overrides import apply, apply_container, group_name
from . import container, server_values
from .hardware import assign, cpus, port_ranges, ports_of, server_names

FIRST_PORT = 1024  # lower ports require root
MAX_WORD = 128 * 1024 - 64  # of an argv or environment: MAX_ARG_STRLEN, less the variable's name


def check_needs(recipe, hardware):
    """Raises FleetError if the declared hardware is not of the kind that the recipe requires."""
    needs = recipe["needs"]
    for key, fits, allowed in (
        ("accelerator", hardware.accelerator in needs["accelerators"], ", ".join(needs["accelerators"])),
        ("lnc", hardware.lnc == needs.get("lnc", hardware.lnc), needs.get("lnc")),
        ("memory_gib", not 0 < hardware.memory_gib < needs.get("device_memory_gib", 0),
         "at least %s" % needs.get("device_memory_gib")),
    ):  # fmt: skip
        if not fits:
            allowed = "%s, for the recipe %s" % (allowed, recipe["name"])
            raise invalid("fleet_hardware." + key, getattr(hardware, key), allowed)


def check_ports(entries, recipe, mistakes):
    """Note ports of a host that its servers may not use, and ports that two servers use."""
    taken = {}
    for entry in entries:
        name, first = entry["name"], 1 if entry["launcher"] == "container" or entry["user"] == "root" else FIRST_PORT
        own = (recipe.get("instances") or {}).get(name) or {}
        group = "servers.%s" % name.rpartition("-")[0]
        for kind, used in port_ranges(entry).items():
            key = "%s.ports.%s" % (group, kind) if kind else group + ".port"
            if kind is None and own.get("port"):
                key = "instances.%s.port" % name
            if not first <= used[0] <= used[-1] <= 65535:
                why = "; those below are for root alone" if 0 < used[0] < first else ""
                mistakes.keep(invalid("%s of '%s'" % (key, name), used[0], "%d to 65535%s" % (first, why)))
            twice = next((one for one in used if one in taken), None)
            if twice is not None:
                mistakes.keep(taken_twice("%s of '%s'" % (key, name), "the port %d" % twice, taken[twice]))
            taken.update((one, "%s ('%s')" % (key, name)) for one in used if one not in taken)


def check_words(where, words):
    """Raises FleetError for words that no argv or environment can contain. words: {key: its words}."""
    for key, values in words.items():
        for value in values:
            if "\0" in value or len(value.encode("utf-8", "surrogatepass")) >= MAX_WORD:
                raise invalid("%s: %s" % (where, key), value, "words of less than 128 KiB without NUL characters")


PORT_NAMES = ("metrics", "system", "side_channel")  # placeholders of every group, with or without these ports
HOME = re.compile(r"^/home/([a-z_][a-z0-9_-]*)/")
ENDINGS = {"yaml": "yml", "json": "json"}


@dataclasses.dataclass(frozen=True)
class Host:
    """The values that all servers of a host share. servers: {group: {server: its devices}}, context: placeholders with
    their values."""

    recipe: dict
    hardware: object
    site: object
    paths: NodePaths
    context: dict
    servers: dict


@dataclasses.dataclass
class Draft:
    """A server before it becomes an entry, as engines and platforms check it.

    where: names it in messages. recipe: the recipe for this server, with resolved paths (see plan.deployment). context:
    placeholders with their values. command, flags, variables, config: as in the recipe, with unresolved placeholders;
    then command, values ({flag: value}), environment and config as the engine gets them, and arguments ({canonical
    flag: value}), which the engine derives from them. key: of the artifact that the engine compiles. own_names:
    placeholders of ports and of the addresses of services.
    """

    where: str
    recipe: dict
    hardware: object
    devices: list
    context: dict
    command: list
    flags: dict
    variables: dict
    config: dict | None
    container: dict | None
    key: str | None = None
    own_names: frozenset = frozenset()
    directories: dict = dataclasses.field(default_factory=dict)
    values: dict = dataclasses.field(default_factory=dict)
    arguments: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)

    @property
    def content(self):
        """Content of its configuration file, {} if it has none."""
        return (self.config or {}).get("content") or {}

    @property
    def model(self):
        """Dimensions of its checkpoint, None if they are not known."""
        return model_of(self.recipe)

    def read(self, context):
        """Return (command, {flag: value}, {variable: string}, content of its file) with
        the values of another context."""
        parts = {"command": self.command, "arguments": self.flags, "environment": self.variables,
                 "config": self.config and self.config["content"]}  # fmt: skip
        command, flags, variables, content = (
            substitute(value, context, "%s: %s" % (self.where, key)) for key, value in parts.items()
        )
        return command, flags, {name: text(value) for name, value in variables.items()}, content


def entry_of(host, recipe, group, own, name, devices):
    """Return a server's entry, without its hash.

    recipe: plan.deployment for this group. own: settings that differ for this instance.
    """
    site, recipe = host.site, layered(recipe, own)
    engine = ENGINES[recipe["engine"]].running(recipe.get("backend"))
    platform = PLATFORMS[recipe["platform"]]
    where, backends = "server '%s'" % name, engine.wraps
    if recipe.get("backend") not in (backends if backends and devices else (None, *backends)):
        raise invalid(where + ": backend", recipe.get("backend"), ", ".join(backends) or "null")
    declared = _container(recipe, platform, where)
    if declared and site.require_digests and not declared.get("digest"):
        allowed = "an image with container.digest (fleet_require_digests); `docker buildx imagetools inspect` prints it"
        raise invalid(where + ": container.image", declared["image"], allowed)
    server = _draft(host, recipe, group, own, name, devices, declared, where)
    local = server.context
    server.key = platform.artifact_key(server)
    # Without a leader each server compiles for itself, into a separate artifact.
    leader_first = recipe["start"]["order"] == "leader-first"
    local["artifact_key"] = server.key and (server.key if leader_first else "%s-%s" % (server.key, name))
    server.directories = _directories(host, name, local, where)
    local.update(server.directories)

    server.command, server.values, server.environment, content = server.read(local)
    if server.config:
        server.config = {"path": local["config"], "format": server.config["format"], "content": content}
    server.arguments = engine.effective(server.command, server.values, server.config)
    engine.check(where, server)
    words = {"arguments.%s" % flag: engine.flag_argv(flag, value) for flag, value in server.values.items()}
    argv = [*server.command, *(word for each in words.values() for word in each)]
    variables = {"environment.%s" % key: [value] for key, value in server.environment.items()}
    check_words(where, {**words, "command": server.command, **variables})
    server_values.check_not_in_the_open(where, engine, server)
    _check_model(where, engine, platform, server)
    adapters = adapters_of(server.recipe["model"])
    platform.check_server(where, server)
    engine.check_options(where, server)
    start, ports = recipe["start"], ports_of(recipe, group, name)
    after, leaders = _after(host, group, name, start)
    secrets = _set(recipe.get("secrets", {}))
    for variable in sorted(set(secrets) & set(server.environment)):
        raise invalid(where + ": environment." + variable, server.environment[variable], "null, as secrets has it too")
    folders = {service: host.paths.client_tls(service) for service in site.signed}
    from_files, variables = engine.client_files(where, server, secrets, folders)
    secrets = {**secrets, **from_files}
    environment = {**platform.container_environment(server), **server.environment, **variables}
    modules = engine.drain_arguments(server)
    if site.api_key:
        secrets, keys = server_values.give_keys(where, engine, secrets)
        modules = [*modules, *keys]
    if modules:
        argv += modules
        environment["PYTHONPATH"] = ":".join(filter(None, (host.paths.engine_lib, environment.get("PYTHONPATH"))))
    apart = declared and container.has_own_network(declared)  # its addresses may differ from the node's
    needs = [] if apart else engine.needs(server, environment)
    versions, family = dict(site.secret_versions), family_of(recipe)
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
        "ports": ports,
        "command": argv,
        "arguments": server.arguments,
        "environment": environment,
        "secrets": secrets,
        "secret_versions": {key: str(versions.get(key, "1")) for key in secrets},
        "config": server.config,
        "container": None,
        "launch": argv,
        "directories": server.directories,
        "user": None if site.root or declared else _user(recipe),
        "model_id": recipe["model"]["id"],
        "reasoning_field": _reasoning_field(family, recipe, server.arguments),
        "health": {"port": ports.get((group.get("health") or {}).get("port")),
                   "path": start["health_path"], "budget_s": start["budget_s"], "poll_s": start["poll_s"]},
        "start": {"after": after, "units": start["units"], "restart_with_leader": start["restart_with_leader"],
                  **({"needs": needs} if needs else {})},
        "hooks": platform.hooks(server, leaders),
        "cpus": cpus(group, own, devices, host.hardware, where),
        "weights": [path for path in (local["model"], local["draft"], *adapters.values()) if path],
        **({} if family.name == DEFAULT else {"family": family.name}),
        **({"adapters": list(adapters)} if adapters else {}),
    }  # fmt: skip
    if declared:
        _contain(entry, declared, local, site, where)
    return entry


def _reasoning_field(family, recipe, arguments):
    """Return the name of the reasoning in answers, None without reasoning. Engines find the reasoning of families with
    levels of effort by themselves; the others need a parser."""
    if not family.effort_parameters and not any("reasoning-parser" in flag for flag in arguments):
        return None
    return recipe.get("reasoning_field", family.reasoning_fields[0])


def adapters_of(model):
    """Return {name: directory} of the LoRA adapters of a recipe's model."""
    return {one["name"]: one["path"] for one in model.get("adapters") or ()}


def _adapter_flags(where, recipe, flags):
    """Return {flag: value} of a server with its LoRA adapters. Raises FleetError if the engine, the platform or the
    family has none, or if the flags load further adapters."""
    adapters = adapters_of(recipe["model"])
    if not adapters:
        return flags
    engine, platform = ENGINES[recipe["engine"]].running(recipe.get("backend")), PLATFORMS[recipe["platform"]]
    found, family = engine.adapter_arguments(adapters), family_of(recipe)
    for supported, one in ((found, engine), (platform.adapters, platform), (family.adapters, family)):
        if not supported:
            raise invalid(where + ": model.adapters", list(adapters), "null: %s has no LoRA adapters" % one.label)
    for flag in flags:
        if engine.canonical_flag(flag) in found and flags[flag] is not True:
            raise conflict(where, "model.adapters", "arguments.%s" % flag)
    return {**flags, **found}


def _check_model(where, engine, platform, server):
    """Raises FleetError if the engine or the platform cannot serve the model's family or its format."""
    family, weights = family_of(server.recipe), server.recipe["model"]["format"]
    for one in (engine, platform):
        if family.name in one.unserved:
            raise invalid(where + ": model.family", family.name, "a family that %s serves" % one.label)
    lacks = platform.lacks(server.hardware)
    if weights in lacks:
        allowed = ", ".join(one for one in family.formats if one not in lacks)
        raise invalid(where + ": model.format", weights, "%s on %s" % (allowed, server.hardware.accelerator))


def _draft(host, recipe, group, own, name, devices, declared, where):
    """Return the Draft of a server, with only its recipe's paths resolved. Placeholders without a value on this host
    are None. Directories and the artifact's key follow."""
    model, draft, config = recipe["model"], recipe["model"].get("draft") or {}, recipe.get("config") or None
    flags, ports = _adapter_flags(where, recipe, _set(recipe.get("arguments", {}))), ports_of(recipe, group, name)
    sequences = {flag.replace("_", "-"): value for flag, value in flags.items()}.get("max-num-seqs")
    index, apart = int(name.rpartition("-")[2]), declared and container.has_own_network(declared)
    bind = "0.0.0.0" if apart else host.site.bind  # inside; the ports are published on the host's address
    loopback = server_values.is_loopback(bind)
    inside = range(len(devices)) if declared else devices  # a container numbers its devices from 0
    taken = {*devices, *host.hardware.excluded}
    others = [device for device in range(host.hardware.units) if device not in taken]
    context = {
        **host.context,
        "bind": bind,
        "bind_device": "lo" if loopback else "all",
        "bind_interface": "lo" if loopback else "",
        "lnc": host.hardware.lnc,
        "model": model["path"],
        "model_id": model["id"],
        "draft": draft.get("path"),
        "draft_tokens": draft.get("tokens"),
        "venv": (recipe.get("venv") or {}).get("path"),
        "name": name,
        "group": group_name(group),
        "index": index,
        "role": group["role"],
        "port": own.get("port") or (group["port"] + index if group.get("port") else None),
        "devices": ",".join(map(str, devices)) or None,
        "device_range": format_cpu_list(devices) or None,
        "device_count": len(devices),
        "container_devices": ",".join(map(str, inside)) or None,
        "devices_first": ",".join(map(str, [*devices, *others])) if devices else None,
        "config": config and "%s/%s.%s" % (host.paths.configs, name, ENDINGS[config["format"]]),
        "max_num_seqs": None if "${" in str(sequences) else sequences,
        **dict(host.site.endpoints),
        **dict.fromkeys(PORT_NAMES),
        **ports,
        **PLATFORMS[recipe["platform"]].placeholders(host.hardware, devices),
    }
    return Draft(
        where, {**recipe, "container": declared}, host.hardware, devices, context, recipe["command"], flags,
        _set(recipe.get("environment", {})), config, declared,
        own_names=frozenset((*PORT_NAMES, *group.get("ports", {}), *dict(host.site.endpoints))),
    )  # fmt: skip


def _directories(host, name, local, where):
    """Return {kind: absolute path} of a server, normalized because paths are compared as strings."""
    given = substitute(host.recipe.get("directories", {}), local, "directories")
    directories = {}
    for kind, path in {**host.paths.directories(name), **given}.items():
        path = "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else path
        check_folder("%s: directories.%s" % (where, kind), path, "/scratch/${name}/%s" % kind, host.site.root)
        directories[kind] = path
    return directories


def _after(host, group, name, start):
    """Return (servers that must start before this server, those of them that it waits for only until they have
    compiled)."""
    after = [other for earlier in group.get("after", []) for other in host.servers[earlier]]
    leader = next(iter(host.servers[group_name(group)]))
    if start["order"] != "leader-first" or name == leader or leader in after:
        return after, []
    # The order of servers that restart together has another reason.
    return [*after, leader], [] if start["restart_with_leader"] else [leader]


def _contain(entry, declared, local, site, where):
    """Run the entry's engine in the declared container."""
    argv, variables, config = entry["command"], entry["environment"], entry["config"]
    texts = [*argv, *variables.values(), *strings(config["content"] if config else {})]
    inputs = [local["config"], *entry["weights"], local["encodings"], NodePaths(site.root).engine_lib]
    entry["container"] = container.resolve(
        substitute(declared, dict(local, device="${device}"), "%s: container" % where),
        where, site.container_engine, entry["devices"], inputs, list(entry["directories"].values()), texts,
    )  # fmt: skip
    if container.has_own_network(declared):
        entry["container"]["flags"] += ["--publish=%s:%d:%d" % (url_host(site.bind), number, number)
                                        for used in port_ranges(entry).values() for number in used]  # fmt: skip
    container.check_secrets(where, entry["secrets"])
    entry["launch"] = container.launch_argv(entry, site.root)
    check_words(where, {"container": entry["launch"]})
    container.check_texts(where, entry["launch"])


def _user(recipe):
    """Return the account of the servers: the recipe's user,
    or the owner of the home in which a machine image has its environment."""
    venv = recipe.get("venv") or {}
    home = HOME.match(venv.get("path", ""))
    return recipe.get("user") or (home.group(1) if home and not venv["create"] else "inference-fleet")


def _container(recipe, platform, where):
    """Return the container of a server, with the platform's defaults; None if its engine runs as a process."""
    if recipe.get("launcher", "process") != "container":
        return None
    result = _set(recipe.get("container") or {})
    result["ulimits"] = _set(result.get("ulimits", {}))
    if not result.get("image"):
        raise invalid(where + ": container.image", None, "an image for the launcher container")
    return container.with_defaults(result, platform.container_defaults(result))


def _set(values):
    """Return the items of a mapping that are not null."""
    return {name: value for name, value in values.items() if value is not None}


HUB_DEFAULTS = {"include": [], "exclude": list(hub.DEFAULT_EXCLUDE), "workers": 8}
START = {"order": "together", "restart_with_leader": False, "budget_s": 300, "poll_s": 2, "health_path": "/health",
         "units": []}  # fmt: skip
# Keys of the recipe that a group of servers or, some of them, an instance may override.
LAYERS = (
    "arguments", "environment", "config", "container", "command", "launcher", "start", "secrets", "model", "venv",
    "backend",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Site:
    """Settings of the inventory in addition to recipe and hardware.

    root: fleet_root. bind: address that servers listen on. secret_versions: {ENV: version} as pairs. container_engine:
    the engine that a recipe's container.engine auto selects. api_key: whether fleet_api_key contains a key. endpoints:
    placeholders with the addresses of others, as pairs (planning.services). signed: services that sign certificates for
    their clients. require_digests: whether an image must have a digest. clustered: whether fleet_cluster names a
    deployment that includes other hosts.
    """

    root: str = ""
    bind: str = "127.0.0.1"
    secret_versions: tuple = ()
    container_engine: str = container.DEFAULT_ENGINE
    api_key: bool = False
    endpoints: tuple = ()
    signed: tuple = ()
    require_digests: bool = False
    clustered: bool = False


# Keys that distinguish two groups' checkpoints of the same path.
CHECKPOINT = ("source", "source_path", "repo", "revision", "format", "endpoint", "include", "exclude")


def deployment(recipe, site, host, used=None):
    """Return the recipe in the form for the roles, with resolved paths of model, draft and venv, and with defaults.

    models, venvs: all that the host's servers need, the recipe's own first; a group with its own model or venv has all
    of its keys in `servers`. engine_settings: of the platform. used: names of the groups that have servers on the host,
    None for all.
    """
    result = _resolved(recipe, site, host)
    groups, models, venvs = [], [], []
    for group in recipe["servers"]:
        own = _resolved(for_group(recipe, group), site, host)
        groups.append({**group, **{key: own[key] for key in ("model", "venv") if group.get(key)}})
        if used is None or group_name(group) in used:
            models += [own["model"], *_adapter_models(own)]
            if own.get("venv") and own.get("launcher", "process") == "process":
                venvs.append(own["venv"])
    result["servers"] = groups
    result["engine_settings"] = PLATFORMS[recipe["platform"]].daemon_settings(recipe)
    result["models"] = _distinct(models, result["model"], "model", lambda model: [model.get(key) for key in CHECKPOINT])
    result["venvs"] = _distinct(venvs, result.get("venv"), "venv", lambda venv: venv)
    return result


def _adapter_models(recipe):
    """Return the LoRA adapters of a resolved recipe in the form of a model, whose weights they are installed like."""
    model, engine = recipe["model"], ENGINES[recipe["engine"]].running(recipe.get("backend"))
    flags, most = {engine.canonical_flag(flag): value for flag, value in recipe.get("arguments", {}).items()}, None
    with contextlib.suppress(Unreadable):  # the options' check reports it
        most = engine.lora_rank(flags)
    for one in model.get("adapters") or ():
        from_hub = bool(one.get("repo")) and model["source"] in hub.HUBS
        yield {
            **HUB_DEFAULTS, **{key: model.get(key) for key in ("endpoint", "workers", "format", "family")},
            "source": model["source"] if from_hub else "path", "repo": one.get("repo") or one["name"],
            "revision": one.get("revision"), "path": one["path"],
            "adapter": {"base": one.get("base") or model["repo"], "max_rank": most},
        }  # fmt: skip


def _distinct(items, first, key, content):
    """Return each model or environment once, with `first` first if it is among them. A draft is listed with the first
    model that has it. Raises FleetError if a path has different contents."""
    found = []
    for item in sorted(items, key=lambda item: item != first):
        draft = (item.get("draft") or {}).get("path")
        same = [one for one in found if one["path"] == item["path"]]
        if same and content(same[0]) != content(item):
            what = "%s.path %s" % (key, item["path"])
            raise taken_twice("a group of servers", what, "another group with another " + key)
        if not same or draft not in (None, *((one.get("draft") or {}).get("path") for one in same)):
            found.append(item)
    return found


def _resolved(recipe, site, host):
    """Return the recipe with defaults and with the resolved paths of the recipe's model, draft and venv."""
    context = base_context(recipe, NodePaths(site.root), host)
    given = {key: substitute(recipe[key], context, key) for key in ("model", "venv") if recipe.get(key)}
    result, model = {**recipe, **given}, given["model"]
    paths = {"path": model["path"], "source_path": model.get("source_path"),
             "draft.path": (model.get("draft") or {}).get("path"),
             **{"adapters.%s.path" % name: path for name, path in adapters_of(model).items()}}  # fmt: skip
    for key, value in _set(paths).items():
        check_folder("model.%s" % key, value, "/srv/models/gpt-oss-120b", site.root, key != "source_path")
    if result.get("venv"):
        result["venv"] = {"create": True, **result["venv"]}
        made = result["venv"]["create"]
        check_folder("venv.path", result["venv"]["path"], "/opt/engine", site.root if made else "", made)
    defaults = {key: value for key, value in HUB_DEFAULTS.items() if model.get(key) is None}
    result["model"] = {**model, **defaults}
    known = model_of(result)
    if known:  # a draft is compared with its target before the target has been downloaded
        result["model"].update(hidden_size=known.hidden, vocab_size=known.vocab)
    result["start"] = {**START, **recipe.get("start", {})}
    efforts = family_of(recipe).effort_parameters
    result["verify"] = {
        **({"effort_parameter": efforts[0]} if efforts else {}), "responses_api": bool(efforts), "timeout_s": 120,
        **recipe.get("verify", {}),
    }  # fmt: skip
    result["probes"] = recipe.get("probes", [])
    return result


def plan_host(host, recipe, hardware, site):
    """Return the servers of ``host``: a list of plan entries (fleet_node/host/server_spec.py),
    in the order of the recipe.

    A pure function: no node is accessed, and equal input gives equal bytes. Raises FleetError with a sentence; the
    caller adds the host.
    """
    platform = PLATFORMS[recipe["platform"]]
    check_needs(recipe, hardware)
    paths = NodePaths(site.root)
    names = server_names(recipe, hardware)
    instances = recipe.get("instances") or {}
    every = [name for group in names.values() for name in group]
    for name in sorted(set(instances) - set(every)):
        raise unknown_key("instances", name, instances[name], every)
    devices = assign(recipe, hardware, names)
    shared = Host(recipe, hardware, site, paths, base_context(recipe, paths, host), devices)
    entries, mistakes, failed, leader_first = [], Mistakes(), set(), set()
    for group in recipe["servers"]:
        base = group_name(group)
        prepared = _resolved(for_group(recipe, group), site, host)
        if prepared["start"]["order"] == "leader-first":
            leader_first.update(devices[base])
        for name, own_devices in devices[base].items():
            own = instances.get(name)
            if own is None and base in failed:
                continue  # for the same reasons
            try:
                entries.append(entry_of(shared, prepared, group, own or {}, name, own_devices))
            except FleetError as error:
                failed |= {base} if own is None else set()
                mistakes.keep(error)
    check_ports(entries, recipe, mistakes)
    if not mistakes.errors:
        ENGINES[recipe["engine"]].check_host(entries, site.clustered, mistakes)
    mistakes.raise_any()
    platform.finish(entries, leader_first)
    for entry in entries:
        entry["start"]["restart_with_leader"] &= bool(entry["start"]["after"])
        entry["hash"] = entry_hash(entry)
    check_order(check_entries(entries))
    return entries


def for_group(recipe, group):
    """Return the recipe for a group of servers."""
    if group["role"] == "frontend":  # a different program than the workers, which the recipe's own settings are for
        recipe = {**recipe, "arguments": {}, "config": None}
    result, health = layered(recipe, group), group.get("health") or {}
    given = _set({"health_path": health.get("path"), "budget_s": health.get("budget_s")})
    return {**result, "start": {**result.get("start", {}), **given}} if given else result


def layered(recipe, layer):
    """Return the recipe with what a group of servers or an instance overrides."""
    result = dict(recipe)
    for key in LAYERS:
        if layer.get(key):
            merge = apply_container if key == "container" else apply
            result[key] = merge(recipe[key], layer[key]) if recipe.get(key) else layer[key]
    return result


def secrets_of(recipe):
    """Return {ENV: variable} of the secrets of all groups of a recipe."""
    return {name: variable for group in recipe.get("servers", ())
            for name, variable in for_group(recipe, group).get("secrets", {}).items()}  # fmt: skip
