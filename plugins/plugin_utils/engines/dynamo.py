# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: a frontend, and workers that run other engines (`python3 -m dynamo.trtllm`, `dynamo.vllm`)."""

from __future__ import annotations

import re

from ...module_utils.fleet_node.errors import FleetError
from ..base.checks import invalid, number
from ..base.words import show
from . import options, trtllm, vllm
from .base import Engine, block_of, content_of, mapping_of, not_as_planned, read_number
from .options import Version

WORKERS = {one.name: one for one in (trtllm.ENGINE, vllm.ENGINE)}
PACKAGES = {"trtllm": r"^tensorrt[-_]llm==([^;\s]+)", "vllm": r"^vllm(?:-cpu)?==([^;\s]+)"}
MODE, TRANSFER, EVENTS, BLOCK = "disaggregation-mode", "kv-transfer-config", "kv-events-config", "block-size"
ROUTER, ROUTER_BLOCK, DRAFT = "router-mode", "kv-cache-block-size", "speculative-config"
# Flags with the environment variables that set their default. The command line wins (dynamo.common.configuration).
VARIABLES = {
    MODE: ("DYN_VLLM_DISAGGREGATION_MODE", "DYN_TRTLLM_DISAGGREGATION_MODE"),
    ROUTER_BLOCK: ("DYN_KV_CACHE_BLOCK_SIZE",),
    **{flag: ("DYN_" + flag.upper().replace("-", "_"),)
       for flag in (ROUTER, "discovery-backend", "request-plane", "event-plane", "namespace")},
}  # fmt: skip
PORTS = {"DYN_SYSTEM_PORT": "system", "VLLM_NIXL_SIDE_CHANNEL_PORT": "side_channel"}
LOOPBACK = re.compile(r"^(?:\w+://)?(?:[^@]*@)?(?:127\.|localhost\b|\[?::1)")
# Methods of discovery, with the required variable. None: not usable for a deployment.
NEEDED = {"etcd": "ETCD_ENDPOINTS", "file": "DYN_FILE_KV", "nats": "NATS_SERVER", "mem": None, "kubernetes": None}
HOST = r"(?:[^@/\s,]+@)?(?:[^@/:\[\]\s,]+|\[[0-9a-fA-F:.]+\])"
ADDRESSES = {
    "ETCD_ENDPOINTS": (re.compile(r"(?:https?://)?%s:\d{1,5}/?" % HOST), "http://HOST:PORT, also several with commas"),
    "NATS_SERVER": (re.compile(r"(?:(?:nats|tls|wss?)://)?%s(?::\d{1,5})?/?" % HOST), "nats://HOST:PORT"),
}
OWN_KEYS = ("kv_role", "engine_id", "kv_rank", "kv_ip", "kv_port")  # of a transfer; they differ between workers
ROLES = {"prefill": ("kv_producer", "kv_both"), "decode": ("kv_consumer", "kv_both")}
OFFLOADS = ("SimpleCPUOffloadConnector", "OffloadingConnector")  # connectors that do not reach other workers
BUFFER = "cache_transceiver_config"  # of TensorRT-LLM's file
LIMITS = {"migration-limit": "float >=0", ROUTER_BLOCK: "float >=1", "router-temperature": "float >=0"}
# Options that must be equal on servers that exchange KV caches.
ALIKE = ("kv-cache-dtype", "dtype", "quantization", "max-model-len", vllm.HYBRID)
# Of its client of etcd: the values are PEM strings, not paths (lib/runtime/src/transports/etcd.rs).
ETCD_TLS = {"ETCD_AUTH_CA": "ca.crt", "ETCD_AUTH_CLIENT_CERT": "tls.crt", "ETCD_AUTH_CLIENT_KEY": "tls.key"}
NATS_TLS = dict(zip(("NATS_TLS_CA_CERT_PATH", "NATS_TLS_CLIENT_CERT_PATH", "NATS_TLS_CLIENT_KEY_PATH"),
                    ETCD_TLS.values()))  # fmt: skip
NATS_TLS_SINCE = "1.6.1"  # the names are in its runtime, and not in those of 1.0.2, 1.3.1 and 1.4.2
TOGETHER = ("agg", "pd", "prefill_and_decode")  # modes in which a worker does both


def setting(entry, flag):
    """Return the value of one of Dynamo's flags for a server, from its command line, else its environment,
    else None."""
    given = [entry["arguments"].get(flag), *(entry["environment"].get(name) for name in VARIABLES[flag])]
    return next((value for value in given if value is not None), None)


def mode_of(entry):
    """Return prefill, decode, or agg for a worker that does both."""
    value = setting(entry, MODE)
    return "agg" if value is None or value in TOGETHER else str(value)


class Dynamo(Engine):
    """Dynamo. Its frontend does not support API keys (dynamo#8605). Workers also follow the rules of their engine."""

    name, label = "dynamo", "Dynamo"
    port, bind = "http-port", "http-host"
    wraps = tuple(WORKERS)
    # pairs: the version of each backend that a version of Dynamo is made for, by the extras of its wheels, and for
    # TensorRT-LLM by docs.nvidia.com/dynamo, "Support matrix".
    flags = options.Options("dynamo_flags.json", label)
    parsers = {"dyn-tool-call-parser": "tool", "dyn-reasoning-parser": "reasoning"}
    versions = r"(?:^ai[-_]dynamo(?:\[[^\]]*\])?==|(?:^|/)(?:vllm|tensorrtllm)-runtime:)([^@;\s]+)"

    def operations(self, host, venv):
        """Return the operations of the workers' engine."""
        return host.engine(host.role("dynamo").value("dynamo_backend"), venv)

    def running(self, backend):
        return Worker(WORKERS[backend]) if backend else self

    def check(self, where, server):
        super().check(where, server)
        self._check_version(where, server.recipe)
        if server.context["role"] != "frontend":
            self._check_ports(where, server)

    def check_options(self, where, server):
        program, backend = self.program(server.command), server.recipe.get("backend")
        if program is not None:
            name = server.command[program]
            runs = name.rpartition(".")[2]
            if backend and name.startswith("dynamo.") and runs not in (backend, "frontend"):
                raise invalid(where + ": backend", backend, "%s, which command runs" % runs)
            for place, flag, value in self.given(server, program):
                flag, place = flag.replace("_", "-"), "%s: %s" % (where, place)
                if flag in LIMITS and options.fits("float", value):
                    options.check_limit(place, value, LIMITS[flag])
                if flag == "connector" and name == "dynamo.vllm" and value not in (None, False, "none", ["none"]):
                    raise invalid(place, value, "none, with arguments.%s in its place" % TRANSFER)
        super().check_options(where, server)

    def program(self, command, models=()):
        """Return the index of the module of Dynamo that a command runs, None for another program."""
        return next((place for place, word in enumerate(command) if word in self.flags.data["models"]), None)

    def sources(self, platform, version, values, program):
        return [options.Program(self.flags, (program,), version)]

    def given(self, server, program):
        return [*super().given(server, program), *self._variables(server.environment, server.command[program])]

    def _variables(self, environment, program):
        """Return [(place, option, value)] of the variables that set an option's default.
        Switches accept many words there."""
        models = self.flags.data["models"]
        for name, history in models["environment"].items():
            option = [one for one in history.values() if one][-1]
            specs = [one for one in models[program].get(option, {}).values() if one]
            if environment.get(name) and specs and not str(specs[-1]).startswith("switch"):
                yield "environment." + name, option, environment[name]

    def takes_one(self, service, tls):
        """Return True for NATS, whose URL cannot be a list, and for etcd with TLS: with TLS, 1.6.1 does not start while
        one of several addresses does not answer; without TLS it does."""
        return service == "nats" or tls

    def needs(self, server, environment):
        """Return etcd and NATS if the server uses them.
        A process that starts without them exits after at most 120 s."""
        given, found = {"arguments": server.arguments, "environment": environment}, []
        version = self.version(server.recipe)
        if (setting(given, "discovery-backend") or "etcd") == "etcd":
            urls = [url if "://" in url else "http://" + url for url in _listed(environment.get("ETCD_ENDPOINTS"))]
            names = dict(zip(("ca", "certificate", "key"), ETCD_TLS))
            tls = {"tls": names} if any(url.startswith("https:") for url in urls) else {}
            found.append({"name": "etcd", "urls": [url.rstrip("/") + "/health" for url in urls], **tls})
        by_nats = "nats" in (setting(given, "request-plane"), setting(given, "event-plane"))
        if by_nats or (version is not None and version < Version("1.0.0")):
            servers = _listed(environment.get("NATS_SERVER"))
            places = [re.sub(r"^(\w+://)?(.*@)?", "", one).rstrip("/") for one in servers]
            urls = ["tcp://" + (one if re.search(r":\d+$", one) else one + ":4222") for one in places]
            found.append({"name": "nats", "urls": urls, "greeting": "INFO "})
        return [need for need in found if need["urls"]]

    def client_files(self, where, server, secrets, folders):
        """Return the certificates of this node for services with TLS, unless the recipe specifies them."""
        given = {**server.environment, **secrets}
        texts = _client_files(where, given, "ETCD_ENDPOINTS", "https://", ETCD_TLS, folders.get("etcd"))
        paths = _client_files(where, given, "NATS_SERVER", "tls://", NATS_TLS, folders.get("nats"))
        version = self.version(server.recipe)
        if paths and version and version < Version(NATS_TLS_SINCE):
            allowed = "nats:// without TLS, which Dynamo %s cannot use (%s can), or no NATS, with DYN_EVENT_PLANE: zmq"
            raise invalid(where + ": NATS_SERVER", given["NATS_SERVER"], allowed % (version, NATS_TLS_SINCE))
        return texts, paths

    def _check_version(self, where, recipe):
        version = self.version(recipe)
        if version is None or str(version) not in self.flags.data["pairs"]:
            raise FleetError(
                "plan.dynamo-unknown",
                where,
                version or "no version in packages or image",
                ", ".join(self.flags.data["pairs"]),
            )
        backend = recipe.get("backend")
        packages = (recipe.get("venv") or {}).get("packages") or () if not recipe.get("container") else ()
        expected = self.flags.data["pairs"][str(version)].get(backend)
        for match in (re.search(PACKAGES[backend], package) for package in packages if backend):
            if match and expected and _release(match.group(1)) != _release(expected):
                allowed = "%s %s, for which Dynamo %s is made" % (WORKERS[backend].label, expected, version)
                raise invalid(where + ": venv.packages", match.group(0), allowed)

    def _check_ports(self, where, server):
        """Raises FleetError for a port that the plan does not contain, because another server may use it."""
        given = [("environment." + name, server.environment.get(name), kind) for name, kind in PORTS.items()]
        endpoint = str(mapping_of(server.arguments, EVENTS).get("endpoint") or "")
        given.append(("arguments." + EVENTS, endpoint.rpartition(":")[2] or None, "kv_events"))
        for key, value, kind in given:
            port = server.context.get(kind) if kind in server.own_names else None
            if value is not None and str(value) != str(port):
                plan_key = "servers.%s.ports.%s" % (server.context["group"], kind)
                raise not_as_planned(where, key, value, plan_key, port, kind)

    def check_host(self, entries, clustered, mistakes):
        """Note which servers of a deployment do not fit together.
        clustered: whether other hosts have further servers."""
        frontends = [entry for entry in entries if entry["role"] == "frontend"]
        workers = [entry for entry in entries if entry["role"] in ("prefill", "decode")]
        with mistakes.noted():
            _check_roles(frontends, workers, clustered)
        found = len(mistakes.errors)
        for worker in workers:
            if mode_of(worker) == worker["role"]:
                with mistakes.noted():
                    _check_transfer(worker)
        for entry in entries:
            _check_discovery(entry, clustered, mistakes)
        if len(mistakes.errors) == found:
            _check_alike(entries, mistakes)

    def check_cluster(self, entries, mistakes):
        _check_alike(entries, mistakes)


def _check_roles(frontends, workers, clustered):
    """Raises FleetError if a part of a request has no server."""
    modes = {}
    for entry in workers:
        mode, role = mode_of(entry), entry["role"]
        modes.setdefault(mode, entry["name"])
        if mode != role and not (mode == "agg" and role == "decode"):
            allowed = role if role == "prefill" else "decode, or agg for a worker that does both"
            raise invalid("server '%s': %s" % (entry["name"], MODE), mode, "%s, for the role %s" % (allowed, role))
    halves = {"prefill", "decode"} & set(modes)
    lacks = None
    if "prefill" in modes and "agg" in modes:
        lacks = modes["prefill"], "decode, since the others do both (%s agg)" % MODE
    elif len(halves) == 1 and not clustered:
        lacks = modes[min(halves)], "prefill" if "decode" in halves else "decode"
    elif workers and not frontends and not clustered:
        lacks = workers[0]["name"], "frontend"
    if lacks:
        raise FleetError("plan.dynamo-roles-incomplete", *lacks, MODE)


def _check_transfer(worker):
    """Raises FleetError if a worker can neither send nor receive a KV cache."""
    place, settings = _transfer(worker)
    where, mode = "server '%s': %s" % (worker["name"], place), mode_of(worker)
    role, connector = settings.get("kv_role"), settings.get("kv_connector")
    if not settings:
        raise invalid(where, None, "a mapping for prefill and decode alike, or %s agg for all workers" % MODE)
    if place.endswith(TRANSFER) and (connector is None or connector in OFFLOADS):
        raise invalid(where + ".kv_connector", connector, "NixlConnector, for prefill and decode alike")
    if place.endswith(TRANSFER) and role not in ROLES[mode]:
        raise invalid(where + ".kv_role", role, " or ".join(ROLES[mode]))


def _check_discovery(entry, clustered, mistakes):
    """Note settings with which a server does not find the others."""
    where, environment = "server '%s': environment." % entry["name"], entry["environment"]
    for name, (pattern, example) in ADDRESSES.items():
        places = _listed(environment.get(name))
        if places and not all(pattern.fullmatch(one.strip()) for one in environment[name].split(",")):
            mistakes.keep(invalid(where + name, environment[name], example))
        elif clustered and places and all(LOOPBACK.search(one) for one in places):
            allowed = "an address that all hosts of fleet_cluster reach, such as ${%s}"
            mistakes.keep(invalid(where + name, environment[name], allowed % name.partition("_")[0].lower()))
    backend = str(setting(entry, "discovery-backend") or "etcd")
    if NEEDED.get(backend, "") is None or (backend == "file" and clustered):
        mistakes.keep(invalid(where + "DYN_DISCOVERY_BACKEND", backend, "etcd, or file on one host"))
    planes = {plane: setting(entry, plane) for plane in ("request-plane", "event-plane")}
    for option, value in {"discovery-backend": backend, **planes}.items():
        needed = NEEDED.get(value)
        if needed and (value == "nats" or option == "discovery-backend") and not environment.get(needed):
            allowed = "a value for all servers, as %s is %s" % (VARIABLES[option][0], value)
            mistakes.keep(invalid(where + needed, None, allowed))


def _check_alike(entries, mistakes):
    """Note differences in settings that must be equal on all servers of a deployment."""
    frontends = [entry for entry in entries if entry["role"] == "frontend"]
    workers = [entry for entry in entries if entry["role"] in ("prefill", "decode")]
    several = len({entry["host"] for entry in entries}) > 1
    of_host = [] if several else entries  # for values that may differ between hosts
    split = [one for one in workers if mode_of(one) in ROLES]
    transferring = [one for one in workers if mode_of(one) == one["role"]]
    mixed = workers if len({mode_of(one) for one in workers}) > 1 else []
    routers = [one for one in frontends if setting(one, ROUTER) == "kv"]
    spaces = [one for one in (*frontends, *workers) if one in workers or setting(one, "namespace")]
    contained = [one for one in (*frontends, *workers) if one["container"]]
    keys = sorted({key for one in transferring for key in _transfer(one)[1]} - set(OWN_KEYS))
    questions = [
        *((entries, VARIABLES[name][0], lambda one, name=name: setting(one, name))
          for name in ("discovery-backend", "request-plane", "event-plane")),
        *((of_host, name, lambda one, name=name: one["environment"].get(name))
          for name in ("DYN_FILE_KV", "ETCD_ENDPOINTS", "NATS_SERVER")),
        (spaces, "DYN_NAMESPACE", lambda one: setting(one, "namespace")),
        (contained, "container.image", lambda one: (one["container"]["image"], one["container"]["digest"])),
        ([*frontends, *workers], "model.id", lambda one: one["model_id"]),
        ([] if several else split, "model.path", lambda one: one["weights"][0]),
        *((split, "arguments." + name, lambda one, name=name: one["arguments"].get(name)) for name in ALIKE),
        *((split, "config.content.kv_cache_config." + name,
           lambda one, name=name: block_of(content_of(one), "kv_cache_config").get(name))
          for name in ("dtype", "tokens_per_block")),
        # with a draft the KV cache has other layers
        (mixed, "arguments." + DRAFT, lambda one: mapping_of(one["arguments"], DRAFT)),
        # a router finds nothing in the workers' caches if its block size differs
        ([*routers, *(workers if routers else mixed)], "%s or %s" % (BLOCK, ROUTER_BLOCK),
         lambda one: _block_size(one) or ("the default of " + one["name"] if routers else None)),
        *((transferring, "%s.%s" % (_transfer(transferring[0])[0].removeprefix("arguments."), key),
           lambda one, key=key: _transfer(one)[1].get(key)) for key in keys),
    ]  # fmt: skip
    for servers, place, read in questions:
        for entry in servers[1:]:
            if read(entry) != read(servers[0]):
                mistakes.add(
                    "plan.dynamo-servers-differ",
                    *(
                        "%s of %s" % (one["name"], one["host"]) if several else one["name"]
                        for one in (servers[0], entry)
                    ),
                    place,
                    show(read(servers[0])),
                    show(read(entry)),
                )
                break


class Worker(Dynamo):
    """Dynamo with a wrapped engine."""

    TAKEN = ("parallel", "aliases", "config_wins", "limits", "lengths", "variables", "knobs", "longer", "memory",
             "takes")  # fmt: skip

    def __init__(self, engine):
        self.engine = engine
        for name in self.TAKEN:
            setattr(self, name, getattr(engine, name))

    def sources(self, platform, version, values, program):
        own = super().sources(platform, version, values, program)
        if not program.endswith(".vllm"):
            return own
        return [*own, *self.engine.sources(platform, self._its_version(version), values, program, (vllm.SHARED,))]

    def check_config(self, where, server, version):
        if server.context["role"] != "frontend":
            self.engine.check_config(where, server, self._its_version(version))
        if self.engine is trtllm.ENGINE and server.context["role"] == "prefill":
            _check_buffer(where, server)

    def notes(self, entry, version, hardware):
        found = super().notes(entry, version, hardware)
        return found if entry["role"] == "frontend" else [
            *found, *self.engine.notes(entry, self._its_version(version), hardware)
        ]  # fmt: skip

    def _its_version(self, version):
        """Return the version of the engine that a version of Dynamo is made for, None if it is not known."""
        its = self.flags.data["pairs"].get(str(version), {}).get(self.engine.name)
        return its and Version(its)


def _check_buffer(where, server):
    """Raises FleetError if TensorRT-LLM accepts prompts for prefill that its transfer buffer does not contain.
    Workers may then hang (dynamo#4327)."""
    held = number(block_of(server.content, BUFFER).get("max_tokens_in_buffer"))
    longest = read_number(server.arguments, trtllm.ENGINE.lengths[0]) or (server.model and server.model.max_len)
    if held and longest and held < longest:
        place = "%s: config.content.%s.max_tokens_in_buffer" % (where, BUFFER)
        raise invalid(place, held, "at least %d, the longest prompt; or a lower max-seq-len" % longest)


def _client_files(where, given, endpoint, scheme, files, folder):
    """Return {ENV: file} of a service's certificates that are not specified yet, {} if it has no TLS."""
    missing = [name for name in files if name not in given]
    if scheme not in str(given.get(endpoint, "")) or not missing:
        return {}
    if len(missing) == len(files) and folder:
        return {name: "%s/%s" % (folder, file) for name, file in files.items()}
    if endpoint == "NATS_SERVER" and "NATS_TLS_CA_CERT_PATH" in given and "NATS_AUTH_PASSWORD" in given:
        return {}  # with a login the server requires no certificate
    raise FleetError("plan.dynamo-certificates", where, endpoint, given[endpoint], missing[0], ", ".join(files))


def _listed(value):
    return [one.strip() for one in (value or "").split(",") if one.strip()]


def _transfer(worker):
    """Return (place, mapping) of a worker's settings for the transfer of its KV cache."""
    if TRANSFER in worker["arguments"] or not worker["config"]:
        return "arguments." + TRANSFER, mapping_of(worker["arguments"], TRANSFER)
    return "config.content." + BUFFER, block_of(content_of(worker), BUFFER)


def _block_size(entry):
    """Return the tokens in a block of a KV cache, as set for the router or the engine, None if the engine chooses."""
    if entry["role"] == "frontend":
        found = setting(entry, ROUTER_BLOCK)
    else:
        found = entry["arguments"].get(BLOCK) or entry["arguments"].get("kv-block-size")
    return found and str(found)


def _release(version):
    """Return a version without its local part and without trailing zeros."""
    return re.sub(r"(\.0)+$", "", str(version).partition("+")[0])


ENGINE = Dynamo()
