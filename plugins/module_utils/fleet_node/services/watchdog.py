# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts the watchdog on a node, and takes it away: a timer of systemd, or a program of supervisord."""

from __future__ import annotations

import os

from ..errors import FleetError
from ..host import python as host_python
from ..host import trust
from ..host.directories import make_directory
from ..host.files import read_text, write_atomic
from ..host.paths import PREFIX
from . import supervisord, systemd

NAME = PREFIX + "watchdog"
HEADER = "Written by inference.fleet; the next run overwrites it."


class Settings:
    """How the watchdog looks: every interval seconds, failures in a row before a restart, timeout seconds for each."""

    def __init__(self, interval, failures, timeout):
        for key, value in (("interval", interval), ("failures", failures), ("timeout", timeout)):
            if value < 1:
                raise FleetError("watchdog.setting-invalid", "watchdog: %s is %d. Set it to 1 or more.", (key, value))
        self.interval = interval
        self.failures = failures
        self.timeout = timeout


def ensure(node, settings, check=False):
    """Bring the watchdog of a node to `settings`; None: there is none. Returns {changed, diff}. Raises FleetError."""
    wanted = _files(node, settings) if settings else {}
    before = {path: read_text(path) for path in _files(node, Settings(1, 1, 1)) if os.path.lexists(path)}
    active = _is_active(node, bool(before)) if before else False
    wrong = {path: trust.misplaced(path, 0o644) for path in before if path in wanted}
    wrong = {path: words for path, words in wrong.items() if words}
    changed = before != wanted or active != bool(wanted) or bool(wrong)
    result = {"changed": changed, "diff": {"before": _words(before, active), "after": _words(wanted, bool(wanted))}}
    result["diff"]["before"] += "".join("%s %s\n" % item for item in sorted(wrong.items()))
    if check or not changed:
        return result
    try:
        if not wanted:
            _stop(node)
        for path in sorted(set(before) - set(wanted)):
            os.unlink(path)
        for path, text in sorted(wanted.items()):
            if before.get(path) != text or path in wrong:
                make_directory(os.path.dirname(path))
                write_atomic(path, text)
    except OSError as error:
        raise FleetError(
            "watchdog.cannot-change",
            "The files of the watchdog cannot be written: %s. Correct that, or set fleet_watchdog to false.",
            (error,),
        ) from error
    if wanted:
        _start(node)
    return result


def _words(files, active):
    return "".join("%s:\n%s" % item for item in sorted(files.items())) + ("watchdog: runs\n" if active else "")


def _files(node, settings):
    """{path: text} of all that the watchdog consists of."""
    paths = node.paths
    argv = [host_python.link(paths), "-I", paths.guard, "watch", paths.etc, "--state", paths.state]
    argv += ["--root", paths.root, "--memory", paths.run + "/watchdog.json", "--failures", str(settings.failures)]
    argv += ["--timeout", str(settings.timeout)]
    found = {}
    if node.manager.name == "systemd":
        units = node.manager.units
        found["%s/%s.service" % (units, NAME)] = (
            "# %s\n[Unit]\nDescription=inference.fleet: asks each server for a completion\n"
            "ConditionPathExists=%s\n\n[Service]\nType=oneshot\nExecStart=%s\n"
            "SyslogIdentifier=%s\nProtectSystem=full\nNoNewPrivileges=yes\n"
            % (HEADER, paths.guard, systemd.unit_command(argv), NAME)
        )
        found["%s/%s.timer" % (units, NAME)] = (
            "# %s\n[Unit]\nDescription=inference.fleet: time to ask each server\n\n[Timer]\nOnActiveSec=%d\n"
            "OnUnitInactiveSec=%d\nAccuracySec=1\n\n[Install]\nWantedBy=timers.target\n"
            % (HEADER, settings.interval, settings.interval)
        )
        return found
    log = paths.log + "/watchdog.log"
    found["%s/%s.conf" % (node.manager.programs, NAME)] = (
        "; %s\n[program:%s]\ncommand=%s\ndirectory=/\nautostart=true\nautorestart=true\nstartsecs=0\nstartretries=5\n"
        "redirect_stderr=true\nstdout_logfile=%s\nstdout_logfile_maxbytes=1MB\nstdout_logfile_backups=1\n"
        % (HEADER, NAME, supervisord.ini_command([*argv, "--every", str(settings.interval)]),
           supervisord.ini_value(log, expansions=2))
    )  # fmt: skip
    return found


def _is_active(node, there):
    if node.manager.name == "systemd":
        # of what is enabled systemd may know what was before the last change
        enabled = os.path.islink("%s/timers.target.wants/%s.timer" % (node.manager.units, NAME))
        return enabled and node.manager.properties(NAME + ".timer").get("ActiveState") == "active"
    info = node.manager.program_info(NAME)
    return there if info is None else info.get("statename") in ("RUNNING", "STARTING", "BACKOFF", "EXITED")


def _start(node):
    if node.manager.name == "systemd":
        node.manager.run_timer(NAME)
    else:
        node.manager.run_program(NAME)


def _stop(node):
    if node.manager.name == "systemd":
        node.manager.end_timer(NAME)
    else:
        node.manager.end_program(NAME)
