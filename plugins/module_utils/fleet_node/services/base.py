# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Service managers: who starts the servers, keeps them up and stops them. One class for each, with one interface."""

from __future__ import annotations

import abc

from ..errors import FleetError
from ..host.files import read_json

SYSTEMD_RUNS = "/run/systemd/system"  # sd_booted(3)


# How much a server's output may be: lines in LOG_RATE_S of a unit (0: no limit), MB of a log file, files that are kept.
LOG_LIMITS = {"rate": 10000, "file_mb": 50, "files": 4}
LOG_RATE_S = 30


def text_invalid(text, reason):
    """The FleetError for a string that no definition of a service manager can contain."""
    return FleetError(
        "services.text-invalid",
        "%r cannot be part of a service definition: it has %s. Choose another path.",
        (text, reason),
    )


class ManagerSilent(FleetError):
    """The service manager runs and does not answer."""


class Status:
    """The state of a server according to its service manager.

    state: "up" (a process exists: a guard or the engine), "restarting" (it ended and will be started again), "failed"
    (it ended and will not be started again), "down" (it was stopped).
    pid: of the process that the manager started, or None. reason: the manager's message, or None. enabled: whether it
    is started after a reboot. properties: further properties.
    """

    def __init__(self, state, pid=None, reason=None, enabled=True):
        self.state = state
        self.pid = pid
        self.reason = reason
        self.enabled = enabled
        self.properties = {}

    def __repr__(self):
        return "Status(%r, %r, %r, %r)" % (self.state, self.pid, self.reason, self.enabled)


class Unit:
    """Further properties of a server, for a comparison with the plan.

    path: of the definition; drop_ins: paths of files of others that change this definition; stale: whether the manager
    holds another version than the files; may_reload: whether it can read them again without harm to others; programs:
    [(interpreter that a definition executes, whether the manager holds that definition)].
    """

    def __init__(self, path="", drop_ins=(), stale=False, may_reload=True, programs=()):
        self.path = path
        self.drop_ins = list(drop_ins)
        self.stale = stale
        self.may_reload = may_reload
        self.programs = list(programs)


class ServiceManager(abc.ABC):
    """The interface of a service manager for the reconciler. Names are names of plan entries.

    A definition is the content of a file that makes a server known to the manager (a unit, a program section). If the
    file exists, the server is supposed to run, also after a reboot. The reconciler writes it to definition_path(), and
    drop() deletes it.
    """

    name = ""
    interpreter = None  # target of the link to the node's Python, if it was determined already
    new_log_limits = None  # of this run, if it sets them

    def log_limits(self):
        """LOG_LIMITS of this run, or as an earlier run recorded them."""
        if self.new_log_limits is not None:
            return self.new_log_limits
        known = read_json(self.log_limits_path())
        return {**LOG_LIMITS, **known} if isinstance(known, dict) else LOG_LIMITS

    def log_limits_path(self):
        return self.paths.etc + "/logs.json"

    @abc.abstractmethod
    def problem(self):
        """Why servers cannot be started through this manager on this node, or None. The sentence continues "Servers
        cannot be started: "."""

    @abc.abstractmethod
    def shared_files(self):
        """{path: content} of files that all servers share; written with mode 0644 before the first start. No secret."""

    @abc.abstractmethod
    def definition(self, entry, user):
        """The definition of a server. user: its account, None for the manager's account. Raises FleetError."""

    @abc.abstractmethod
    def definition_path(self, name):
        """The path of the definition."""

    def masked(self, name):
        """Whether an operator forbids the manager to start the server, with a file at the path of its definition."""
        return False

    @abc.abstractmethod
    def defined(self):
        """Names of all servers with a definition on disk, sorted."""

    @abc.abstractmethod
    def statuses(self):
        """{name: Status} of the servers that the manager holds; empty if it does not run. Changes nothing."""

    @abc.abstractmethod
    def unit(self, name, status):
        """The Unit of a server whose Status (None without one) was just read. Changes nothing."""

    @abc.abstractmethod
    def stop(self, names):
        """Stop these servers at once and wait: TERM to the process group or cgroup, KILL after a time.

        Names that the manager does not hold are ignored. Raises FleetError if a server does not stop.
        """

    @abc.abstractmethod
    def start(self, names):
        """Read the definitions again and start these servers in this order, without waiting for them."""

    @abc.abstractmethod
    def start_argv(self, names):
        """argv of a command that starts these stopped servers, without waiting for them."""

    @abc.abstractmethod
    def enable(self, names):
        """Have these defined servers started after a reboot, without a restart; and have the manager read their
        definitions, if that does no harm to others."""

    @abc.abstractmethod
    def drop(self, names):
        """Delete the definitions of stopped servers and have the manager forget them."""

    @abc.abstractmethod
    def finish(self):
        """End processes of the manager that no definition needs; the last call of a reconciliation."""

    @abc.abstractmethod
    def log_tail(self, name, lines):
        """The last lines of the server's output, [str]; empty without output."""

    @abc.abstractmethod
    def log_files(self, name):
        """Paths of existing files with the server's output, which are deleted with it."""
