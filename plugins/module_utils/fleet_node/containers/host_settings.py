# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node's container engine: faults, changed settings, and restarts of docker that are pending.

The role container_engine writes the settings. A record on the node contains a hash of the role's arguments and of each
file that the role manages; the role has work to do if one of them differs. A marker file in /run lists the settings
that docker applies only at its next start.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import stat
import time

from ..errors import FleetError
from ..host import commands
from ..host import paths as host_paths
from ..host.directories import make_directory
from ..host.files import read_json, read_text, write_atomic
from ..host.paths import NodePaths
from ..host.server_spec import canonical
from .engine import LABEL_SERVER, Engine, EngineError
from .launcher import engine_failure, engine_problem

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
DOCKER_PID = "/run/docker.pid"
START_S = 60
SYSTEMCTL_S = 180  # docker starts all its containers before it is up
SYSTEMD_RUNS = "/run/systemd/system"
UNITS, UNIT_FOLDERS = ("docker.service", "docker.socket"), ("/etc/systemd/system/", "/run/systemd/system/")
OF_SYSTEMD = re.compile(r"Failed to start |docker\.service: ")
FAILURE = re.compile(r"(?i)\b(?:unable|failed|fatal|error|invalid|cannot)\b")


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
        self.marker = sysroot + NodePaths(root).run + "/docker-restart"

    def missing(self):
        """[program that is not installed]: the engine, or the init that podman requires."""
        if shutil.which(self.kind, path=host_paths.PATH) is None:
            return [self.kind]
        folders = PODMAN_INIT_FOLDERS if self.kind == "podman" else ()
        if folders and not any(os.path.exists("%s%s/%s" % (self.sysroot, one, PODMAN_INIT)) for one in folders):
            return [PODMAN_INIT]
        return []

    def error(self):
        """The EngineError of an engine that does not answer, or None."""
        try:
            self.engine.ping()
        except EngineError as error:
            return error
        return None

    def ask(self, *arguments):
        """The output of the engine's client. Raises FleetError."""
        try:
            return self.engine.call(*arguments)
        except EngineError as error:
            raise engine_failure(self.engine, error) from error

    def running(self):
        """(names of running containers of the fleet, names of other running containers)."""
        rows = [
            line.partition("\t")
            for line in self.ask("ps", "--format", '{{.Names}}\t{{.Label "%s"}}' % LABEL_SERVER).splitlines()
        ]
        return sorted(name for name, _tab, label in rows if label), sorted(
            name for name, _tab, label in rows if not label
        )

    def live_restore(self):
        """Whether containers continue to run while docker restarts."""
        return self.ask("info", "--format", "{{.LiveRestoreEnabled}}").strip() == "true"

    def serves_cdi(self):
        """Whether docker accepts CDI devices already: its default since 28.2."""
        try:
            return bool(self.engine.cdi()[1])
        except EngineError:
            return False

    # ---- systemd

    def has_systemd(self):
        """The path of systemctl if systemd runs, else None."""
        runs = os.path.isdir(self.sysroot + SYSTEMD_RUNS)
        return shutil.which("systemctl", path=host_paths.PATH) if runs else None

    def systemctl(self, *arguments):
        """The output of systemctl. Raises FleetError."""
        path = self.has_systemd()
        if path is None:
            raise FleetError(
                "containers.no-systemd",
                "%s does not run or needs a restart, and this node has no systemd. Start or restart it with the node's "
                "service manager.",
                (self.kind,),
            )
        done = commands.run([path, *arguments], limit_s=SYSTEMCTL_S)
        if done.returncode:
            raise FleetError(
                "containers.systemctl-failed",
                "'systemctl %s' failed: %s.%s Correct the cause and run the play again.",
                (" ".join(arguments), done.stderr.strip().rstrip("."), self._journal()),
            )
        return done.stdout

    def _journal(self):
        """The last error in docker's journal, for an error message; an empty string if there is none."""
        journalctl = shutil.which("journalctl", path=host_paths.PATH)
        if journalctl is None:
            return ""
        argv = [journalctl, "--unit=docker.service", "--lines=20", "--no-pager", "--quiet", "--output=cat"]
        lines = [
            line
            for line in commands.run(argv).stdout.splitlines()
            if FAILURE.search(line) and not OF_SYSTEMD.match(line)
        ]
        return " Docker's journal: %s." % lines[-1].strip().rstrip(".")[:300] if lines else ""

    def masked(self):
        """The masked unit of docker, or None."""
        links = {unit: [os.path.realpath(self.sysroot + folder + unit) for folder in UNIT_FOLDERS] for unit in UNITS}
        return next((unit for unit, paths in links.items() if os.devnull in paths), None)

    def check_start(self, error):
        """Raises FleetError if docker, which returned this EngineError, cannot be started."""
        if error.kind == "down" and self.masked():
            raise _masked_error(self.masked())
        if error.kind in ("down", "timeout"):
            state = self.systemctl("show", "--property=ActiveState", "docker.service").split()
            if error.kind == "down" or "ActiveState=active" not in state:  # not active: it starts and answers late
                return
        raise engine_failure(self.engine, error)

    # ---- settings

    def daemon_json_mode(self):
        """The mode of daemon.json as an octal string, None without the file. Raises FleetError if it is not valid."""
        path = self.sysroot + DAEMON_JSON
        text = (read_text(path) or "").strip()
        try:
            if text and not isinstance(json.loads(text), dict):
                raise ValueError("it contains no mapping")
        except ValueError as error:
            raise FleetError(
                "containers.daemon-json-invalid",
                "%s is no valid JSON (%s), and docker does not start with it. Correct or remove the file.",
                (DAEMON_JSON, error),
            ) from error
        return "%04o" % stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else None

    def digests(self, inputs):
        """{path: digest of content, mode and owner, null without a file} of what decides the engine's settings."""
        own = OWN_FILES[self.kind] + ([DAEMON_JSON] if self.kind == "docker" else [])
        found = glob.glob(glob.escape(self.sysroot) + CERTIFICATES[self.kind])
        paths = [*(self.sysroot + path for path in own), *sorted(found), inputs["ca_bundle"]]
        return {path: _digest(path) for path in paths if path}

    def recorded(self):
        """{hash of arguments: digests()} of the last runs of the role."""
        found = (read_json(self.record) or {}).get(self.kind)
        return found if isinstance(found, dict) and all(map(re.compile("[0-9a-f]{64}").match, found)) else {}

    def write_record(self, of_kind):
        """Replace this engine's part of the record; the file is removed with its last part."""
        wanted = {kind: one for kind, one in {**(read_json(self.record) or {}), self.kind: of_kind}.items() if one}
        if wanted:
            make_directory(os.path.dirname(self.record))
            write_atomic(self.record, json.dumps(wanted, indent=1) + "\n", mode=0o600)
        elif os.path.exists(self.record):
            os.unlink(self.record)

    def pending(self):
        """The settings that docker applies at its next start, as the marker lists them; empty if there are none."""
        if self.kind != "docker" or not os.path.exists(self.marker):
            return ""
        pid = self.sysroot + DOCKER_PID
        if os.path.exists(pid) and os.stat(pid).st_mtime_ns > os.stat(self.marker).st_mtime_ns:
            # a start from an outdated unit lacks what the new unit adds
            show = ("show", "--property=NeedDaemonReload", "docker.service")
            if not self.has_systemd() or "NeedDaemonReload=yes" not in self.systemctl(*show):
                return ""
        return (read_text(self.marker) or "").strip()


def check(host, inputs):
    """The facts that the role container_engine works with, before any change. Raises FleetError.

    Returns {due: why the role has work to do or null, missing: [programs], running, daemon_json: the file's mode or
    null, proxies: whether the file with proxies exists, cdi: see serves_cdi(), servers, others: running containers of
    the fleet, and others that a restart stops}.
    """
    facts = {"running": False, "daemon_json": None, "cdi": False, "servers": [], "others": [], "proxies": False}
    missing = host.missing()
    if missing:
        return {"due": "%s is not installed" % missing[0], "missing": missing, **facts}
    _check_ca_bundle(inputs["ca_bundle"])
    error = host.error()
    if error and host.kind == "podman":
        raise engine_failure(host.engine, error)
    due = None
    if error:
        host.check_start(error)
        due = "docker does not run"
    elif host.recorded().get(_hash(inputs)) != host.digests(inputs) and (_sets(inputs) or host.recorded()):
        due = "the settings of %s differ" % host.kind
    if host.kind == "docker":
        facts["daemon_json"] = host.daemon_json_mode()
        facts["proxies"] = os.path.exists(host.sysroot + PROXY_FILE)
    facts["running"] = error is None
    if due and host.kind == "docker" and not error:
        facts["servers"], facts["others"] = host.running()
        facts["others"] = [] if host.live_restore() else facts["others"]
        facts["cdi"] = host.serves_cdi()
    return {"due": due, "missing": [], **facts}


def record(host, inputs):
    """Record that the role has applied these arguments."""
    kept = {key: one for key, one in host.recorded().items() if key != _hash(inputs)}
    while len(kept) >= RECORDS:
        del kept[next(iter(kept))]
    host.write_record({**kept, _hash(inputs): host.digests(inputs)})


def apply_pending(host, restart, check_mode):
    """Restart docker if settings wait for that. Returns the settings, or an empty string. Raises FleetError.

    restart: auto (not if that stops containers of others), always or never.
    """
    if restart == "never" or host.missing() or host.error():
        return ""
    keys = host.pending()
    if not keys:
        return ""
    others = host.running()[1] if restart == "auto" else []
    if others and not host.live_restore():
        raise FleetError(
            "containers.restart-would-end-others",
            "Docker needs a restart for %s, which stops containers that are not managed by this collection: %s. Stop "
            "them, set live-restore in container_engine_settings, or set container_engine_restart to always.",
            (keys, ", ".join(others)),
        )
    if not check_mode:
        host.systemctl("daemon-reload")
        host.systemctl("restart", "docker.service")
        _wait(host)
        os.unlink(host.marker)
    return keys


def remove(host, check_mode):
    """Remove the files of the role container_engine, except keys in daemon.json. Returns the paths."""
    if host.root and not host.recorded():
        return []
    paths = [host.sysroot + path for path in OWN_FILES[host.kind]]
    paths += sorted(glob.glob(glob.escape(host.sysroot) + CERTIFICATES[host.kind]))
    paths += [host.marker] if host.kind == "docker" else []
    found = [path for path in paths if os.path.lexists(path)]
    if not check_mode:
        for path in found:
            os.unlink(path)
        host.write_record({})
    return found


def pending_words(engine, root=""):
    """A sentence for a failure that a pending setting may have caused; an empty string if nothing is pending."""
    keys = Host(engine, root).pending()
    if not keys:
        return ""
    return (
        " Docker needs a restart for %s, which stops the servers that run in it. Run this step with -e "
        "container_engine_restart=always, on a few nodes at a time (--limit)." % keys
    )


def faults(engine, address=None, prepares=True, sysroot=""):
    """([problems that keep containers from starting], [problems that the step prepare solves]), as sentences.

    prepares: whether that step is part of the run. Raises FleetError if the engine hangs.
    """
    host = Host(engine, sysroot=sysroot, address=address)
    local_docker = engine == "docker" and not address
    try:
        if local_docker:
            host.daemon_json_mode()
        down = host.error()
        masked = host.masked() if local_docker else None
        if down is None:
            words = "%s is masked: no boot starts docker and the servers in it. Run 'systemctl unmask %s'."
            return [], [words % (masked, masked)] if masked else []
        if down.kind == "down" and masked:
            raise _masked_error(masked)
    except FleetError as error:
        return [error.message], []
    if down.kind == "timeout":
        raise engine_failure(host.engine, down)
    repairs = prepares and not address and os.geteuid() == 0
    if repairs and down.kind == "missing":
        return [], ["%s is not installed; the step prepare installs it." % engine]
    if repairs and down.kind == "down" and host.has_systemd():
        return [], ["%s does not run; the step prepare starts it." % engine]
    return [engine_problem(host.engine, down)], []


def _masked_error(unit):
    return FleetError(
        "containers.unit-masked",
        "Docker does not run, and its unit %s is masked. Run 'systemctl unmask %s', or set fleet_container_engine to "
        "podman.",
        (unit, unit),
    )


def _check_ca_bundle(path):
    if path and "-----BEGIN CERTIFICATE-----" not in (read_text(path) or ""):
        raise FleetError(
            "containers.ca-bundle-unreadable",
            "fleet_ca_bundle is %s, which is no file with certificates (PEM) on this node. Correct the path.",
            (path,),
        )


def _sets(inputs):
    """Whether the arguments contain a setting."""
    return any(inputs[key] for key in ("settings", "registry_mirrors", "insecure_registries", "ca_bundle", "proxy_env"))


def _hash(inputs):
    return hashlib.sha256(canonical(inputs)).hexdigest()


def _digest(path):
    try:
        status = os.stat(path)
        with open(path, "rb") as stream:
            return "%o %d %s" % (status.st_mode, status.st_uid, hashlib.sha256(stream.read()).hexdigest())
    except FileNotFoundError:
        return None


def _wait(host):
    end = time.monotonic() + START_S
    while True:
        error = host.error()
        if error is None:
            return
        if error.kind not in ("down", "timeout") or time.monotonic() > end:
            raise engine_failure(host.engine, error)
        time.sleep(0.3)
