# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd (240 or newer) as the service manager of the system's servers: one unit for each.

A unit contains no part of the engine's command or environment except limits, order and the paths whose mounts it needs:
the guard reads both from the entry, so systemd expands nothing in them, and no secret is in a unit.

`systemctl daemon-reload` removes the devices from containers that were started with --gpus, since systemd writes its
own version of their device cgroups. It is called only if systemd has loaded an older version of a unit that is about to
be started, or, if no container can lose devices, of a running unit that was rewritten (enable()) or of the watchdog;
enabling and disabling work without it. A unit whose
file is removed stays in systemd's memory, and docker or a follower may still start it; its condition prevents that.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil

from ..errors import FleetError
from ..host import commands, processes, server_spec
from ..host import paths as host_paths
from ..host import python as host_python
from ..host.files import names_in, read_text
from ..host.paths import PREFIX
from ..host.units import is_outdated
from ..model import gpt_oss
from ..platforms.registry import PLATFORMS
from ..supervise.state import START_LIMIT_EXIT
from .base import SYSTEMD_RUNS, WATCHDOG, ServiceManager, Status, template

UNITS = "/etc/systemd/system"
SUFFIX = ".service"
DESCRIPTION = "inference.fleet server "  # distinguishes our units from others of the same prefix
HEADER = "# A server of inference.fleet, which overwrites this file.\n"
STOP_WAIT_S = 15  # TERM to KILL
CONTAINER_STOP_WAIT_S = STOP_WAIT_S + 15  # the engine's own TERM to KILL, and its answer
DOCKER = "docker.service"
# Not in root's units, whose guards make the folder: systemd would make it root's, and close it to the other guards.
RECORDS = (
    "# where guards leave their records; it is made again after a reboot and stays when a server stops",
    "RuntimeDirectory=inference-fleet/servers",
    "RuntimeDirectoryPreserve=yes",
)
SHOWN = ("Id", "Description", "LoadState", "LoadError", "ActiveState", "SubState", "Result", "MainPID",
         "ExecMainCode", "ExecMainStatus", "NeedDaemonReload", "Job", "FragmentPath", "DropInPaths",
         "User")  # fmt: skip
EXIT_STATUSES = {
    str(START_LIMIT_EXIT): "start limit",
    # systemd.exec(5), process exit codes of what ended before the guard ran
    "203": "the interpreter of its unit is gone, or cannot be executed; run the play again",
    "217": "the user of its unit is not on this node any more",
}
# such as docker.service, whose own start may take as long as it wants
QUEUED = "systemd has not started it yet, since its start waits for another unit (systemctl list-jobs)"
CLD_EXITED = 1  # siginfo's si_code, wait(2): it exited; anything else is a signal


def unit_word(text, variables=True):
    """`text` as one word of a command line in a unit, in double quotes: systemd.syntax(7), systemd.service(5).

    variables: whether systemd expands $NAME in it, as it does in arguments. Raises FleetError if it contains a NUL.
    """
    if "\0" in text:
        raise FleetError("services.text-invalid", text, "a NUL character")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if variables:
        escaped = escaped.replace("$", "$$")
    # no raw control character: a unit consists of lines; bytes that are not UTF-8 would invalidate the complete line
    escaped = re.sub(r"[\x01-\x1f\x7f]", lambda match: "\\x%02x" % ord(match.group()), escaped)
    escaped = re.sub("[\udc80-\udcff]", lambda match: "\\x%02x" % (ord(match.group()) - 0xDC00), escaped)
    return '"%s"' % escaped


def unit_command(argv):
    """argv as the value of ExecStart. The first word, in which systemd expands no variable, is a path without "$"."""
    return " ".join(map(unit_word, argv))


class Systemd(ServiceManager):
    """See ServiceManager. A unit file on disk is enabled as well, so that a reboot starts the server."""

    name = "systemd"

    def __init__(self, paths, units=UNITS):
        super().__init__(paths)
        self.units = units

    # ---- files

    def problem(self):
        if not os.path.isdir(SYSTEMD_RUNS):
            return "this node was not booted with systemd. Use manager: supervisord."
        if os.getuid() != 0:
            return "only root may change the system's units. Use become."
        return None

    def shared_files(self):
        return {}

    def definition(self, entry, user):
        name = entry["name"]
        if self.masked(name):
            raise FleetError("systemd.unit-masked", name, unit_of(name))
        # Only the order of starts; the guard waits until a leader is healthy. Leaders that only compile are left out: a
        # server that loads must not start them again or wait for them.
        compiling = server_spec.artifact_leaders(entry)
        leaders = [unit_of(leader) for leader in entry["start"]["after"] if leader not in compiling]
        container, others = entry["container"], entry["start"].get("units", ())
        needed = [DOCKER] if container and container["engine"] == "docker" and not container["address"] else []
        relations = [
            "Wants=" + " ".join(["network-online.target", *leaders, *others]),
            "After=" + " ".join(["network-online.target", *needed, *leaders, *others]),
            *("Requires=" + unit for unit in needed),
            *("PartOf=" + unit for unit in leaders if entry["start"].get("restart_with_leader")),
            *("RequiresMountsFor=" + unit_word(path, variables=False) for path in self._needed_paths(entry)),
        ]
        start = "ExecStart=" + unit_command(self.guard_argv(name))
        account = ["User=" + user, *RECORDS] if user is not None else []
        return template(
            "server.service", description=DESCRIPTION + name, path=self.definition_path(name),
            relations="\n".join(relations),
            commands="\n".join([*self._folders(entry, user), start, *self._endings(entry)]),
            start_limit=START_LIMIT_EXIT, stop_wait=CONTAINER_STOP_WAIT_S if container else STOP_WAIT_S,
            identifier=PREFIX + name, rights="\n".join([*account, *hardening(entry)]),
            wanted=" ".join(["multi-user.target", *needed]),
        )  # fmt: skip

    def watchdog(self, argv):
        return template(
            "watchdog.service", description=DESCRIPTION + WATCHDOG, guard=self.paths.guard, command=unit_command(argv),
            identifier=PREFIX + WATCHDOG,
        )  # fmt: skip

    def _endings(self, entry):
        """Lines that end a server. A requested stop is no failed start, and is recorded here.

        A container is not in the unit's cgroup, so these commands stop and remove it, even if its client has ended. The
        guard does that, not `rm -f NAME`, since a container of that name may belong to another account.
        """
        name = entry["name"]
        argv = [self.python, "-I", self.paths.guard, "end", self.paths.entry(name), "--root", self.paths.root]
        stop = "ExecStop=-" + unit_command([*argv, "--state", self.paths.server_state(name)])
        if entry["container"] is None:
            return [stop]
        remove = unit_command([*argv, "--remove"])
        return ["ExecStartPre=-" + remove, stop, "ExecStopPost=-" + remove]

    def _needed_paths(self, entry):
        """Paths whose file systems a start requires; without a mount it would fail, or write below the mount point.

        systemd orders mounts of the network before remote-fs.target alone, and those with nofail before nothing.
        """
        # the folders of programs: a link to another version of Python must not change the unit
        self.interpreter = self.interpreter or host_python.choose(self.paths)
        paths = [os.path.dirname(self.interpreter), self.paths.lib, *entry["weights"], *entry["directories"].values()]
        if entry["container"]:
            paths += [mount["source"] for mount in entry["container"]["mounts"]]
        else:
            paths += [os.path.dirname(entry["command"][0]), entry["environment"].get(gpt_oss.VOCABULARY_VARIABLE) or ""]
        found = set()
        for path in paths:
            # systemd resolves no links; paths that a unit cannot contain (no escapes, only UTF-8) are left out
            for one in (os.path.normpath(path), os.path.realpath(path)) if os.path.isabs(path) else ():
                if re.fullmatch("[^\x00-\x1f\x7f\ud800-\udfff]+", one):
                    found.add(one)
        # a path requires the mounts of its parents
        return sorted(one for one in found if not any(other.startswith(one + "/") for other in found - {one}))

    def _folders(self, entry, user):
        """Have root create the folders of an artifact before each start: a reboot may empty their disk, and the
        server's account cannot create them."""
        artifact = server_spec.artifact_directory(entry)
        if artifact is None or user is None:
            return []
        argv = [self.python, "-I", self.paths.guard, "folders", self.paths.entry(entry["name"]), "--user", user]
        return ["ExecStartPre=+" + unit_command(argv)]

    def definition_path(self, name):
        return "%s/%s" % (self.units, unit_of(name))

    def masked(self, name):
        return os.path.realpath(self.definition_path(name)) == os.devnull

    def defined(self):
        return [name for name in names_in(self.units, PREFIX, SUFFIX) if self._is_ours(name)]

    def _is_ours(self, name):
        with contextlib.suppress(OSError):
            return (read_text(self.definition_path(name)) or "").startswith(HEADER)
        return False

    def log_tail(self, name, lines):
        text = self._call("journalctl", "--identifier", PREFIX + name, "--lines", str(lines), "--output", "cat",
                          "--quiet", "--no-pager", "--all")  # fmt: skip
        found = text.rstrip("\n").split("\n")  # splitlines() would split at other characters of the output, too
        return found[-lines:] if text else []

    def log_files(self, name):
        return []  # journald rotates the journal, whose files are not separate for servers

    # ---- units

    def _call(self, program, *arguments, more_s=0):
        """The output of the program. Raises FleetError if it fails, or exceeds the usual limit by more_s."""
        path = shutil.which(program, path=host_paths.PATH)
        if path is None:
            raise self._failed(program, arguments, "%s is not installed" % program)
        environment = {"PATH": host_paths.PATH, "LANG": "C.UTF-8"}
        done = commands.run([path, *arguments], limit_s=commands.LIMIT_S + more_s, env=environment)
        if done.returncode:
            raise self._failed(program, arguments, (done.stderr or done.stdout).strip() or "no output")
        return done.stdout

    @staticmethod
    def _failed(program, arguments, reason):
        return FleetError("systemd.command-failed", program, " ".join(arguments), reason)

    def _show(self, units):
        """{unit: {property: value}} of these units (patterns allowed: those are matched against loaded units only)."""
        text = self._call("systemctl", "show", "--no-pager", "--property=" + ",".join(SHOWN), "--", *units)
        blocks = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in text.split("\n\n")]
        return {block["Id"]: block for block in blocks if "Id" in block}

    def _outdated(self, shown):
        """Whether systemd has an older version of one of these units (_show()) than its file."""
        return any(is_outdated(block, "%s/%s" % (self.units, unit)) for unit, block in shown.items())

    def _enable(self, units):
        self._call("systemctl", "enable", "--quiet", "--no-reload", "--", *units)

    def statuses(self):
        if not os.path.isdir(SYSTEMD_RUNS):
            return {}
        defined = self.defined()
        # the pattern finds running units without a file
        shown = self._show([PREFIX + "*" + SUFFIX, *map(unit_of, defined)])
        found = {}
        for unit, block in shown.items():
            name = name_of(unit)
            if name in defined or (name and block["Description"] == DESCRIPTION + name):
                status = found[name] = unit_status(block)
                if os.path.lexists(self.definition_path(name)) and not self.masked(name):
                    self._compare(name, block, status)
        return {name: status for name, status in found.items() if name in defined or status.state != "down"}

    def _compare(self, name, block, status):
        """Add to the Status of a unit whether it is enabled, and files of others that change it."""
        path, fragment = self.definition_path(name), block.get("FragmentPath")
        hidden = fragment and os.path.realpath(fragment) != os.path.realpath(path)
        status.enabled = self._is_enabled(name)
        status.drop_ins = [*(block.get("DropInPaths") or "").split(), *([fragment] if hidden else [])]

    def _is_enabled(self, name):
        """Whether each unit that wants this unit has its link. systemd's UnitFileState may be outdated, since units are
        enabled without a reload."""
        wanted_by = re.search("(?m)^WantedBy=(.*)$", read_text(self.definition_path(name)) or "")
        wanting = wanted_by.group(1).split() if wanted_by else []
        return all(os.path.islink("%s/%s.wants/%s" % (self.units, one, unit_of(name))) for one in wanting)

    def enable(self, names):
        units = [*map(unit_of, names)]
        self._enable(units)
        if self._outdated(self._show(units)) and _reload_is_harmless():
            self._call("systemctl", "daemon-reload")

    def stop(self, names):
        held = self.statuses()
        units = [unit_of(name) for name in names if name in held]
        if not units:
            return
        # a leader ends after those that start after it; each has the time twice, for TERM and for KILL
        self._call("systemctl", "stop", "--", *units, more_s=2 * CONTAINER_STOP_WAIT_S * len(units))
        self._reset(units)  # systemd would remember a failed stop

    def _reset(self, units):
        """Reset failed units, also those at systemd's start limit. Returns the earlier _show()."""
        shown = self._show(units)
        failed = [unit for unit, block in shown.items() if block["ActiveState"] == "failed"]
        if failed:
            self._call("systemctl", "reset-failed", "--", *failed)
        return shown

    def start(self, names):
        self._enable(map(unit_of, names))
        shown = self._reset([*map(unit_of, names)])
        outdated = self._outdated(shown) or any(block["LoadState"] != "loaded" for block in shown.values())
        if outdated and (names != [WATCHDOG] or _reload_is_harmless()):
            self._call("systemctl", "daemon-reload")
        self._call(*self.start_argv(names))

    def start_argv(self, names):
        return ["systemctl", "start", "--no-block", "--", *map(unit_of, names)]

    def drop(self, names):
        names = [name for name in names if os.path.lexists(self.definition_path(name)) and not self.masked(name)]
        if not names:
            return
        self._call("systemctl", "disable", "--quiet", "--no-reload", "--", *map(unit_of, names))
        self._reset([*map(unit_of, names)])
        for name in names:
            os.unlink(self.definition_path(name))


def unit_of(name):
    """The unit of the server `name`."""
    return PREFIX + name + SUFFIX


def name_of(unit):
    """The name of a unit's server, None for units of others."""
    fits = unit.startswith(PREFIX) and unit.endswith(SUFFIX)
    return unit[len(PREFIX) : -len(SUFFIX)] if fits else None


def unit_status(block):
    """The Status of one unit from its properties."""
    state = block["ActiveState"]
    pid = int(block.get("MainPID") or 0) or None
    if block["LoadState"] not in ("loaded", "not-found") and pid is None:
        return Status("failed", None, "systemd cannot load its unit: " + (block.get("LoadError") or block["LoadState"]))
    gone = processes.account_gone(block.get("User"))
    if state == "failed":
        return Status("failed", None, gone or EXIT_STATUSES.get(block.get("ExecMainStatus")) or ending(block))
    if block["SubState"] == "auto-restart":
        return Status("restarting", None, gone or ending(block))
    if state == "inactive":
        return Status("up", None, QUEUED) if block.get("Job") not in (None, "", "0") else Status("down")
    return Status("up", pid)


def ending(block):
    """How the unit's process ended, as a clause."""
    if block.get("Result") in ("exit-code", "success", "signal", "core-dump", "oom-kill"):
        if block.get("ExecMainCode") == "0":
            return "its program was not executed (%s)" % block["Result"]
        how = "exit status" if block.get("ExecMainCode") == str(CLD_EXITED) else "signal"
        text = "it ended with %s %s" % (how, block.get("ExecMainStatus"))
        return text + (", out of memory" if block["Result"] == "oom-kill" else "")
    return "systemd reports %s" % block.get("Result")


def _reload_is_harmless():
    """Whether a daemon-reload cannot remove devices from containers of this node."""
    takes = any(one.lost_by_reload and os.path.exists(one.lost_by_reload) for one in PLATFORMS.values())
    return not takes or not _containers_run()


def _containers_run():
    """Whether this node runs a container, whose devices a reload of systemd might remove."""
    for pid in processes.process_table():
        with contextlib.suppress(OSError):
            if processes.CONTAINER.search(processes.shown(pid, "cgroup")):
                return True
    return False


def hardening(entry):
    """Settings that work for an engine with device files, shared memory and children.

    Not here: PrivateDevices, ProtectClock and any Device… setting, which close the device cgroup to accelerators;
    PrivateTmp and PrivateIPC, since the servers of a node meet in /tmp and /dev/shm (collective libraries, ZeroMQ);
    ProtectHome, since an AMI's environment is below a home directory; MemoryDenyWriteExecute, since engines compile
    kernels.
    """
    if entry["container"] and entry["container"]["engine"] == "podman":
        return []  # without a daemon, the container would be made under these: no cgroups, no kernel settings
    lines = ["ProtectSystem=full", "ProtectControlGroups=yes"]
    if not getattr(PLATFORMS.get(entry["platform"]), "setuid_helper", False):
        lines += ["NoNewPrivileges=yes", "RestrictSUIDSGID=yes", "ProtectKernelTunables=yes"]
    return lines
