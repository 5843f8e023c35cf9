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
    """What a service manager says of one server.

    state: "up" (a process is there, a guard or the engine), "restarting" (it ended and will be started again),
    "failed" (it ended and will not), "down" (it was asked to stop).
    pid: of the process that the manager started, None where there is none. reason: its words, or None. enabled: whether
    it will be started after a reboot too.
    """

    def __init__(self, state, pid=None, reason=None, enabled=True):
        self.state = state
        self.pid = pid
        self.reason = reason
        self.enabled = enabled
        self.properties = {}  # whatever else the manager said of it

    def __repr__(self):
        return "Status(%r, %r, %r, %r)" % (self.state, self.pid, self.reason, self.enabled)


class Unit:
    """What else a service manager knows of a server, for a comparison with the plan.

    path: of the definition; drop_ins: paths of files of others that change this definition; stale: whether the manager
    holds another version than the files; may_reload: whether it can read them again without harm to others; programs:
    [(interpreter that a definition executes, whether it is the one that the manager holds)].
    """

    def __init__(self, path="", drop_ins=(), stale=False, may_reload=True, programs=()):
        self.path = path
        self.drop_ins = list(drop_ins)
        self.stale = stale
        self.may_reload = may_reload
        self.programs = list(programs)


class ServiceManager(abc.ABC):
    """What the reconciler asks of a service manager. Names are plan entries' names.

    A definition is the text that makes a server known to the manager (a unit, a program section); its presence on disk
    means that the server is meant to run, also after a reboot. The reconciler writes and deletes no definition itself
    except through definition_path(): it puts the text there before start() and leaves deleting to drop().
    """

    name = ""
    interpreter = None  # where the node's own Python leads to, where that was found out already
    new_log_limits = None  # as this run wants them, where it says so

    def log_limits(self):
        """LOG_LIMITS as this run wants them, else as an earlier one wrote them down."""
        if self.new_log_limits is not None:
            return self.new_log_limits
        known = read_json(self.log_limits_path())
        return {**LOG_LIMITS, **known} if isinstance(known, dict) else LOG_LIMITS

    def log_limits_path(self):
        return self.paths.etc + "/logs.json"

    @abc.abstractmethod
    def problem(self):
        """None, or a sentence that says why servers cannot be started through this manager on this node. It stands
        after "Servers cannot be started: "."""

    @abc.abstractmethod
    def shared_files(self):
        """{path: text} of files that all servers share; written with mode 0644 before the first start. No secret."""

    @abc.abstractmethod
    def definition(self, entry, user):
        """The text for a server. user: the name to run as, None for the user of the manager. Raises FleetError."""

    @abc.abstractmethod
    def definition_path(self, name):
        """Where the definition lies."""

    def masked(self, name):
        """Whether somebody has forbidden the manager to start it. What says so lies in the definition's place, and is
        not ours to remove."""
        return False

    @abc.abstractmethod
    def defined(self):
        """Names of all servers with a definition on disk, sorted."""

    @abc.abstractmethod
    def statuses(self):
        """{name: Status} of what the manager holds now. Read-only; empty where it does not run."""

    @abc.abstractmethod
    def unit(self, name, status):
        """The Unit of a server whose Status (None without one) was just read. Read-only."""

    @abc.abstractmethod
    def stop(self, names):
        """Stop these servers, all at once: TERM to the whole process group or cgroup, KILL after its time. Waits.

        Names that it does not hold are no error. Raises FleetError where one does not stop.
        """

    @abc.abstractmethod
    def start(self, names):
        """(Re)read the definitions and start these servers in this order, without waiting for them."""

    @abc.abstractmethod
    def start_argv(self, names):
        """argv of a command that starts these stopped servers as they are defined, without waiting for them."""

    @abc.abstractmethod
    def enable(self, names):
        """Have these servers, which are defined and not restarted, started after a reboot too; and have the manager
        hold their definitions as they are on disk, where that does no harm to others."""

    @abc.abstractmethod
    def drop(self, names):
        """Delete the definitions of stopped servers and make the manager forget them."""

    @abc.abstractmethod
    def finish(self):
        """The last call of a reconciliation: nothing of ours may run on where no definition is left."""

    @abc.abstractmethod
    def log_tail(self, name, lines):
        """The last lines of the server's output, [str], empty where there is none."""

    @abc.abstractmethod
    def log_files(self, name):
        """Paths of files that hold the server's output and that are deleted with it, existing ones only."""
