# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container engine that runs and reaches its registries: settings merged, proxies, certificates.

Docker's daemon.json is merged into, never replaced. The daemon reloads what it can take while it runs (SIGHUP) and is
restarted for the rest only, and not where that would end containers that are not the fleet's. Where the fleet's own
run, the restart waits for a step that takes the nodes in turns. A record on the node says what was set there, so that
what is not desired any more is taken back and what others set stays; and what docker was not reloaded or restarted
for yet, so that no end of a run loses that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time

from ..errors import FleetError
from ..node import commands, processes, trust
from ..node import paths as node_paths
from ..node.directories import make_directory
from ..node.files import read_json, read_text, write_atomic
from ..node.paths import NodePaths
from .engine import LABEL_SERVER, Engine, EngineError
from .launcher import engine_problem
from .settings_text import (
    DAEMON_JSON,
    WRITTEN,
    daemon_settings,
    hosts_with_tls,
    json_changes,
    podman_registries,
    proxy_file,
)

DROP_IN = "/etc/systemd/system/docker.service.d/inference-fleet.conf"
PROXY_FILE = "/etc/inference-fleet/docker-proxy.env"
PODMAN_REGISTRIES = "/etc/containers/registries.conf.d/inference-fleet.conf"
OWN_FILES = {"docker": [PROXY_FILE, DROP_IN], "podman": [PODMAN_REGISTRIES]}
CERTIFICATES = {"docker": "/etc/docker/certs.d", "podman": "/etc/containers/certs.d"}
# What the daemon takes while it runs: dockerd(8), "configuration reload behavior". Not `features`, though it stands
# there: whether there is CDI, and where images are kept, is decided at the start.
RELOADABLE = frozenset(
    (
        "debug", "default-runtime", "insecure-registries", "labels", "live-restore",
        "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts", "registry-mirrors", "runtimes",
        "shutdown-timeout",
    )
)  # fmt: skip
# A key that is gone from daemon.json is left as it was by a reload; these two are reset by an empty list.
RESET_BY_EMPTY = ("insecure-registries", "registry-mirrors")
# podman has no init of its own for --init: containers.conf(5), init_path and helper_binaries_dir.
PODMAN_INIT = "catatonit"
PODMAN_INIT_FOLDERS = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/local/lib/podman",
                       "/usr/bin")  # fmt: skip
DROP_IN_TEXT = WRITTEN + "[Service]\nEnvironmentFile=-%s\n" % PROXY_FILE
RESTARTS = ("auto", "always", "never")
STATES = ("present", "effective", "absent")
DOCKER_PID = "/run/docker.pid"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
START_S = 60
SYSTEMCTL_S = 180  # docker starts all its containers before it is up
RELOAD_S = 10
SYSTEMD_RUNS = "/run/systemd/system"
UNITS, UNIT_FOLDERS = ("docker.service", "docker.socket"), ("/etc/systemd/system/", "/run/systemd/system/")
OF_SYSTEMD = re.compile(r"Failed to start |docker\.service: ")
FAILS = re.compile(r"(?i)\b(?:unable|failed|fatal|error|invalid|cannot)\b")


class Setup:
    """One call. See ensure()."""

    def __init__(self, engine, root="", check_mode=False, sysroot=""):
        self.engine = Engine(engine)
        self.check_mode = check_mode
        self.sysroot = sysroot
        self.before, self.after, self.actions = [], [], []
        self.record = sysroot + NodePaths(root).lib + "/container_engine.json"
        found = (read_json(self.record) or {}).get(engine) or {}
        self.notes, self.files, self.folders = (found.get(key, []) for key in ("settings", "files", "folders"))
        # what docker has not taken yet: {restart, reload: [keys], gone: {key: items that it still has}, unit: whether
        # systemd has to read docker's unit before, start: during which start of docker it was set}; {} for nothing
        self.pending = found.get("pending", {})
        if not root:  # theirs by name, whoever wrote them
            self.files = sorted({*self.files, *OWN_FILES[engine]}, key=[*OWN_FILES[engine], *self.files].index)
        self.files = [path for path in self.files if os.path.exists(sysroot + path)]

    # ---- what is ours

    def remember(self, notes, files):
        """Record that these notes of settings and these files are the fleet's."""
        if self.check_mode:
            return
        record = read_json(self.record) or {}
        mine = {"settings": notes, "files": files, "folders": self.folders, "pending": self.pending}
        wanted = {kind: one for kind, one in {**record, self.engine.kind: mine}.items() if any(one.values())}
        if wanted == record:
            return
        if wanted:
            make_directory(os.path.dirname(self.record))
            write_atomic(self.record, json.dumps(wanted, indent=1, sort_keys=True) + "\n", mode=0o600)
        else:
            os.unlink(self.record)

    def tidy(self):
        """Folders that were made for the fleet's files go with the last of them."""
        if self.check_mode:
            return
        for folder in reversed(self.folders):
            with contextlib.suppress(OSError):
                os.rmdir(self.sysroot + folder)
        self.folders = [folder for folder in self.folders if os.path.isdir(self.sysroot + folder)]

    # ---- what is installed

    def program(self):
        return shutil.which(self.engine.kind, path=node_paths.PATH) is not None

    def missing(self):
        """The program that is not installed: the engine's own, or the init that podman needs; None for none."""
        if not self.program():
            return self.engine.kind
        folders = PODMAN_INIT_FOLDERS if self.engine.kind == "podman" else ()
        if folders and not any(os.path.exists(os.path.join(self.sysroot + one, PODMAN_INIT)) for one in folders):
            return PODMAN_INIT
        return None

    # ---- files

    def file(self, path, text, mode=0o644, secret=False, shown=None):
        """Whether `path` has another text than this one (None: no file); it is written then, unless in check mode.

        shown: (lines before, lines after) of the diff, instead of the whole texts.
        """
        place = self.sysroot + path
        old = read_text(place)
        if old == text and not trust.unsafe(place):
            return False
        lines = shown or (_shown(old, secret), _shown(text, secret))
        self.before += [path + ":", *(lines[0] if old is not None else _shown(None, secret))]
        self.after += [path + ":", *(lines[1] if text is not None else _shown(None, secret))]
        if self.check_mode:
            return True
        if text is None:
            os.unlink(place)
            return True
        made = make_directory(os.path.dirname(place))
        self.folders += [folder[len(self.sysroot) :] for folder in made]
        write_atomic(place, text, mode=mode)
        return True

    def differs(self, path, files):
        """Whether the file is another one than in `files`; one that is not in it and not ours is left as it is."""
        if path not in files and path not in self.files:
            return False
        place = self.sysroot + path
        return read_text(place) != files.get(path, (None,))[0] or trust.unsafe(place)

    def write_files(self, files):
        """Write these, delete ours that are not among them."""
        for path in [*files, *(path for path in self.files if path not in files)]:
            text, mode = files.get(path, (None, None))
            self.file(path, text, mode=mode, secret=path == PROXY_FILE)

    # ---- the daemon

    def has_systemd(self):
        """Path of systemctl, None where there is no systemd."""
        runs = os.path.isdir(self.sysroot + SYSTEMD_RUNS)
        return shutil.which("systemctl", path=node_paths.PATH) if runs else None

    def systemctl(self, *arguments):
        """What systemctl prints. FleetError where it fails or there is no systemd."""
        path = self.has_systemd()
        if path is None:
            what, do = ("does not run", "start") if self.answers() else ("has new settings", "restart")
            raise FleetError(
                "containers.no-systemd",
                "%s %s, and this node has no systemd to %s it. %s it as this node %ss its daemons.",
                (self.engine.kind, what, do, do.capitalize(), do),
            )
        done = commands.run([path, *arguments], limit_s=SYSTEMCTL_S)
        if done.returncode:
            raise FleetError(
                "containers.systemctl-failed",
                "'systemctl %s' failed: %s%s",
                (" ".join(arguments), done.stderr.strip() or "no words", self.last_words()),
            )
        return done.stdout

    def last_words(self):
        """What docker's journal ends with, for an error; "" where there is none."""
        journalctl = shutil.which("journalctl", path=node_paths.PATH)
        if journalctl is None:
            return ""
        argv = [journalctl, "--unit=docker.service", "--lines=20", "--no-pager", "--quiet", "--output=cat"]
        lines = [
            line for line in commands.run(argv).stdout.splitlines() if FAILS.search(line) and not OF_SYSTEMD.match(line)
        ]
        return " Docker's journal: %s" % lines[-1].strip()[:300] if lines else ""

    def masked(self):
        """The unit of docker's that somebody has masked, so that nothing starts it; None for none."""
        return next((unit for unit in UNITS if any(os.path.realpath(self.sysroot + folder + unit) == os.devnull
                                                   for folder in UNIT_FOLDERS)), None)  # fmt: skip

    def check_start(self, down):
        """FleetError where docker, which does not answer (`down`, an EngineError), cannot be started here."""
        masked = self.masked()
        if down.kind == "down" and masked:
            raise _masked_error(masked)
        # one that is being started answers late; one that is up and does not answer is started by nobody
        hangs = down.kind == "timeout" and self.has_systemd() and "ActiveState=active" in self.systemctl(
            "show", "--property=ActiveState", "docker.service").split()  # fmt: skip
        if down.kind not in ("down", "timeout") or hangs:
            raise FleetError("containers.engine-problem", engine_problem(self.engine, down)) from down

    def answers(self):
        """None where the engine answers, else the EngineError."""
        try:
            self.engine.ping()
        except EngineError as error:
            return error
        return None

    def running(self):
        """(names of the fleet's running containers, of others), which a restart of the daemon ends."""
        text = self._ask("ps", "--format", '{{.Names}}\t{{.Label "%s"}}' % LABEL_SERVER)
        rows = [line.split("\t") for line in text.splitlines()]
        foreign = sorted(row[0] for row in rows if len(row) < 2 or not row[1])
        return sorted(row[0] for row in rows if row[0] not in foreign), foreign

    def live_restore(self):
        """Whether the daemon lets containers run on while it restarts."""
        return self._ask("info", "--format", "{{.LiveRestoreEnabled}}").strip() == "true"

    def _ask(self, *arguments):
        try:
            return self.engine.call(*arguments)
        except EngineError as error:
            raise FleetError("containers.engine-problem", engine_problem(self.engine, error)) from error

    def start(self):
        """What tells this start of docker from all others, "" where it is unknown."""
        pid = (read_text(self.sysroot + DOCKER_PID) or "").strip()
        process = processes.process(int(pid)) if pid.isdigit() else None
        return "%s %s %d" % ((read_text(BOOT_ID) or "").strip(), pid, process.ticks) if process else ""

    def forget_what_was_taken(self):
        """Nothing is pending any more where docker was started since, by whomever, and from its unit as it is now."""
        if not self.pending or self.start() in ("", self.pending["start"]):
            return
        if self.pending["unit"] and self.has_systemd():
            stale = self.systemctl("show", "--property=NeedDaemonReload", "docker.service")
            if stale.strip() != "NeedDaemonReload=no":
                return
        self.pending = {}

    def record_pending(self, deep, shallow, gone, unit, restart, after):
        """Note what docker has to be restarted (`deep`) and reloaded (`shallow`) for, besides what waits already.
        Returns what to say where it is not restarted now, else None; FleetError where it may not be.

        gone: {key: items} of lists that it has to forget; unit: whether its unit changes; after: daemon.json to be.
        """
        self.forget_what_was_taken()
        old = self.pending or {"restart": [], "reload": [], "gone": {}, "unit": False, "start": self.start()}
        deep = sorted({*deep, *old["restart"]})
        shallow = sorted({*shallow, *old["reload"]})
        later = None
        if deep and restart == "never":
            later = "not restarted: %s from docker's next start on"
        elif deep and restart == "auto":
            _check_restart(self, deep)
            if self.running()[0]:
                later = "not restarted for %s before the step serve, as servers of the fleet run in docker"
        if deep or shallow:
            gone = {key: items for key, items in {**old["gone"], **gone}.items() if key not in after}
            self.pending = {"restart": deep, "reload": shallow, "gone": gone, "unit": unit or old["unit"],
                            "start": self.start()}  # fmt: skip
        return later

    def wait(self):
        end = time.monotonic() + START_S
        while True:
            error = self.answers()
            if error is None:
                return
            if error.kind not in ("down", "timeout") or time.monotonic() > end:
                raise FleetError("containers.engine-problem", engine_problem(self.engine, error)) from error
            time.sleep(0.3)


def _shown(text, secret):
    if text is None:
        return ["  missing"]
    if secret:
        return ["  variables: %s" % ", ".join(line.partition("=")[0] for line in text.splitlines())]
    return ["  " + line for line in text.splitlines()]


def pending_words(engine, root=""):
    """What a failure that a setting of the engine may be the cause of has to say besides; empty where nothing waits."""
    record = read_json(NodePaths(root).lib + "/container_engine.json") or {}
    keys = ((record.get(engine) or {}).get("pending") or {}).get("restart")
    if not keys:
        return ""
    return (
        " %s goes without %s until it is restarted, which ends the servers that run in it. Run this step with -e "
        "container_engine_restart=always, on a few nodes at a time (--limit)." % (engine.capitalize(), ", ".join(keys))
    )


def ensure(engine="docker", allow_missing=False, settings=None, registry_mirrors=(), insecure_registries=(),
           registries=(), proxy_env=None, ca_bundle="", restart="auto", state="present", root="", check_mode=False,
           sysroot=""):  # fmt: skip
    """Make the engine ready. Returns {changed, engine, missing, actions: [what was done], diff}; raises FleetError.

    allow_missing: return which program is not installed, and do nothing, instead of failing. settings: more keys of
    daemon.json. registries: hosts for which ca_bundle (a file of this node) is trusted, as it is for the mirrors;
    docker.io is Docker Hub. restart: auto (not where it would end foreign containers; where the fleet's own run it
    waits for state effective), always, never (what changes waits for the next start). state: effective writes nothing
    and restarts docker where settings of earlier calls wait for that; absent takes back all that earlier calls set,
    and starts nothing. root: below which the record of that lies. The result's `pending`: what docker goes without.
    """
    setup = Setup(engine, root, check_mode, sysroot)
    if state == "effective":
        _make_effective(setup, restart)
        return _result(setup)
    if state == "absent":
        settings, registry_mirrors, insecure_registries, proxy_env, ca_bundle = {}, (), (), {}, ""
        if not setup.notes and not setup.files and not setup.pending:  # what is there is nobody's business here
            return _result(setup)
        there = setup.program()
    else:
        missing = setup.missing()
        if missing and allow_missing:
            return {**_result(setup), "missing": [missing]}
        if missing and not check_mode:  # there, an earlier task would have installed it
            raise FleetError(
                "containers.program-missing",
                "There is no %s on this node. The role container_engine installs it; where its packages are others, "
                "name them in container_engine_packages.",
                (missing,),
            )
        there = not missing
    files = {}  # {path: (text, mode)}
    if engine == "podman" and (registry_mirrors or insecure_registries):
        files[PODMAN_REGISTRIES] = podman_registries(registry_mirrors, insecure_registries), 0o644
    if engine == "docker" and proxy_env:
        # the values first: the unit's new version names them
        files[PROXY_FILE] = proxy_file(proxy_env), 0o600
        files[DROP_IN] = DROP_IN_TEXT, 0o644
    if ca_bundle:
        certificates = read_text(ca_bundle)
        if certificates is None or "-----BEGIN CERTIFICATE-----" not in certificates:
            raise FleetError(
                "containers.ca-bundle-unreadable",
                "fleet_ca_bundle is %s, which is no file with certificates (PEM) on this node.",
                (ca_bundle,),
            )
        for registry in sorted({*registries, *hosts_with_tls(registry_mirrors)}):
            files["%s/%s/inference-fleet.crt" % (CERTIFICATES[engine], registry)] = certificates, 0o644
    if engine == "docker":
        settings = dict(settings or {})
        for key, more in (("registry-mirrors", registry_mirrors), ("insecure-registries", insecure_registries)):
            if more:
                settings[key] = settings.get(key, []) + [item for item in more if item not in settings.get(key, [])]
        _ensure_docker(setup, there, files, settings, restart, state)
    else:
        setup.remember([], sorted({*files, *setup.files}))  # until it is done, so that no end of this run loses one
        setup.write_files(files)
        setup.tidy()
        setup.remember([], sorted(files))
        if there and not check_mode and state == "present":
            error = setup.answers()
            if error:
                raise FleetError("containers.engine-problem", engine_problem(setup.engine, error)) from error
    return _result(setup)


def _result(setup):
    lines = [setup.before, setup.after]
    diff = dict(zip(("before", "after"), ("".join(line + "\n" for line in one) for one in lines)))
    return {"changed": bool(setup.before or setup.actions), "engine": setup.engine.kind, "missing": [],
            "actions": setup.actions, "pending": setup.pending.get("restart", []), "diff": diff}  # fmt: skip


def _masked_error(unit):
    return FleetError(
        "containers.unit-masked",
        "Docker does not run on this node, and its unit %s is masked, so that nothing starts it. Allow it with "
        "'systemctl unmask %s', or set fleet_container_engine to podman. Nothing was changed.",
        (unit, unit),
    )


def faults(engine, address=None, prepares=True, sysroot=""):
    """([what keeps the containers of an engine from being started, sentences], [what the step prepare repairs]).

    prepares: whether that step is in the run. An engine that hangs is a FleetError.
    """
    setup = Setup(engine, sysroot=sysroot)
    setup.engine = Engine(engine, address)
    try:
        if engine == "docker" and not address:
            daemon_settings(read_text(sysroot + DAEMON_JSON), {})
        down = setup.answers()
        masked = setup.masked() if engine == "docker" and not address else None
        if down is None:
            words = "%s is masked: no boot starts docker and the servers in it. Run 'systemctl unmask %s'."
            return [], [words % (masked, masked)] if masked else []
        if down.kind == "down" and masked:
            raise _masked_error(masked)
    except FleetError as error:
        return [error.message], []
    if down.kind == "timeout":
        raise FleetError("containers.engine-problem", engine_problem(setup.engine, down)) from down
    heals = prepares and not address and os.geteuid() == 0
    if heals and (down.kind == "missing" or (down.kind == "down" and setup.has_systemd())):
        is_so, does = ("is not installed", "installs") if down.kind == "missing" else ("does not run", "starts")
        return [], ["%s %s; the step prepare %s it." % (engine, is_so, does)]
    return [engine_problem(setup.engine, down)], []


def _ensure_docker(setup, there, files, settings, restart, state):
    old = read_text(setup.sysroot + DAEMON_JSON)
    text, keys, notes = daemon_settings(old, settings, setup.notes)
    before, after = (json.loads(one) if one and one.strip() else {} for one in (old, text))
    down = setup.answers() if there else None
    deep = [key for key in keys if key not in RELOADABLE or (key not in after and key not in RESET_BY_EMPTY)]
    shallow = [key for key in keys if key not in deep]
    if "features" in deep and there and down is None and _is_default_cdi(setup, before, after):
        deep.remove("features")
    gone = {key: before[key] for key in shallow if key not in after}
    deep += ["proxies"] if any(setup.differs(path, files) for path in (PROXY_FILE, DROP_IN)) else []
    unit = setup.differs(DROP_IN, files)
    if down is not None and state == "present":
        setup.check_start(down)
    runs = there and down is None
    # nothing of one that does not run is in the way
    later = setup.record_pending(deep, shallow, gone, unit, restart if runs else "always", after) if there else None

    setup.remember(setup.notes + [note for note in notes if note not in setup.notes], sorted({*files, *setup.files}))
    setup.file(DAEMON_JSON, text, shown=json_changes(before, after))
    setup.write_files(files)
    waiting = setup.pending
    if runs and waiting.get("restart") and not later:
        _restart(setup)
    if later and waiting["unit"] and setup.has_systemd() and not any(setup.running()):
        _do(setup, ("daemon-reload",))  # it takes devices away from containers that run
        waiting["unit"] = False
    if later and deep:
        needs = " that follows a systemctl daemon-reload" if waiting["unit"] and restart == "never" else ""
        setup.actions.append(later % ", ".join(sorted(deep)) + needs)
    if runs and setup.pending.get("reload"):
        setup.actions.append("reload docker for %s" % ", ".join(waiting["reload"]))
        if waiting["gone"] and not setup.check_mode:
            _reload_without(setup, waiting["gone"], text)
        else:
            _do(setup, ("reload", "docker.service"))
        setup.pending = {**waiting, "reload": [], "gone": {}} if waiting["restart"] else {}
    if there and not runs and state == "present":
        setup.actions.append("start docker")
        setup.before.append("docker: does not run")
        setup.after.append("docker: runs")
        _do(setup, *([("daemon-reload",)] if waiting.get("unit") else []), ("enable", "--now", "docker.service"))
    # a start takes everything, unlike one that was too slow to answer; and nobody comes back for what was purged
    if (there and not runs and down.kind == "down") or (state == "absent" and restart == "never"):
        setup.pending = {}
    setup.tidy()
    setup.remember(notes, sorted(files))


def _is_default_cdi(setup, before, after):
    """Whether what changes of `features` is CDI alone, and docker has it already: its default from 28.2 on."""
    old, new = (dict(one.get("features") or {}) for one in (before, after))
    asked = new.pop("cdi", None)
    old.pop("cdi", None)
    try:
        return asked is True and old == new and bool(setup.engine.cdi()[1])
    except EngineError:
        return False


def _restart(setup):
    """Restart docker for what waits for that; then nothing does."""
    setup.actions.append("restart docker for %s" % ", ".join(setup.pending["restart"]))
    _do(setup, *([("daemon-reload",)] if setup.pending["unit"] else []), ("restart", "docker.service"))
    setup.pending = {}


def _make_effective(setup, restart):
    """Restart docker where what earlier calls set waits for that. One that does not run takes it by its start."""
    if not setup.pending.get("restart") or restart == "never" or not setup.program() or setup.answers():
        return
    setup.forget_what_was_taken()
    if setup.pending:
        if restart == "auto":
            _check_restart(setup, setup.pending["restart"])
        setup.before.append("docker: was not started since %s was set" % ", ".join(setup.pending["restart"]))
        setup.after.append("docker: restarted")
        _restart(setup)
    setup.remember(setup.notes, setup.files)


def _reload_without(setup, gone, text):
    """Make docker forget lists that are gone from daemon.json (its final text: `text`): it rereads what is there.

    gone: {key: items that it had}.
    """
    place = setup.sysroot + DAEMON_JSON
    items = [str(item).rstrip("/") for key in gone for item in gone[key]]
    empty = {**json.loads(text or "{}"), **{key: [] for key in gone}}
    try:
        write_atomic(place, json.dumps(empty, indent=4, ensure_ascii=False) + "\n")
        _do(setup, ("reload", "docker.service"))
        end = time.monotonic() + RELOAD_S
        while time.monotonic() < end:  # in its own time
            known = setup.engine.call("info", "--format", "{{json .RegistryConfig}}")
            if not any(item in known for item in items):
                break
            time.sleep(0.2)
    except EngineError as error:
        raise FleetError("containers.engine-problem", engine_problem(setup.engine, error)) from error
    finally:
        if text is None:
            os.unlink(place)
        else:
            write_atomic(place, text)


def _check_restart(setup, keys):
    foreign = setup.running()[1]
    if foreign and not setup.live_restore():
        raise FleetError(
            "containers.restart-would-end-others",
            "Docker has to be restarted for %s, which would end containers that are not the fleet's: %s. Nothing was "
            "changed. Stop them, set live-restore in container_engine_settings (a first run with nothing else "
            "applies it without a restart), or set container_engine_restart to always.",
            (", ".join(keys), ", ".join(foreign)),
        )


def _do(setup, *calls):
    if setup.check_mode:
        return
    for call in calls:
        setup.systemctl(*call)
    setup.wait()
