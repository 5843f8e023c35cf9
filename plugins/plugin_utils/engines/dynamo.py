# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: a frontend, and workers that are one of other engines (`python3 -m dynamo.trtllm`, `dynamo.vllm`)."""

from __future__ import annotations

import contextlib
import json
import re

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import trtllm, vllm
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import Engine, Unreadable, read_mapping
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.checks import Mistakes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import show

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
    "1.0.2": {},
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
}
# By what the processes of one deployment find each other; all must say the same. {name: where it is read}
SHARED = ("discovery-backend", "request-plane", "event-plane")
PLACES = ("DYN_FILE_KV", "ETCD_ENDPOINTS", "NATS_SERVER")
PORTS = {"DYN_SYSTEM_PORT": "system", "VLLM_NIXL_SIDE_CHANNEL_PORT": "side_channel"}
NEEDED = {"etcd": "ETCD_ENDPOINTS", "file": "DYN_FILE_KV"}  # of a discovery backend: without it each has its own
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
    versions = r"(?:^ai[-_]dynamo(?:\[[^\]]*\])?==|(?:^|/)(?:vllm|tensorrtllm)-runtime:)([^@;\s]+)"

    def running(self, backend):
        return Worker(WORKERS[backend]) if backend else self

    def check(self, where, server):
        super().check(where, server)
        self._check_version(where, server.recipe)
        if server.context["role"] != "frontend":
            self._check_ports(where, server)

    def takes_one(self, service, tls):
        """Of NATS, where a list is no URL to it; of etcd with TLS, where 1.6.1 does not start while one of several
        does not answer (without TLS it does)."""
        return service == "nats" or tls

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
        for check in (self._check_modes, self._check_blocks, self._check_drafts):
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
    def _check_discovery(entries, clustered):
        mistakes = Mistakes()
        for entry in entries:
            backend = str(setting(entry, "discovery-backend") or "etcd")
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

    def check_config(self, where, server, version):
        if server.context["role"] != "frontend":
            self.engine.check_config(where, server, self._its_version(version))

    def notes(self, entry, version, hardware):
        return [] if entry["role"] == "frontend" else self.engine.notes(entry, self._its_version(version), hardware)

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
