# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Service managers: they start the servers, restart them and stop them. One class for each, with one interface."""

from __future__ import annotations

import dataclasses
import os
import pkgutil

from ..host import python as host_python
from ..host import trust
from ..host.files import make_directory, read_text, write_atomic

SYSTEMD_RUNS = "/run/systemd/system"  # sd_booted(3)
WATCHDOG = "watchdog"  # a process that managers run like a server, and that is none


@dataclasses.dataclass(eq=False)
class Status:
    """The state of a server according to its service manager.

    state: "up" (a process exists, a guard or the engine, or its start is queued), "restarting" (it ended and will be
    started again), "failed" (it ended and will not be started again), "down" (it was stopped).
    pid: of the process that the manager started, or None. reason: the manager's message, or None. enabled: whether it
    is started after a reboot. drop_ins: paths of files of others that change its definition.
    """

    state: str
    pid: int | None = None
    reason: str | None = None
    enabled: bool = True
    drop_ins: list = dataclasses.field(default_factory=list)


def template(file, **values):
    """The content of a file of this folder with these values."""
    return pkgutil.get_data(__package__, file).decode("utf-8") % values


class ServiceManager:
    """The base of service managers. Names are names of plan entries.

    A definition is the content of a file that makes a server known to the manager (a unit, a program section). If the
    file exists, the server is supposed to run, also after a reboot. The reconciler writes it to definition_path(), and
    drop() deletes it. The watchdog has a definition too, with the name WATCHDOG. Each manager has these methods, which
    may raise FleetError:

    problem()               why servers cannot be started on this node, or None; continues "Servers cannot be started: "
    shared_files()          {path: content} of files that all servers share, with mode 0644 and without secrets
    definition(entry, user) the definition of a server; user: its account, None for the manager's account
    definition_path(name)   the path of the definition
    defined()               names of all definitions, sorted
    statuses()              {name: Status} of what the manager has loaded; empty if it does not run
    stop(names)             stops servers at once and waits: TERM to the process group or cgroup, KILL after a time
    start(names)            reads definitions again and starts servers in this order, without waiting for them
    start_argv(names)       argv of a command that starts these stopped servers, without waiting for them
    enable(names)           has running servers started after a reboot, and their definitions read if that is harmless
    drop(names)             deletes the definitions of stopped servers
    watchdog(argv)          the definition of the watchdog with this command
    log_tail(name, lines)   [line] of the end of the server's output, at least one line
    log_files(name)         paths of existing files with the server's output, which are deleted with it
    """

    name = ""
    interpreter = None  # target of the link to the node's Python, if it was determined already

    def __init__(self, paths):
        self.paths = paths
        self.python = host_python.link(paths)

    def guard_argv(self, name):
        """argv of the guard that becomes the engine of a server."""
        paths = self.paths
        return [self.python, "-I", paths.guard, "run", paths.entry(name), "--state", paths.server_state(name),
                "--secrets", paths.secret(name), "--root", paths.root]  # fmt: skip

    def ensure_watchdog(self, settings, check=False):
        """Install the watchdog with these settings, or remove it (None). Returns its state (before, after).

        settings: {interval, failures, timeout}: seconds between two checks, failures in a row before a restart, seconds
        for an answer. Raises FleetError, OSError.
        """
        path, status = self.definition_path(WATCHDOG), self.statuses().get(WATCHDOG)
        found, fault = read_text(path), trust.misplaced(path) if settings else None
        runs = status is not None and status.state in ("up", "restarting") and status.enabled
        wanted = self.watchdog(self._watch_argv(**settings)) if settings else None
        before = _words(path, found, runs) + ("%s %s\n" % (path, fault) if found is not None and fault else "")
        after = _words(path, wanted, wanted is not None)
        if check or before == after:
            return before, after
        if status is not None:
            self.stop([WATCHDOG])
        if wanted is None:
            self.drop([WATCHDOG])
            return before, after
        if found != wanted or fault:
            make_directory(os.path.dirname(path))
            write_atomic(path, wanted)
        self.start([WATCHDOG])
        return before, after

    def _watch_argv(self, interval, failures, timeout):
        paths = self.paths
        return [self.python, "-I", paths.guard, "watch", paths.etc, "--state", paths.state, "--root", paths.root,
                "--every", str(interval), "--failures", str(failures), "--timeout", str(timeout)]  # fmt: skip

    def masked(self, name):
        """Whether an operator forbids the manager to start the server, with a file at the path of its definition."""
        return False

    def finish(self):
        """End processes of the manager that no definition needs; the last call of a reconciliation."""


def _words(path, text, runs):
    return ("" if text is None else "%s:\n%s" % (path, text)) + ("watchdog: runs\n" if runs else "")
