# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has supervisord, and its servers with it, started after a reboot: by a line of the user's crontab, or by a unit of
the user's own systemd, which runs without a login where the user lingers. systemd as the service manager needs neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import time

from ..errors import FleetError
from ..node import commands
from ..node import paths as node_paths
from ..node.directories import make_directory
from ..node.files import read_json, read_text, write_atomic
from ..node.paths import PREFIX
from .base import SYSTEMD_RUNS

NONE, AUTO, CRONTAB, USER_UNIT = WAYS = ("none", "auto", "crontab", "user-unit")
PROGRAMS = node_paths.PATH
START_S = 10  # of a systemd of the user's
LINGER = "/var/lib/systemd/linger"
MARK = "# inference.fleet"
EMPTY = re.compile("no crontab|no such file", re.IGNORECASE)  # what `crontab -l` says where there is none


def ensure(node, way, check=False):
    """Bring what starts the servers after a reboot to `way` (of WAYS).

    Returns {changed, diff: {before, after}, warnings: [str]}: where it cannot be done, that is a warning. Raises
    FleetError.
    """
    boot = _Boot(node)
    before = boot.recorded()
    result = {"changed": False, "diff": {"before": "", "after": ""}, "warnings": []}
    if node.manager.name != "supervisord" or (way == NONE and before is None):
        return result
    wanted = None
    if way != NONE:
        both = (USER_UNIT, CRONTAB) if boot.lingers() else (CRONTAB, USER_UNIT)
        problems = {one: boot.problem(one) for one in (both if way == AUTO else (way,))}
        possible = [one for one in problems if problems[one] is None]
        # what does it already goes on doing it
        wanted = before if before in possible else next(iter(possible), None)
        if wanted is None:
            result["warnings"].append(_warning(node, "; ".join(problems.values())))
    old = boot.state(before) if before else {}
    new = boot.files(wanted) if wanted else {}
    result["changed"] = old != new or before != wanted
    result["diff"] = {"before": _words(old), "after": _words(new)}
    if result["changed"] and not check:
        try:
            if before and before != wanted:
                boot.remove(before)
            if wanted:
                boot.put(wanted)
        except _Refused as error:
            boot.remove(wanted)
            result["changed"] = before is not None
            result["diff"]["after"] = ""
            result["warnings"].append(_warning(node, str(error)))
        except OSError as error:
            raise FleetError(
                "boot.cannot-change", "What starts the servers after a reboot cannot be changed: %s.", (error,)
            ) from error
    return result


class _Refused(Exception):
    """The system does not let this user have what it takes."""


def _warning(node, reason):
    return (
        "After a reboot nothing starts the servers of %s: %s. Start them with this play, or set fleet_start_on_boot to "
        "false." % (node.paths.root, reason)
    )


def _words(files):
    return "".join("%s:\n%s" % item for item in sorted(files.items()))


class _Boot:
    """What starts one root's servers after a reboot. `files` are {where: text}, of which a crontab is one."""

    def __init__(self, node):
        self.paths = node.paths
        self.manager = node.manager
        self.user = pwd.getpwuid(os.getuid())
        self.script = node.paths.lib + "/lib/boot.sh"
        self.record = node.paths.lib + "/boot.json"
        digest = hashlib.sha256(os.fsencode(node.paths.root)).hexdigest()[:8]
        self.unit = "%s%s.service" % (PREFIX, digest)
        self.units = self.user.pw_dir + "/.config/systemd/user"
        self.wants = "%s/default.target.wants/%s" % (self.units, self.unit)
        # cron ends a command at the first % without a backslash
        command = "/bin/sh " + shlex.quote(self.script)
        self.line = "@reboot %s %s" % (command.replace("%", "\\%"), MARK)

    def recorded(self):
        """The way that was chosen, None where there is none."""
        record = read_json(self.record)
        way = record.get("way") if isinstance(record, dict) else None
        return way if way in (CRONTAB, USER_UNIT) else None

    def problem(self, way):
        """None, or why this way is not open to this user on this node."""
        if re.search(r"[\x00-\x1f\x7f]", self.script):
            return "the path of the root has a control character"
        if way == CRONTAB:
            if _program("crontab") is None:
                return "there is no crontab"
            if not cron_runs():
                return "no cron runs"
            done = _call(["crontab", "-l"])
            if done.returncode and not EMPTY.search(done.stderr):
                return "%s may not have a crontab (%s)" % (self.user.pw_name, _first_line(done.stderr))
            return None
        if not os.path.isdir(SYSTEMD_RUNS) or _program("loginctl") is None:
            return "systemd does not run"
        if os.getuid() == 0:
            return "root has no units of its own; its crontab can do it"
        # whether the user may linger, and a systemd of the user's then runs, is known when it is tried
        return self._systemd_problem("failed", *(("inactive",) if self.lingers() else ()))

    def lingers(self):
        """Whether the user's units run without a login."""
        return os.path.exists("%s/%s" % (LINGER, self.user.pw_name))

    def files(self, way):
        """What there is to be."""
        environment = self.manager.daemon_environment()
        lines = [
            "#!/bin/sh",
            "# Written by inference.fleet; the next run overwrites it. Starts the servers after a boot.",
        ]
        lines += ["for definition in %s/%s*.conf; do" % (shlex.quote(self.manager.programs), PREFIX)]
        lines += ['    case "$definition" in *%swatchdog.conf) continue ;; esac' % PREFIX]
        lines += ['    [ -e "$definition" ] || continue']
        if self.manager.socket_folder:
            lines += ["    mkdir -m 700 %s 2>/dev/null" % shlex.quote(self.manager.socket_folder)]
        words = ["%s=%s" % item for item in sorted(environment.items())]
        command = ["env", "-i", *words, self.manager.program, "-c", self.manager.conf]
        lines += ["    exec " + " ".join(map(shlex.quote, command)), "done", ""]
        found = {self.script: "\n".join(lines)}
        if way == CRONTAB:
            found["crontab of " + self.user.pw_name] = self.line + "\n"
        else:
            found["%s/%s" % (self.units, self.unit)] = (
                "%s; the next run overwrites it.\n[Unit]\nDescription=inference.fleet: the servers of %s\n\n[Service]\n"
                "Type=oneshot\nRemainAfterExit=yes\nKillMode=process\nExecStart=/bin/sh %s\n\n[Install]\n"
                "WantedBy=default.target\n"
                % (MARK, self.paths.root.replace("%", "%%"),
                   '"%s"' % self.script.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$"))
            )  # fmt: skip
            found[self.wants] = "a link\n"
            found["lingering of " + self.user.pw_name] = "yes\n"
        return found

    def state(self, way):
        """What there is of all that."""
        found = {}
        for where in self.files(way):
            if where.startswith("crontab of "):
                text = "".join(line + "\n" for line in self._crontab() if line == self.line)
            elif where.startswith("lingering of "):
                text = "yes\n" if self.lingers() else None
            elif where == self.wants:
                text = "a link\n" if os.path.islink(where) else None
            else:
                text = read_text(where)
            if text:
                found[where] = text
        return found

    def put(self, way):
        files = self.files(way)
        make_directory(os.path.dirname(self.script))
        known = read_json(self.record)
        lingers = bool(isinstance(known, dict) and known.get("lingers"))
        lingers = lingers or (way == USER_UNIT and not self.lingers())
        # first, so that what follows is found and removed, wherever this ends
        write_atomic(self.record, json.dumps({"way": way, "lingers": lingers}) + "\n")
        write_atomic(self.script, files[self.script], 0o755)
        if way == CRONTAB:
            self._write_crontab([*self._others(), self.line])
            return
        make_directory(os.path.dirname(self.wants))
        write_atomic("%s/%s" % (self.units, self.unit), files["%s/%s" % (self.units, self.unit)])
        if not os.path.islink(self.wants):
            os.symlink("../" + self.unit, self.wants)
        if not self.lingers():
            done = _call(["loginctl", "--no-ask-password", "enable-linger", self.user.pw_name])
            if done.returncode:
                raise _Refused("%s may not linger (%s)" % (self.user.pw_name, _first_line(done.stderr)))
            end = time.monotonic() + START_S
            while time.monotonic() < end and self._systemd_problem("inactive", "activating"):
                time.sleep(0.1)
            problem = self._systemd_problem("failed", "inactive")
            if problem:
                raise _Refused(problem)

    def _systemd_problem(self, *states):
        """None, or why the user's own systemd, which starts units without a login, does not run: it cannot, or is in
        one of these states."""
        unit = "user@%d.service" % os.getuid()
        done = _call(["systemctl", "show", "--property=LoadState,ActiveState", unit])
        found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        if done.returncode or not found:
            return "systemd does not answer (%s)" % _first_line(done.stderr)
        if found.get("LoadState") != "loaded":
            return "%s, the systemd of %s, is %s" % (unit, self.user.pw_name, found.get("LoadState"))
        if found.get("ActiveState") in states:
            return "%s, the systemd of %s, is %s (journalctl -u %s)" % (
                unit, self.user.pw_name, found["ActiveState"], unit)  # fmt: skip
        return None

    def remove(self, way):
        if way == CRONTAB:
            others = self._others()
            if others != self._crontab():
                self._write_crontab(others)
        else:
            for path in (self.wants, "%s/%s" % (self.units, self.unit)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            record = read_json(self.record)
            folder = os.path.dirname(self.wants)
            used = os.path.isdir(folder) and os.listdir(folder)  # by others, which linger as well
            if isinstance(record, dict) and record.get("lingers") and not used:
                _call(["loginctl", "--no-ask-password", "disable-linger", self.user.pw_name])
        for path in (self.script, self.record):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _crontab(self):
        """The lines of the user's crontab."""
        done = _call(["crontab", "-l"])
        if done.returncode and not EMPTY.search(done.stderr):
            raise FleetError(
                "boot.crontab-unreadable",
                "The crontab of %s cannot be read: %s.",
                (self.user.pw_name, _first_line(done.stderr)),
            )
        lines = [] if done.returncode else done.stdout.split("\n")
        return lines[:-1] if lines and not lines[-1] else lines

    def _others(self):
        return [line for line in self._crontab() if line != self.line]

    def _write_crontab(self, lines):
        """Put these lines in place of the crontab; what was there is put back where cron does not take them."""
        before = self._crontab()
        text = "".join(line + "\n" for line in lines)
        done = _call(["crontab", "-"], text) if lines else _call(["crontab", "-r"])
        if done.returncode or self._crontab() != lines:
            if self._crontab() != before:
                _call(["crontab", "-"], "".join(line + "\n" for line in before))
            raise FleetError(
                "boot.crontab-refused",
                "crontab did not take the line of the servers: %s. The crontab of %s is as it was.",
                (_first_line(done.stderr), self.user.pw_name),
            )


def cron_runs():
    """Whether a cron daemon runs."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if (read_text("/proc/%s/comm" % pid) or "").strip() in ("cron", "crond", "fcron", "cronie"):
            return True
    return False


def _program(name):
    return shutil.which(name, path=PROGRAMS)


def _call(argv, text=""):
    """What became of a program that was given this text."""
    environment = {"PATH": PROGRAMS, "LANG": "C.UTF-8", "HOME": pwd.getpwuid(os.getuid()).pw_dir}
    try:
        return commands.run([_program(argv[0]) or argv[0], *argv[1:]], text=text, errors="surrogateescape",
                            env=environment)  # fmt: skip
    except OSError as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))


def _first_line(text):
    return text.strip().split("\n")[0] or "no words"
