# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""supervisord (supervisord.org, 4.x) as the service manager of nodes without systemd, and of servers below a root.

The reasons for the form of program sections (supervisor/process.py of 4.3.0): with startsecs=0 no exit is "too quick",
so a program that ends goes to EXITED and, unless its exit code is in exitcodes, is started again without counting.
BACKOFF and FATAL are only for programs that cannot be executed. The guard counts starts and delays them, and ends with
194 at its start limit.
"""

from __future__ import annotations

import glob
import hashlib
import http.client
import os
import pwd
import re
import shlex
import socket
import stat
import time
import xmlrpc.client

from ..errors import FleetError
from ..host import commands, processes
from ..host import paths as host_paths
from ..host.files import names_in, read_end
from ..host.paths import PREFIX
from ..supervise.state import START_LIMIT_EXIT
from .base import WATCHDOG, ServiceManager, Status, template

MARKER = "INFERENCE_FLEET_SUPERVISOR"  # in the daemon's environment: the root that it serves
SOCKET_PATH_BYTES = 107  # sizeof(sun_path) - 1, unix(7)
SOCKET_SUFFIX_BYTES = 8  # supervisord binds PATH.PID first and links it (supervisor/http.py)
REQUEST_S = 10
STOP_WAIT_S = 15  # TERM to KILL
START_WAIT_S = 15
SHUTDOWN_WAIT_S = 20
LINE_BYTES = 4000  # of a line of a log
CRONTAB = "crontab"
UNFIT = "blanks at its ends, control characters, ';' or '#' after a blank, or %(here)s, which supervisord cannot quote"

# supervisor/xmlrpc.py: Faults
SHUTDOWN_STATE, BAD_NAME, ALREADY_STARTED, NOT_RUNNING, ALREADY_ADDED = 6, 10, 60, 70, 90


def ini_value(text, expansions=1):
    """`text` as the value of a key in supervisord's ini file.

    expansions: how often supervisord applies its %-expansion to this key (twice to stdout_logfile). Values cannot be
    quoted: raises FleetError for a string that the format cannot contain.
    """
    escaped = text.replace("%", "%" * 2**expansions)
    unfit = (
        text != text.strip()
        or re.search(r"[\x00-\x1f\x7f]", text)
        or re.search(r"\s[;#]", text)  # the rest would be a comment
        or "%(here)s" in escaped  # replaced before %% is
    )
    if unfit:
        raise FleetError("services.text-invalid", text, UNFIT)
    return escaped


def ini_command(argv):
    """argv as the value of `command`, which supervisord expands once and then splits as a POSIX shell would."""
    return ini_value(" ".join(map(shlex.quote, argv)))


class Connection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Supervisord(ServiceManager):
    """See ServiceManager. One daemon for each root; it starts with the first server and ends with the last."""

    name = "supervisord"

    def __init__(self, paths, toolkit):
        super().__init__(paths)
        self.toolkit = toolkit
        self.program = toolkit + "/bin/supervisord"
        self.conf = paths.etc + "/supervisord.conf"
        self.programs = paths.etc + "/supervisor.d"
        self.pidfile = paths.run + "/supervisord.pid"
        self.log = paths.log + "/supervisord.log"
        self.socket = paths.run + "/supervisord.sock"
        self.socket_folder = None
        if len(os.fsencode(self.socket)) + SOCKET_SUFFIX_BYTES > SOCKET_PATH_BYTES:
            digest = hashlib.sha256(os.fsencode(paths.root)).hexdigest()[:12]
            # not TMPDIR, which may be long, and differ in the next run
            self.socket_folder = "/tmp/inference-fleet-%d-%s" % (os.getuid(), digest)
            self.socket = self.socket_folder + "/supervisord.sock"

    # ---- files

    def problem(self):
        if not os.access(self.program, os.X_OK):
            return (
                "there is no supervisord at %s. Install supervisor (4.x) into the toolkit, or name another with "
                "toolkit." % self.program
            )
        return None

    def shared_files(self):
        return {
            self.conf: template(
                "supervisord.conf", socket=ini_value(self.socket), log=ini_value(self.log),
                pidfile=ini_value(self.pidfile), logs=ini_value(self.paths.log),
                user="" if os.getuid() else "user=root\n",
            )
        }  # fmt: skip

    def definition(self, entry, user):
        return self._program(entry["name"], self.guard_argv(entry["name"]), user)

    def watchdog(self, argv):
        return self._program(WATCHDOG, argv, None)

    def _program(self, name, argv, user):
        return template(
            "program.conf", name=PREFIX + name, command=ini_command(argv), start_limit=START_LIMIT_EXIT,
            stop_wait=STOP_WAIT_S, log=ini_value(self.paths.log_file(name), expansions=2),
            user="user=%s\n" % user if user is not None and os.getuid() == 0 else "",
        )  # fmt: skip

    def definition_path(self, name):
        return "%s/%s%s.conf" % (self.programs, PREFIX, name)

    def defined(self):
        return names_in(self.programs, PREFIX, ".conf")

    def log_tail(self, name, lines):
        path = self.paths.log_file(name)
        if not os.path.lexists(path):
            return []
        data, start = read_end(path, min(LINE_BYTES * lines, 4 << 20))
        if data is None:
            return ["%s is no plain file, and is not read." % path]
        found = [line.rstrip("\r") for line in data.decode("utf-8", "replace").split("\n")]
        found = [line for line in found if line]
        # the rest of a line that was cut may be part of a secret
        return found[1 if start and len(found) > 1 else 0 :][-lines:]

    def log_files(self, name):
        path = glob.escape(self.paths.log_file(name))
        return sorted(glob.glob(path) + glob.glob(path + ".[0-9]*"))

    # ---- the daemon

    def _call(self, method, *arguments, accept=()):
        """The result of an XML-RPC call; None if no daemon answers or it shuts down, and for a fault in `accept`.

        Raises FleetError.
        """
        if self.socket_folder and os.path.lexists(self.socket_folder):
            _private_folder(self.socket_folder)  # another account may have made it first
        transport = xmlrpc.client.Transport()
        transport.make_connection = lambda _host: Connection(self.socket, REQUEST_S)
        proxy = xmlrpc.client.ServerProxy("http://localhost", transport=transport, allow_none=True)
        try:
            return getattr(proxy.supervisor, method)(*arguments)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return None
        except xmlrpc.client.Error as error:
            if getattr(error, "faultCode", None) in (SHUTDOWN_STATE, *accept):
                return None
            raise self._failed("%s%r" % (method, arguments), getattr(error, "faultString", error)) from error
        except PermissionError as error:
            reason = "it belongs to another user than %s. Run as its user, with become"
            raise self._failed(method, reason % processes.user_name(os.getuid())) from error
        except (OSError, http.client.HTTPException) as error:
            raise FleetError(
                "supervisord.no-answer", self._processes(self.daemons()), self.socket, REQUEST_S, error, self.log
            ) from error
        finally:
            proxy("close")()

    @staticmethod
    def _processes(pids):
        return " (process %s)" % ", ".join(map(str, pids)) if pids else ""

    def _failed(self, call, reason):
        return FleetError("supervisord.failed", self.socket, call, reason, self.log)

    def _info(self):
        """{name: info} of all programs of this collection as supervisord reports them; empty without a daemon."""
        rows = self._call("getAllProcessInfo") or ()
        return {row["group"][len(PREFIX) :]: row for row in rows if row["group"].startswith(PREFIX)}

    def statuses(self):
        return {name: _status(row) for name, row in self._info().items()}

    def daemons(self):
        """Pids of the supervisord processes of this root, without children that are not yet executed."""
        table, marker = processes.process_table(), os.fsencode(self.paths.root or "/")
        found = {pid for pid in table if processes.environment_of(pid).get(MARKER.encode()) == marker
                 and "-c" in processes.argv(pid)}  # fmt: skip
        return sorted(pid for pid in found if table[pid].parent not in found)

    def daemon_environment(self):
        """The variables that supervisord is started with, {name: value}."""
        home = pwd.getpwuid(os.getuid()).pw_dir
        root = self.paths.root or "/"
        return {"PATH": host_paths.PATH, "HOME": home, "LANG": "C.UTF-8", "PYTHONUTF8": "1", MARKER: root}

    def _start_daemon(self):
        """Start supervisord unless it answers. It outlives this process and keeps none of its files open."""
        if self._runs():
            return
        self._end_daemons(SHUTDOWN_WAIT_S)
        if self.socket_folder:
            _private_folder(self.socket_folder)
        done = commands.run(
            [self.program, "-c", self.conf], limit_s=START_WAIT_S, merged=True, env=self.daemon_environment()
        )  # it forks, and the parent ends with 0
        end = time.monotonic() + START_WAIT_S
        while not done.returncode and time.monotonic() < end:
            if self._runs():
                return
            time.sleep(0.05)
        raise self._failed("to start", done.stdout.strip() or "no answer")

    def _end_daemons(self, term_s):
        left = processes.terminate(self.daemons(), term_s, 5)
        if left:
            raise self._failed("to stop", "it runs on" + self._processes(left))

    def _runs(self):
        """Whether a daemon answers that does not shut down."""
        return self._call("getState") is not None

    # ---- servers

    def stop(self, names):
        end = time.monotonic() + STOP_WAIT_S + 10
        while True:
            info = {name: row for name, row in self._info().items() if name in names}
            # supervisord starts a program in EXITED again on its next turn
            left = sorted(name for name, row in info.items() if _status(row).state in ("up", "restarting"))
            if not left:
                break
            if time.monotonic() > end:
                raise self._failed("to stop", ", ".join(left))
            for name in left:
                if info[name]["statename"] != "STOPPING":
                    self._call("stopProcess", _full(name), False, accept=(NOT_RUNNING, BAD_NAME))
            time.sleep(0.1)
        for name in sorted(info):
            self._call("removeProcessGroup", PREFIX + name, accept=(BAD_NAME,))

    def start(self, names):
        self._start_daemon()
        self._call("reloadConfig")
        for name in names:
            self._call("addProcessGroup", PREFIX + name, accept=(ALREADY_ADDED,))
            self._call("startProcess", _full(name), False, accept=(ALREADY_STARTED,))

    def start_argv(self, names):
        program = self.toolkit + "/bin/supervisorctl"
        return [program, "-c", self.conf, "add", *(PREFIX + name for name in names)]  # stop() removed them

    def enable(self, names):
        pass  # a program section on disk is started with the daemon

    def drop(self, names):
        for path in filter(os.path.exists, map(self.definition_path, names)):
            os.unlink(path)

    def finish(self):
        if set(self.defined()) - {WATCHDOG}:
            return
        self._call("shutdown")
        end = time.monotonic() + SHUTDOWN_WAIT_S
        while self.daemons() and time.monotonic() < end:
            self._runs()  # any call wakes its loop, which turns once a second otherwise
            time.sleep(0.02)
        self._end_daemons(5)
        for path in filter(os.path.lexists, (self.socket, self.pidfile)):
            os.unlink(path)
        if self.socket_folder and os.path.isdir(self.socket_folder):
            os.rmdir(self.socket_folder)


def _full(name):
    """group:process; both have the same name."""
    return "%s%s:%s%s" % (PREFIX, name, PREFIX, name)


def _status(row):
    """The Status of one row of getAllProcessInfo."""
    state = row["statename"]
    if state in ("RUNNING", "STARTING", "STOPPING"):
        return Status("up", row["pid"] or None)
    if state == "EXITED" and row["exitstatus"] == START_LIMIT_EXIT:
        return Status("failed", None, "start limit")
    if state == "EXITED":
        return Status("restarting", None, "it ended with exit status %s" % row["exitstatus"])
    if state == "STOPPED":
        return Status("down")
    reason = row["spawnerr"] or "supervisord reports %s" % state
    return Status("restarting" if state == "BACKOFF" else "failed", None, reason)


def _private_folder(path):
    """Create a directory for this account alone, in a folder in which every account may write."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise FleetError("supervisord.socket-directory-wrong", path, processes.user_name(os.getuid())) from None


def ensure_start_on_boot(node, wanted, check=False):
    """Add the line to the account's crontab, or remove it. Returns our lines (before, after)."""
    if node.manager.name != "supervisord":
        return "", ""
    mark = " # inference.fleet %s" % (node.paths.root or "/")
    text, problem = _crontab("-l")
    # splitlines() would split lines of others at form feeds and other characters, too
    lines = text.rstrip("\n").split("\n") if text else []
    before = [line for line in lines if line.endswith(mark)]
    after = [_boot_line(node.manager) + mark] if wanted else []
    if before != after and not problem and not check:
        kept = [line for line in lines if not line.endswith(mark)]
        problem = _crontab("-", "".join(line + "\n" for line in [*kept, *after]))[1]
    if problem and wanted:
        node.warnings.append(
            "After a reboot nothing starts the servers of %s: %s. Run the play after a reboot, or set "
            "fleet_start_on_boot to false." % (node.paths.root, problem)
        )
    return "\n".join(before), "\n".join(before if problem else after)


def _boot_line(manager):
    """The crontab's line without its mark. It does nothing while no server is defined."""
    folder = ""
    if manager.socket_folder:  # as _private_folder()
        folder = "mkdir -m 700 {0} 2>/dev/null; [ ! -L {0} ] && [ -O {0} ] && ".format(manager.socket_folder)
    words = ["%s=%s" % item for item in sorted(manager.daemon_environment().items())]
    start = " ".join(map(shlex.quote, ["env", "-i", *words, manager.program, "-c", manager.conf]))
    defined = "ls %s/%s*.conf >/dev/null 2>&1" % (shlex.quote(manager.programs), PREFIX)
    return "@reboot " + ("%s && { %s%s; }" % (defined, folder, start)).replace("%", "\\%")  # cron ends a command at %


def _crontab(option, text=None):
    """(the crontab, why it cannot be used or None)."""
    environment = {**os.environ, "LANG": "C.UTF-8"}
    try:
        done = commands.run([CRONTAB, option], text=text, errors="surrogateescape", env=environment)
    except OSError as error:
        return "", "crontab cannot be executed (%s)" % error.strerror
    if done.returncode == 0:
        return done.stdout, None
    missing = "no crontab" in done.stderr.lower()
    return "", None if missing else "crontab %s failed: %s" % (option, done.stderr.strip())
