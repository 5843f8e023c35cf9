# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One server of a host as a plan entry: its layers merged, its placeholders filled in, and checked."""

from __future__ import annotations

import dataclasses
import posixpath
import re

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.cpu_list import format_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.server_spec import SCHEMA
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import check_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.base.placeholders import strings, substitute
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import text
from ansible_collections.inference.fleet.plugins.plugin_utils.models import family_of, model_of
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container, server_keys
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.checks import check_bytes
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.devices import cpus
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import apply, apply_container, group_name

PORT_NAMES = ("metrics", "system", "side_channel")  # placeholders whether a group has them or not
SYSTEM_USER = "inference-fleet"
HOME = re.compile(r"^/home/([a-z_][a-z0-9_-]*)/")
ENDINGS = {"yaml": "yml", "json": "json"}


@dataclasses.dataclass(frozen=True)
class Host:
    """What is the same for all servers of a host. names: {group: [server]} of those that there are, context:
    placeholders with their values."""

    recipe: dict
    hardware: object
    site: object
    paths: NodePaths
    context: dict
    names: dict


@dataclasses.dataclass
class Draft:
    """A server on its way to an entry. Engines and platforms look at it.

    where: names it in messages. recipe: the recipe as it is for this server, its paths resolved (see plan.deployment).
    context: placeholders with their values. command, flags, variables, config: as the recipe has them, placeholders
    unresolved; then command, values ({flag: value}), environment and config as the engine gets them, and arguments
    ({canonical flag: value}), what it makes of them. key: of what it compiles. own_names: placeholders that say where
    others are.
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
        """What its configuration file holds, {} where it has none."""
        return (self.config or {}).get("content") or {}

    @property
    def model(self):
        """The dimensions of its checkpoint, None where they are not known."""
        return model_of(self.recipe)

    def read(self, context):
        """(command, {flag: value}, {variable: string}, content of its file) with another context's values."""
        where = self.where
        return (
            substitute(self.command, context, "%s: command" % where),
            {flag: substitute(value, context, "%s: arguments.%s" % (where, flag))
             for flag, value in self.flags.items()},
            {name: text(substitute(value, context, "%s: environment.%s" % (where, name)))
             for name, value in self.variables.items()},
            substitute(self.config["content"], context, "%s: config" % where) if self.config else None,
        )  # fmt: skip

    def resolve(self):
        """Fill in all placeholders."""
        self.command, self.values, self.environment, content = self.read(self.context)
        if self.config:
            self.config = {"path": self.context["config"], "format": self.config["format"], "content": content}


def entry_of(host, prepared, group, own, name, devices):
    """A server's entry, without its hash.

    prepared: plan.deployment of the recipe for this group. own: what the instance has differently.
    """
    index = int(name.rpartition("-")[2])
    recipe, site = prepared, host.site
    engine = ENGINES[recipe["engine"]].running(recipe.get("backend"))
    platform = PLATFORMS[recipe["platform"]]
    where = "server '%s'" % name
    declared = _container(recipe, platform, own, where)
    if declared and site.require_digests and not declared.get("digest"):
        raise FleetError(
            "plan.digest-missing",
            "%s: container.image is %s without a digest, which fleet_require_digests demands. Look it up with `docker "
            "buildx imagetools inspect %s` or `skopeo inspect --format '{{.Digest}}' docker://%s` (docker pull prints "
            'it too), and set fleet_override: {container: {digest: "sha256:…"}}, or for a recipe of your own in the '
            "images.yml beside it.",
            (where, declared["image"], declared["image"], declared["image"]),
        )
    server = _draft(host, recipe, group, own, name, devices, declared, where)
    local = server.context
    server.key = platform.artifact_key(server)
    # Without a leader each server compiles for itself, so each has an artifact of its own.
    leader_first = recipe["start"]["order"] == "leader-first"
    local["artifact_key"] = server.key and (server.key if leader_first else "%s-%s" % (server.key, name))
    server.directories = _directories(host, name, local, where)
    local.update(server.directories)

    server.resolve()
    if not server.command:
        raise FleetError("plan.command-empty", "%s: command is empty; allowed: the engine's argv.", (where,))
    server.arguments = engine.effective(server.command, server.values, server.config)
    engine.check(where, server)
    argv = list(server.command)
    for flag, value in server.values.items():
        words = engine.flag_argv(flag, value)
        check_bytes(where, {"arguments.%s" % flag: words})
        argv += words
    server_keys.check_not_in_the_open(where, engine, server)
    check_bytes(where, {"command": server.command})
    check_bytes(where, {"environment.%s" % key: [value] for key, value in server.environment.items()})
    platform.check_server(where, server)
    engine.check_options(where, server)
    start = recipe["start"]
    after, leaders = _after(host, group, name, start, where)
    secrets = {key: value for key, value in recipe.get("secrets", {}).items() if value is not None}
    environment = server.environment
    folders = {service: host.paths.client_tls(service) for service in site.signed}
    from_files, variables = engine.client_files(where, server, secrets, folders)
    secrets, environment = {**secrets, **from_files}, {**environment, **variables}
    modules = engine.drain_arguments(server)
    if site.api_key:
        secrets, keys = server_keys.give_keys(where, engine, secrets)
        modules = [*modules, *keys]
    if modules:
        argv += modules
        path = ":".join(filter(None, (host.paths.engine_lib, environment.get("PYTHONPATH"))))
        environment = {**environment, "PYTHONPATH": path}
    apart = declared and container.has_own_network(declared)  # its addresses may be none of the node's
    needs = [] if apart else engine.needs(server, environment)
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
        "reasoning_field": recipe.get("reasoning_field", family_of(recipe).reasoning_fields[0]),
        "health": {"port": _ports(group, index).get((group.get("health") or {}).get("port")),
                   "path": start["health_path"], "budget_s": start["budget_s"], "poll_s": start["poll_s"]},
        "start": {"after": after, "units": start["units"], "restart_with_leader": start["restart_with_leader"],
                  **({"needs": needs} if needs else {})},
        "hooks": platform.hooks(server, leaders),
        "cpus": cpus(group, own, devices, host.hardware, where),
        "weights": [path for path in (local["model"], local["draft"]) if path],
    }  # fmt: skip
    if declared:
        _contain(entry, declared, local, site, where)
    return entry


def _draft(host, recipe, group, own, name, devices, declared, where):
    """The Draft of a server, with nothing resolved but its recipe's paths. Sets ${config} and ${max_num_seqs}."""
    local = _context(host, recipe, group, own, name, devices, declared)
    if declared and container.has_own_network(declared):
        local.update(bind="0.0.0.0", bind_device="all")  # inside; the ports are published on the host's address
    config = None
    for layer in (recipe.get("config"), own.get("config")):
        config = apply(config, layer) if config and layer else layer or config
    if config:
        local["config"] = "%s/%s.%s" % (host.paths.configs, local["name"], ENDINGS[config["format"]])
    flags = _merged("arguments", recipe, own)
    sequences = {flag.replace("_", "-"): value for flag, value in flags.items()}.get("max-num-seqs")
    local["max_num_seqs"] = None if "${" in str(sequences) else sequences
    return Draft(
        where, {**recipe, "container": declared}, host.hardware, devices, local, recipe["command"], flags,
        _merged("environment", recipe, own), config, declared,
        own_names=frozenset((*PORT_NAMES, *group.get("ports", {}), *dict(host.site.endpoints))),
    )  # fmt: skip


def _ports(group, index):
    """{name: port} of a server's ports beside the one it answers on."""
    return {name: port + index for name, port in group.get("ports", {}).items() if port is not None}


def _context(host, recipe, group, own, name, devices, contained):
    """Placeholders of one server, but for its directories and its artifact's key; None: has no value here."""
    base, model, draft = group_name(group), recipe["model"], recipe["model"].get("draft")
    index = int(name.rpartition("-")[2])
    inside = range(len(devices)) if contained else devices  # what a container is given it numbers from 0
    taken = {*devices, *host.hardware.excluded}
    others = [device for device in range(host.hardware.units) if device not in taken]
    return {
        **host.context,
        "bind": host.site.bind,
        "bind_device": "lo" if server_keys.is_loopback(host.site.bind) else "all",
        "lnc": host.hardware.lnc,
        "model": model["path"],
        "model_id": model["id"],
        "draft": draft["path"] if draft else None,
        "draft_tokens": draft["tokens"] if draft else None,
        "venv": recipe["venv"]["path"] if recipe.get("venv") else None,
        "name": name,
        "group": base,
        "index": index,
        "role": group["role"],
        "port": own.get("port") or (group["port"] + index if group.get("port") else None),
        "devices": ",".join(str(device) for device in devices) or None,
        "device_range": format_cpu_list(devices) or None,
        "device_count": len(devices),
        "container_devices": ",".join(str(device) for device in inside) or None,
        "devices_first": ",".join(str(device) for device in [*devices, *others]) if devices else None,
        "config": None,
        "max_num_seqs": None,
        **dict(host.site.endpoints),
        **dict.fromkeys(PORT_NAMES),
        **_ports(group, index),
        **PLATFORMS[recipe["platform"]].placeholders(host.hardware, devices),
    }


def _directories(host, name, local, where):
    """{kind: absolute path, in its shortest form: strings are compared} of one server."""
    directories = dict(host.paths.directories(name))
    directories.update(substitute(host.recipe.get("directories", {}), local, "directories"))
    for kind, path in directories.items():
        directories[kind] = "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else path
        check_folder(
            "%s: directories.%s" % (where, kind), directories[kind], "/scratch/${name}/%s" % kind, host.site.root
        )
    return directories


def _after(host, group, name, start, where):
    """(servers that one starts after, those of them that may be waited for only until what they compile is there)."""
    names = host.names
    after = []
    for other in group.get("after", []):
        if other not in names:
            raise FleetError(
                "plan.after-unknown", "%s: after names the group '%s'; allowed: %s.", (where, other, ", ".join(names))
            )
        after += names[other]
    leader = names[group_name(group)][0]
    if start["order"] != "leader-first" or name == leader or leader in after:
        return after, []
    # for servers that restart together the order has another reason
    return [*after, leader], [] if start["restart_with_leader"] else [leader]


def _contain(entry, declared, local, site, where):
    """Let the entry's engine run in the declared container."""
    argv, variables, config = entry["command"], entry["environment"], entry["config"]
    texts = [*argv, *variables.values(), *strings(config["content"] if config else {})]
    inputs = [local["config"], local["model"], local["draft"], local["encodings"], NodePaths(site.root).engine_lib]
    entry["container"] = container.resolve(
        substitute(declared, dict(local, device="${device}"), "%s: container" % where),
        where, site.container_engine, entry["devices"], inputs, list(entry["directories"].values()), texts,
    )  # fmt: skip
    if container.has_own_network(declared):
        entry["container"]["flags"] += ["--publish=%s:%d:%d" % (_url_host(site.bind), number, number)
                                        for number in [entry["port"], *entry["ports"].values()] if number]  # fmt: skip
    by_name = container.named_variables(entry["container"]["engine"], variables)
    container.check_secrets(where, [*entry["secrets"], *by_name])
    entry["launch"] = container.launch_argv(entry, site.root)
    check_bytes(where, {"container": entry["launch"]})
    container.check_texts(where, entry["launch"])


def _user(recipe):
    """Who servers run as: the recipe's user; the owner of the home in which a machine image has its environment."""
    if recipe.get("user"):
        return recipe["user"]
    venv = recipe.get("venv") or {}
    home = HOME.match(venv.get("path", ""))
    return home.group(1) if home and not venv["create"] else SYSTEM_USER


def _container(recipe, platform, own, where):
    """The container of one server, the platform's defaults under it; None where its engine is a process."""
    if recipe.get("launcher", "process") != "container":
        return None
    result = recipe.get("container") or {}
    result = apply_container(result, own["container"]) if own.get("container") else result
    result = {key: value for key, value in result.items() if value is not None}
    result["ulimits"] = {key: value for key, value in result.get("ulimits", {}).items() if value is not None}
    if not result.get("image"):
        raise FleetError(
            "plan.image-missing", "%s: launcher is container, but container.image is not set; give the image.", (where,)
        )
    return container.with_defaults(result, platform.container_defaults(result))


def _url_host(address):
    return "[%s]" % address if ":" in address else address


def _merged(key, recipe, own):
    result = recipe.get(key, {})
    result = apply(result, own[key]) if own.get(key) else result
    return {name: value for name, value in result.items() if value is not None}
