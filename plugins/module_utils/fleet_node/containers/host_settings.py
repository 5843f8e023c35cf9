# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node's container engine, for preflight and for the role container_engine, which writes its settings.

A record on the node contains a hash of the arguments of the role and of the files that it manages; the role has work
to do if it differs.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import stat

from ..errors import FleetError
from ..host import paths as host_paths
from ..host.files import make_directory, read_json, read_text, write_atomic
from ..host.paths import NodePaths
from ..host.server_spec import digest
from .engine import Engine, EngineError, engine_failure, engine_problem

DAEMON_JSON = "/etc/docker/daemon.json"
DROP_IN = "/etc/systemd/system/docker.service.d/inference-fleet.conf"
PROXY_FILE = "/etc/inference-fleet/docker-proxy.env"
PODMAN_REGISTRIES = "/etc/containers/registries.conf.d/inference-fleet.conf"
OWN_FILES = {"docker": [PROXY_FILE, DROP_IN], "podman": [PODMAN_REGISTRIES]}
CERTIFICATES = {
    "docker": "/etc/docker/certs.d/*/inference-fleet.crt",
    "podman": "/etc/containers/certs.d/*/inference-fleet.crt",
}
# podman has no init for --init: containers.conf(5), init_path and helper_binaries_dir.
PODMAN_INIT = "catatonit"
PODMAN_INIT_FOLDERS = (
    "/usr/libexec/podman",
    "/usr/local/libexec/podman",
    "/usr/lib/podman",
    "/usr/local/lib/podman",
    "/usr/bin",
)
RECORDS = 8  # of callers with different arguments
SYSTEMD_RUNS = "/run/systemd/system"


class Host:
    """A node and one of its container engines.

    root: parent of the folders of this collection. sysroot: parent of all other files.
    """

    def __init__(self, kind, root="", sysroot="", address=None):
        self.kind = kind
        self.root = root
        self.sysroot = sysroot
        self.engine = Engine(kind, address)
        self.record = sysroot + NodePaths(root).lib + "/container_engine.json"

    def missing(self):
        """[program that is not installed]: the engine, or the init that podman requires."""
        if shutil.which(self.kind, path=host_paths.PATH) is None:
            return [self.kind]
        folders = PODMAN_INIT_FOLDERS if self.kind == "podman" else ()
        if folders and not any(os.path.exists("%s%s/%s" % (self.sysroot, one, PODMAN_INIT)) for one in folders):
            return [PODMAN_INIT]
        return []

    def daemon_json_mode(self):
        """The mode of daemon.json as an octal string, None without the file. Raises FleetError if it is not valid."""
        path = self.sysroot + DAEMON_JSON
        text = (read_text(path) or "").strip()
        try:
            if text and not isinstance(json.loads(text), dict):
                raise ValueError("it contains no mapping")
        except ValueError as error:
            raise FleetError("containers.daemon-json-invalid", DAEMON_JSON, error) from error
        return "%04o" % stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else None

    def own_files(self):
        """[path] of the files of the role container_engine; those outside of certs.d may not exist."""
        certificates = glob.glob(glob.escape(self.sysroot) + CERTIFICATES[self.kind])
        return [*(self.sysroot + path for path in OWN_FILES[self.kind]), *sorted(certificates)]

    def state(self, inputs):
        """A hash of what decides the engine's settings: the role's arguments, and content, mode and owner of files."""
        shared = [self.sysroot + DAEMON_JSON] if self.kind == "docker" else []
        digests = [[path, _digest(path)] for path in [*self.own_files(), *shared, inputs["ca_bundle"]] if path]
        return digest([inputs, digests])

    def recorded(self):
        """[state()] after the last runs of the role."""
        found = (read_json(self.record) or {}).get(self.kind)
        return found if isinstance(found, list) else []

    def write_record(self, states):
        """Replace this engine's part of the record; the file is removed with its last part."""
        wanted = {kind: one for kind, one in {**(read_json(self.record) or {}), self.kind: states}.items() if one}
        if wanted:
            make_directory(os.path.dirname(self.record))
            write_atomic(self.record, json.dumps(wanted, indent=1) + "\n", mode=0o600)
        elif os.path.exists(self.record):
            os.unlink(self.record)


def check(host, inputs):
    """The facts that the role container_engine works with, before any change. Raises FleetError.

    Returns {due: why the role has work to do or null, missing: [programs], running, daemon_json: the file's mode or
    null, proxies: whether the file with proxies exists, cdi: whether docker accepts CDI devices already (its default
    since 28.2), stopped: [name] of the running containers that a restart of docker stops}.
    """
    facts = {"running": False, "daemon_json": None, "cdi": False, "stopped": [], "proxies": False}
    missing = host.missing()
    if missing:
        return {"due": "%s is not installed" % missing[0], "missing": missing, **facts}
    bundle = inputs["ca_bundle"]
    if bundle and "-----BEGIN CERTIFICATE-----" not in (read_text(bundle) or ""):
        raise FleetError("containers.ca-bundle-unreadable", bundle)
    error = host.engine.fault()
    if error and (host.kind == "podman" or error.kind != "down"):
        raise engine_failure(host.engine, error)
    due = None
    if error:
        due = "docker does not run"
    elif host.state(inputs) not in host.recorded() and (_sets(inputs) or host.recorded()):
        due = "the settings of %s differ" % host.kind
    if host.kind == "docker":
        facts["daemon_json"] = host.daemon_json_mode()
        facts["proxies"] = os.path.exists(host.sysroot + PROXY_FILE)
    facts["running"] = error is None
    if due and host.kind == "docker" and not error:
        try:
            info = host.engine.info()
            stopped = [] if info.get("LiveRestoreEnabled") else host.engine.call("ps", "--format", "{{.Names}}").split()
        except EngineError as problem:
            raise engine_failure(host.engine, problem) from problem
        facts.update(stopped=sorted(stopped), cdi=bool(info.get("CDISpecDirs")))
    return {"due": due, "missing": [], **facts}


def record(host, inputs):
    """Record that the role has applied these arguments."""
    host.write_record([*host.recorded(), host.state(inputs)][-RECORDS:])


def remove(host, check_mode):
    """Remove the files of the role container_engine, except keys in daemon.json. Returns the paths."""
    if host.root and not host.recorded():
        return []
    found = [path for path in host.own_files() if os.path.lexists(path)]
    if not check_mode:
        for path in found:
            os.unlink(path)
        host.write_record({})
    return found


def faults(engine, address=None, prepares=True, sysroot=""):
    """([problems that keep containers from starting], [problems that the step prepare solves]), as sentences.

    prepares: whether that step is part of the run. Raises FleetError if the engine hangs.
    """
    host = Host(engine, sysroot=sysroot, address=address)
    try:
        if engine == "docker" and not address:
            host.daemon_json_mode()
    except FleetError as error:
        return [error.message], []
    down = host.engine.fault()
    if down is None:
        return [], []
    if down.kind == "timeout":
        raise engine_failure(host.engine, down)
    repairs = prepares and not address and os.geteuid() == 0
    if repairs and down.kind == "missing":
        return [], ["%s is not installed; the step prepare installs it." % engine]
    if repairs and down.kind == "down" and os.path.isdir(sysroot + SYSTEMD_RUNS):
        return [], ["%s does not run; the step prepare starts it." % engine]
    return [engine_problem(host.engine, down)], []


def _sets(inputs):
    """Whether the arguments contain a setting."""
    return any(inputs[key] for key in ("settings", "registry_mirrors", "insecure_registries", "ca_bundle", "proxy_env"))


def _digest(path):
    try:
        status = os.stat(path)
        with open(path, "rb") as stream:
            return "%o %d %s" % (status.st_mode, status.st_uid, hashlib.sha256(stream.read()).hexdigest())
    except FileNotFoundError:
        return None
