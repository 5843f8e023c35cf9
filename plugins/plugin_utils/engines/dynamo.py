# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: a frontend, and workers that are one of other engines (`python3 -m dynamo.trtllm`, `dynamo.vllm`)."""

from __future__ import annotations

import contextlib
import json
import re

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, number
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import command_line, trtllm, vllm
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import Engine, Unreadable, read_mapping
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.versioned_fields import Fields

try:
    from packaging.version import Version
except ImportError:  # see base.py
    Version = None

WORKERS = {one.name: one for one in (trtllm.ENGINE, vllm.ENGINE)}
# The version of each backend that a version of Dynamo is made for: the extras of its wheels (`pip download ai-dynamo`),
# and docs.nvidia.com/dynamo, "Support matrix", for TensorRT-LLM.
PAIRS = {
    "0.6.0": {"trtllm": "1.1.0rc5"},
    "0.6.1": {"trtllm": "1.1.0rc5"},
    "0.7.0": {"trtllm": "1.2.0rc2"},
    "0.7.1": {"trtllm": "1.2.0rc3"},
    "0.8.0": {"trtllm": "1.2.0rc6.post1"},
    "0.8.1": {"trtllm": "1.2.0rc6.post1"},
    "0.9.0": {"trtllm": "1.3.0rc1"},
    "0.9.1": {"trtllm": "1.3.0rc3"},
    "1.0.0": {"trtllm": "1.3.0rc5.post1"},
    "1.0.2": {"vllm": "0.16.0"},
    "1.1.1": {"trtllm": "1.3.0rc11"},
    "1.2.0": {"trtllm": "1.3.0rc14"},
    "1.3.0": {"trtllm": "1.3.0rc19"},
    "1.3.1": {"trtllm": "1.3.0rc19", "vllm": "0.23.0"},
    "1.4.2": {"vllm": "0.26.0"},
    "1.6.1": {"trtllm": "1.3.0rc29", "vllm": "0.31.0"},
}
PACKAGES = {"trtllm": r"^tensorrt[-_]llm==([^;\s]+)", "vllm": r"^vllm(?:-cpu)?==([^;\s]+)"}
MODE, TRANSFER, EVENTS, BLOCK = "disaggregation-mode", "kv-transfer-config", "kv-events-config", "block-size"
ROUTER, ROUTER_BLOCK, DRAFT = "router-mode", "kv-cache-block-size", "speculative-config"
# What a flag is where only the environment says it. The command line wins (dynamo.common.configuration).
VARIABLES = {
    MODE: ("DYN_VLLM_DISAGGREGATION_MODE", "DYN_TRTLLM_DISAGGREGATION_MODE"),
    ROUTER: ("DYN_ROUTER_MODE",),
    ROUTER_BLOCK: ("DYN_KV_CACHE_BLOCK_SIZE",),
    "discovery-backend": ("DYN_DISCOVERY_BACKEND",),
    "request-plane": ("DYN_REQUEST_PLANE",),
    "event-plane": ("DYN_EVENT_PLANE",),
    "namespace": ("DYN_NAMESPACE",),
}
# By what the processes of one deployment find each other; all must say the same. {name: where it is read}
SHARED = ("discovery-backend", "request-plane", "event-plane")
PLACES = ("DYN_FILE_KV", "ETCD_ENDPOINTS", "NATS_SERVER")
PORTS = {"DYN_SYSTEM_PORT": "system", "VLLM_NIXL_SIDE_CHANNEL_PORT": "side_channel"}
LOOPBACK = re.compile(r"^(?:\w+://)?(?:[^@]*@)?(?:127\.|localhost\b|\[?::1)")
# Of a discovery backend and of a plane: without it each has its own.
NEEDED = {"etcd": "ETCD_ENDPOINTS", "file": "DYN_FILE_KV", "nats": "NATS_SERVER"}
UNUSABLE = {"mem": "is the memory of one process", "kubernetes": "needs Kubernetes"}  # discovery backends
HOST = r"(?:[^@/\s,]+@)?(?:[^@/:\[\]\s,]+|\[[0-9a-fA-F:.]+\])"
ADDRESSES = {
    "ETCD_ENDPOINTS": (
        re.compile(r"(?:https?://)?%s:\d{1,5}/?" % HOST),
        "http://HOST:PORT, or several with commas between",
    ),
    "NATS_SERVER": (re.compile(r"(?:(?:nats|tls|wss?)://)?%s(?::\d{1,5})?/?" % HOST), "nats://HOST:PORT"),
}
# What prefill and decode must say alike, or neither can read the KV cache of the other.
ALIKE = ("kv-cache-dtype", "dtype", "quantization", "max-model-len", vllm.HYBRID)
OWN_KEYS = ("kv_role", "engine_id", "kv_rank", "kv_ip", "kv_port")  # of a transfer, of each worker
ROLES = {"prefill": ("kv_producer", "kv_both"), "decode": ("kv_consumer", "kv_both")}
OFFLOADS = ("SimpleCPUOffloadConnector", "OffloadingConnector")  # connectors that reach no other worker
BUFFER = "cache_transceiver_config"  # of TensorRT-LLM's file
LOWEST = {"migration-limit": 0, ROUTER_BLOCK: 1, "router-temperature": 0}
# Of its client of etcd: what each holds is the PEM text, not a path (lib/runtime/src/transports/etcd.rs).
ETCD_TLS = {"ETCD_AUTH_CA": "ca.crt", "ETCD_AUTH_CLIENT_CERT": "tls.crt", "ETCD_AUTH_CLIENT_KEY": "tls.key"}
NATS_TLS = {
    "NATS_TLS_CA_CERT_PATH": "ca.crt",
    "NATS_TLS_CLIENT_CERT_PATH": "tls.crt",
    "NATS_TLS_CLIENT_KEY_PATH": "tls.key",
}
NATS_TLS_SINCE = "1.6.1"  # the names are in its runtime, and not in those of 1.0.2, 1.3.1 and 1.4.2
TOGETHER = ("agg", "pd", "prefill_and_decode")  # modes in which a worker does both


def setting(entry, flag):
    """What a server runs with for a flag of Dynamo's own: its command line, else its environment; None for neither."""
    given = [entry["arguments"].get(flag), *(entry["environment"].get(name) for name in VARIABLES[flag])]
    return next((value for value in given if value is not None), None)


def mode_of(entry):
    """prefill, decode, or agg for a worker that does both."""
    value = setting(entry, MODE)
    return "agg" if value is None or value in TOGETHER else str(value)


class Dynamo(Engine):
    """Dynamo. Its frontend knows no API keys (dynamo#8605). What holds for a worker is what its engine says."""

    name, label = "dynamo", "Dynamo"
    port, bind = "http-port", "http-host"
    wraps = tuple(WORKERS)
    flags = Fields("dynamo_flags.json", label)
    parsers = {"dyn-tool-call-parser": "tool", "dyn-reasoning-parser": "reasoning"}
    parser_plugins = ()
    check_parsers = vllm.Vllm.check_parsers
    versions = r"(?:^ai[-_]dynamo(?:\[[^\]]*\])?==|(?:^|/)(?:vllm|tensorrtllm)-runtime:)([^@;\s]+)"

    def operations(self, host, venv):
        """Those of the workers' engine."""
        return host.engine(host.role("dynamo").value("dynamo_backend", host.recipe.get("backend") or "vllm"), venv)

    def running(self, backend):
        return Worker(WORKERS[backend]) if backend else self

    def check(self, where, server):
        super().check(where, server)
        self._check_version(where, server.recipe)
        if server.context["role"] != "frontend":
            self._check_ports(where, server)

    def check_options(self, where, server):
        super().check_options(where, server)
        version, program = self.version(server.recipe), self.program(server.command)
        if program is None:
            return
        given = [*vllm.given_of(server, server.command.index(program)), *self._variables(server.environment, program)]
        for place, flag, value in given:
            name, low = flag.replace("_", "-"), LOWEST.get(flag.replace("_", "-"))
            if low is not None and number(value, False) is not None and number(value, False) < low:
                raise FleetError(
                    "plan.dynamo-number-too-low",
                    "%s: %s is %s; allowed: at least %d. Raise it.",
                    (where, place, show(value), low),
                )
            if name == "connector" and program == "dynamo.vllm" and value not in (None, False, "none", ["none"]):
                raise FleetError(
                    "plan.dynamo-connector",
                    "%s: %s is %s, which %s refuses; write arguments.%s instead.",
                    (where, place, show(value), program, TRANSFER),
                )
        command_line.check(where, self.sources(server.recipe["platform"], version, program, server.arguments), given)
        self.check_parsers(where, server, self.name)

    def notes(self, entry, version, hardware):
        """What the record of its own options leaves open."""
        program = self.program(entry["command"])
        if program is None:
            return []
        sources = self.sources(entry["platform"], version, program, entry["arguments"])
        return command_line.notes(sources, entry["command"][entry["command"].index(program) + 1 :])

    def program(self, command):
        """The module of Dynamo that a command runs, None for another program."""
        return next((word for word in command if word in self.flags.data["models"]), None)

    def sources(self, platform, version, program, values):
        """What the options of a program are held against; the engine's own last. values: {flag: value}."""
        return [command_line.Source(self.flags, (program,), version)]

    def _variables(self, environment, program):
        """[(place, option, value)] of the variables that are an option's default; switches take many words there."""
        models = self.flags.data["models"]
        for name, history in models["environment"].items():
            option = [one for one in history.values() if one][-1]
            specs = [one for one in models[program].get(option, {}).values() if one]
            if environment.get(name) and specs and not str(specs[-1]).startswith("switch"):
                yield "environment." + name, option, environment[name]

    def takes_one(self, service, tls):
        """Of NATS, where a list is no URL to it; of etcd with TLS, where 1.6.1 does not start while one of several
        does not answer (without TLS it does)."""
        return service == "nats" or tls

    def needs(self, server, environment):
        """Neither etcd nor NATS may be away when one of its processes starts: it ends after 120 s at the latest."""
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
        """Certificates of this node, where a service has TLS and the recipe gives none."""
        given = {**server.environment, **secrets}
        texts = _client_files(where, given, "ETCD_ENDPOINTS", "https://", ETCD_TLS, folders.get("etcd"))
        paths = _client_files(where, given, "NATS_SERVER", "tls://", NATS_TLS, folders.get("nats"))
        version = self.version(server.recipe)
        if paths and version and version < Version(NATS_TLS_SINCE):
            raise FleetError(
                "plan.dynamo-nats-tls",
                "%s: NATS has TLS (%s), which Dynamo %s cannot use; allowed: %s or newer. Choose one of these, or set "
                "DYN_EVENT_PLANE: zmq and DYN_REQUEST_PLANE: tcp, which need no NATS.",
                (where, given["NATS_SERVER"], str(version), NATS_TLS_SINCE),
            )
        return texts, paths

    def _check_version(self, where, recipe):
        version = self.version(recipe)
        if version is None or str(version) not in PAIRS:
            raise FleetError(
                "plan.dynamo-unknown",
                "%s: it is not known which Dynamo it runs (%s); allowed: %s. Name it in venv.packages as "
                "ai-dynamo==VERSION, in container.image as the tag of a vllm-runtime or tensorrtllm-runtime image, or "
                "in container.version.",
                (where, version or "neither the packages nor the image say", ", ".join(PAIRS)),
            )
        backend = recipe.get("backend")
        packages = (recipe.get("venv") or {}).get("packages") or () if not recipe.get("container") else ()
        expected = PAIRS[str(version)].get(backend)
        for match in (re.search(PACKAGES[backend], package) for package in packages if backend):
            if match and expected and _release(match.group(1)) != _release(expected):
                raise FleetError(
                    "plan.dynamo-versions-do-not-pair",
                    "%s: Dynamo %s goes with %s %s, but venv.packages has %s, whose interfaces differ. Change one of "
                    "the two.",
                    (where, str(version), WORKERS[backend].label, expected, match.group(1)),
                )

    def _check_ports(self, where, server):
        """A port that the plan does not know may be another server's."""
        ports = {name: server.context.get(name) for name in server.own_names}
        given = [("environment." + name, server.environment.get(name), kind) for name, kind in PORTS.items()]
        with contextlib.suppress(Unreadable):
            endpoint = str(read_mapping(server.arguments, EVENTS).get("endpoint") or "")
            given.append(("arguments." + EVENTS, endpoint.rpartition(":")[2] or None, "kv_events"))
        for key, value, kind in given:
            if value is not None and str(value) != str(ports.get(kind)):
                raise FleetError(
                    "plan.dynamo-port-not-planned",
                    "%s: %s has the port %s, which the plan does not know, so that two servers may get the same. Write "
                    "${%s} there and set servers.%s.ports.%s.",
                    (where, key, value, kind, server.context["group"], kind),
                )

    def check_host(self, entries, clustered, mistakes):
        """Servers of one deployment must fit together. clustered: whether more of them are on other hosts."""
        frontends = [entry for entry in entries if entry["role"] == "frontend"]
        workers = [entry for entry in entries if entry["role"] in ("prefill", "decode")]
        checks = (self._check_modes, self._check_blocks, self._check_drafts, self._check_transfers, self._check_alike)
        for check in checks:
            with mistakes.noted():
                check(frontends, workers, clustered)
        with mistakes.noted():
            self._check_discovery(entries, clustered)

    @staticmethod
    def _check_modes(frontends, workers, clustered):
        modes = {}
        for entry in workers:
            mode = mode_of(entry)
            modes.setdefault(mode, entry["name"])
            if mode != entry["role"] and not (mode == "agg" and entry["role"] == "decode"):
                raise FleetError(
                    "plan.dynamo-mode-not-role",
                    "server '%s': %s is %s, but its role is %s; allowed: %s. Correct one of the two.",
                    (entry["name"], MODE, mode, entry["role"],
                     "prefill" if entry["role"] == "prefill" else "decode, or agg for a worker that does both"),
                )  # fmt: skip
        if "prefill" in modes and "agg" in modes:
            raise FleetError(
                "plan.dynamo-prefill-unused",
                "server '%s' does prefill and decode (%s agg), so '%s' would get no requests. Set "
                "servers.prefill.count to 0, or %s of the others to decode.",
                (modes["agg"], MODE, modes["prefill"], MODE),
            )
        if clustered:
            return
        for mode, other in (("prefill", "decode"), ("decode", "prefill")):
            if mode in modes and other not in modes:
                raise FleetError(
                    "plan.dynamo-half",
                    "server '%s' does %s alone, but no server does %s, so no request could be served as planned. Give "
                    "the group with role %s a count above 0, or let all workers do both (arguments.%s: agg).",
                    (modes[mode], mode, other, other, MODE),
                )
        if workers and not frontends:
            raise FleetError(
                "plan.dynamo-no-frontend",
                "'%s' is a worker, but no server has the role frontend, so nobody could ask it. Add one, or set "
                "fleet_cluster where it is on another host.",
                (workers[0]["name"],),
            )

    @staticmethod
    def _check_blocks(frontends, workers, _clustered):
        """A router that counts in other blocks than the workers finds nothing in their caches."""
        for frontend in frontends:
            if setting(frontend, ROUTER) != "kv":
                continue
            mine = setting(frontend, ROUTER_BLOCK)
            for worker in workers:
                size = _block_size(worker)
                if mine is None or size is None or str(mine) != str(size):
                    raise FleetError(
                        "plan.dynamo-block-size",
                        "server '%s': arguments.%s is %s, but arguments.%s of '%s' is %s; a router with %s kv needs "
                        "one size in both. Set both to the same number.",
                        (frontend["name"], ROUTER_BLOCK, show(mine), BLOCK, worker["name"], show(size), ROUTER),
                    )
        sizes = {str(_block_size(entry)): entry for entry in reversed(workers)}
        if len(sizes) > 1 and len({mode_of(entry) for entry in workers}) > 1:
            first, second = [sizes[key] for key in sorted(sizes)][:2]
            raise FleetError(
                "plan.dynamo-block-sizes-of-workers",
                "servers '%s' and '%s' have blocks of %s and %s tokens (arguments.%s), so neither could read the KV "
                "cache of the other. Set it for both alike.",
                (first["name"], second["name"], show(_block_size(first)), show(_block_size(second)), BLOCK),
            )

    @staticmethod
    def _check_drafts(_frontends, workers, _clustered):
        """With a draft the KV cache has other layers, which the other side could not read."""
        drafts = {_canonical(entry["arguments"].get(DRAFT)): entry["name"] for entry in reversed(workers)}
        if len(drafts) > 1 and len({mode_of(entry) for entry in workers}) > 1:
            one, other = sorted(drafts.values())[:2]
            raise FleetError(
                "plan.dynamo-speculation-differs",
                "servers '%s' and '%s' differ in arguments.%s, so the KV cache of one cannot be read by the other. "
                "Give it to prefill and decode alike, or to neither.",
                (one, other, DRAFT),
            )

    @staticmethod
    def _check_transfers(_frontends, workers, _clustered):
        """Prefill hands its KV cache to decode by a connector that both have, each in its part."""
        first = None
        for worker in [one for one in workers if mode_of(one) == one["role"]]:
            place, settings = _transfer(worker)
            if not settings:
                raise FleetError(
                    "plan.dynamo-no-transfer",
                    "server '%s' does %s alone, but %s is not set, so no KV cache would pass between the workers. Set "
                    "it for prefill and decode alike, or let all workers do both (arguments.%s: agg).",
                    (worker["name"], mode_of(worker), place, MODE),
                )
            role, connector = settings.get("kv_role"), settings.get("kv_connector")
            allowed = ROLES[mode_of(worker)]
            if place.endswith(TRANSFER) and (connector is None or connector in OFFLOADS):
                raise FleetError(
                    "plan.dynamo-no-transfer",
                    "server '%s' does %s alone, but %s.kv_connector is %s, which reaches no other worker. Write "
                    "NixlConnector, for prefill and decode alike.",
                    (worker["name"], mode_of(worker), place, show(connector)),
                )
            if place.endswith(TRANSFER) and role not in allowed:
                raise FleetError(
                    "plan.dynamo-transfer-role",
                    "server '%s' does %s, but %s.kv_role is %s; allowed: %s. Correct it.",
                    (worker["name"], mode_of(worker), place, show(role), " or ".join(allowed)),
                )
            shared = {key: value for key, value in settings.items() if key not in OWN_KEYS}
            first = first or (worker["name"], shared)
            for key in sorted({*shared, *first[1]}):
                if shared.get(key) != first[1].get(key):
                    raise FleetError(
                        "plan.dynamo-transfer-differs",
                        "servers '%s' and '%s' differ in %s.%s (%s, %s), so one could not read what the other sends. "
                        "Set it for both alike.",
                        (first[0], worker["name"], place, key, show(first[1].get(key)), show(shared.get(key))),
                    )

    @staticmethod
    def _check_alike(frontends, workers, _clustered):
        """What decides about the form of a KV cache, about a model's name and about the protocol is one for all."""
        cached = [one for one in workers if mode_of(one) in ROLES]
        questions = [(cached, "arguments." + name, lambda one, name=name: one["arguments"].get(name)) for name in ALIKE]
        questions += [
            (cached, "config.content.kv_cache_config." + name, lambda one, name=name: _cache(one).get(name))
            for name in ("dtype", "tokens_per_block")
        ]
        everyone = [*frontends, *workers]
        questions += [
            (everyone, "model.id", lambda one: one["model_id"]),
            (cached, "model.path", lambda one: one["weights"][0]),
            ([one for one in everyone if one["container"]], "container.image",
             lambda one: (one["container"]["image"], one["container"]["digest"])),
            ([one for one in everyone if one in workers or setting(one, "namespace")], "DYN_NAMESPACE",
             lambda one: setting(one, "namespace")),
        ]  # fmt: skip
        for entries, place, read in questions:
            for entry in entries[1:]:
                if read(entry) != read(entries[0]):
                    raise FleetError(
                        "plan.dynamo-servers-differ",
                        "servers '%s' and '%s' differ in %s (%s, %s); servers of one deployment must agree on it. Set "
                        "it for all alike.",
                        (entries[0]["name"], entry["name"], place, show(read(entries[0])), show(read(entry))),
                    )

    @staticmethod
    def _check_discovery(entries, clustered):
        mistakes = Mistakes()
        for entry in entries:
            for name, (pattern, example) in ADDRESSES.items():
                given = entry["environment"].get(name)
                if given and not all(pattern.fullmatch(one.strip()) for one in given.split(",")):
                    mistakes.add(
                        "plan.dynamo-address-invalid",
                        "server '%s': environment.%s is %s; allowed: %s. Correct it.",
                        (entry["name"], name, show(given), example),
                    )
            for plane in ("request-plane", "event-plane"):
                if setting(entry, plane) == "nats" and not entry["environment"].get(NEEDED["nats"]):
                    mistakes.add(
                        "plan.dynamo-plane-incomplete",
                        "server '%s': %s is nats, but environment.%s is not set, so it would look at this host's own "
                        "default. Set it for all servers, or %s to %s.",
                        (entry["name"], VARIABLES[plane][0], NEEDED["nats"], VARIABLES[plane][0],
                         "tcp" if plane == "request-plane" else "zmq"),
                    )  # fmt: skip
            backend = str(setting(entry, "discovery-backend") or "etcd")
            if backend in UNUSABLE:
                mistakes.add(
                    "plan.dynamo-discovery-unusable",
                    "server '%s': discovery is by %s, which %s; allowed: etcd, or file on one host. Set "
                    "environment.DYN_DISCOVERY_BACKEND.",
                    (entry["name"], backend, UNUSABLE[backend]),
                )
            needed = NEEDED.get(backend)
            if needed and not entry["environment"].get(needed):
                mistakes.add(
                    "plan.dynamo-discovery-incomplete",
                    "server '%s': discovery is by %s, but environment.%s is not set, so it would look at this host's "
                    "own default. Set it for all servers.",
                    (entry["name"], backend, needed),
                )
            if backend == "file" and clustered:
                mistakes.add(
                    "plan.dynamo-file-discovery",
                    "server '%s': discovery is by file, which other hosts of fleet_cluster cannot see; allowed: etcd. "
                    "Set environment.DYN_DISCOVERY_BACKEND and ETCD_ENDPOINTS.",
                    (entry["name"],),
                )
            for key in ("ETCD_ENDPOINTS", "NATS_SERVER") if clustered else ():
                places = _listed(entry["environment"].get(key))
                if places and all(LOOPBACK.search(one) for one in places):
                    mistakes.add(
                        "plan.dynamo-loopback",
                        "server '%s': environment.%s is %s, which is another service on each host of fleet_cluster. "
                        "Write ${%s} there, which the hosts of the group '%s' give, or an address that all reach.",
                        (entry["name"], key, ",".join(places), *2 * [key.partition("_")[0].lower()]),
                    )
        mistakes.raise_any()
        for key in (*SHARED, *PLACES):
            first = None
            for entry in entries:
                value = setting(entry, key) if key in VARIABLES else entry["environment"].get(key)
                first = first or (entry["name"], value)
                if value != first[1]:
                    raise FleetError(
                        "plan.dynamo-discovery-differs",
                        "servers '%s' and '%s' differ in %s (%s, %s), so they would not find each other. Set it for "
                        "all servers alike.",
                        (first[0], entry["name"], VARIABLES.get(key, (key,))[0], show(first[1]), show(value)),
                    )


class Worker(Dynamo):
    """Dynamo around another engine."""

    TAKEN = ("parallel", "aliases", "config_wins", "whole", "sizes", "shares", "lengths", "variables", "automatic",
             "knobs", "longer", "memory", "takes")  # fmt: skip

    def __init__(self, engine):
        self.engine = engine
        for name in self.TAKEN:
            setattr(self, name, getattr(engine, name))

    def sources(self, platform, version, program, values):
        own = super().sources(platform, version, program, values)
        if not program.endswith(".vllm"):
            return own
        return [*own, *self.engine.sources(platform, self._its_version(version), values, (vllm.SHARED,))]

    def check_config(self, where, server, version):
        if server.context["role"] != "frontend":
            self.engine.check_config(where, server, self._its_version(version))

    def notes(self, entry, version, hardware):
        found = super().notes(entry, version, hardware)
        return found if entry["role"] == "frontend" else [
            *found, *self.engine.notes(entry, self._its_version(version), hardware)
        ]  # fmt: skip

    def _its_version(self, version):
        """The version of the engine that a version of Dynamo is made for, None where that is not known."""
        its = PAIRS.get(str(version), {}).get(self.engine.name)
        return its and Version(its)


def _client_files(where, given, endpoint, scheme, files, folder):
    """{ENV: file} of a service's certificates that are still to be given, {} where it has no TLS or they are."""
    missing = [name for name in files if name not in given]
    if scheme not in str(given.get(endpoint, "")) or not missing:
        return {}
    if len(missing) == len(files) and folder:
        return {name: "%s/%s" % (folder, file) for name, file in files.items()}
    if endpoint == "NATS_SERVER" and "NATS_TLS_CA_CERT_PATH" in given and "NATS_AUTH_PASSWORD" in given:
        return {}  # with a login the server asks for no certificate
    raise FleetError(
        "plan.dynamo-certificates",
        "%s: %s is %s, with TLS, and %s is not set. Give all of %s in secrets or environment; or none of them, with "
        "the placeholder of a service whose role here makes certificates.",
        (where, endpoint, given[endpoint], missing[0], ", ".join(files)),
    )


def _listed(value):
    return [one.strip() for one in (value or "").split(",") if one.strip()]


def _transfer(worker):
    """(place, mapping) of what a worker says on how its KV cache reaches others."""
    content = (worker["config"] or {}).get("content") or {}
    if TRANSFER in worker["arguments"] or not worker["config"]:
        try:
            return "arguments." + TRANSFER, read_mapping(worker["arguments"], TRANSFER)
        except Unreadable:
            return "arguments." + TRANSFER, {}
    return "config.content." + BUFFER, content.get(BUFFER) or {}


def _cache(worker):
    """The block of a worker's file on its KV cache."""
    block = ((worker["config"] or {}).get("content") or {}).get("kv_cache_config")
    return block if isinstance(block, dict) else {}


def _block_size(worker):
    """Tokens in a block of a worker's KV cache, None where its engine chooses."""
    return worker["arguments"].get(BLOCK) or worker["arguments"].get("kv-block-size")


def _release(version):
    """A version without what says where it was built, and without trailing zeros."""
    return re.sub(r"(\.0)+$", "", str(version).partition("+")[0])


def _canonical(value):
    """A flag's JSON in one form; other text as it is."""
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True)
    except ValueError:
        return str(value)


ENGINE = Dynamo()
