# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs and removes the watchdog of a node: a timer of systemd, or a program of supervisord."""

from __future__ import annotations

import os

from ..host import python as host_python
from ..host import trust
from ..host.files import make_directory, read_text, write_atomic
from ..host.os_errors import os_error
from ..host.paths import PREFIX
from . import supervisord, systemd

NAME = PREFIX + "watchdog"
HEADER = "Written by inference.fleet; the next run overwrites it."


def ensure(node, settings, check=False):
    """Install the watchdog with these settings, or remove it (None). Returns {changed, diff}. Raises FleetError.

    settings: {interval, failures, timeout}: seconds between two checks, failures in a row before a restart, seconds for
    an answer.
    """
    wanted = _files(node, **settings) if settings else {}
    paths = _files(node, interval=1, failures=1, timeout=1)
    before = {path: read_text(path) for path in paths if os.path.lexists(path)}
    active = bool(before) and node.manager.helper_runs(NAME)
    wrong = {path: trust.misplaced(path) for path in before if path in wanted}
    wrong = {path: words for path, words in wrong.items() if words}
    changed = before != wanted or active != bool(wanted) or bool(wrong)
    result = {"changed": changed, "diff": {"before": _words(before, active), "after": _words(wanted, bool(wanted))}}
    result["diff"]["before"] += "".join("%s %s\n" % item for item in sorted(wrong.items()))
    if check or not changed:
        return result
    try:
        if not wanted:
            node.manager.end_helper(NAME)
        for path in sorted(set(before) - set(wanted)):
            os.unlink(path)
        for path, text in sorted(wanted.items()):
            if before.get(path) != text or path in wrong:
                make_directory(os.path.dirname(path))
                write_atomic(path, text)
    except OSError as error:
        raise os_error("The watchdog cannot be changed", error) from error
    if wanted:
        node.manager.start_helper(NAME)
    return result


def _words(files, active):
    return "".join("%s:\n%s" % item for item in sorted(files.items())) + ("watchdog: runs\n" if active else "")


def _files(node, interval, failures, timeout):
    """{path: content} of the watchdog's files."""
    paths = node.paths
    argv = [host_python.link(paths), "-I", paths.guard, "watch", paths.etc, "--state", paths.state]
    argv += ["--root", paths.root, "--memory", paths.run + "/watchdog.json", "--failures", str(failures)]
    argv += ["--timeout", str(timeout)]
    if node.manager.name == "systemd":
        service = (
            "# %s\n[Unit]\nDescription=inference.fleet: asks each server for a completion\n"
            "ConditionPathExists=%s\n\n[Service]\nType=oneshot\nExecStart=%s\n"
            "SyslogIdentifier=%s\nProtectSystem=full\nNoNewPrivileges=yes\n"
            % (HEADER, paths.guard, systemd.unit_command(argv), NAME)
        )
        timer = (
            "# %s\n[Unit]\nDescription=inference.fleet: time to ask each server\n\n[Timer]\nOnActiveSec=%d\n"
            "OnUnitInactiveSec=%d\nAccuracySec=1\n\n[Install]\nWantedBy=timers.target\n" % (HEADER, interval, interval)
        )
        place = "%s/%s" % (node.manager.units, NAME)
        return {place + ".service": service, place + ".timer": timer}
    command = supervisord.ini_command([*argv, "--every", str(interval)])
    log = supervisord.ini_value(paths.log + "/watchdog.log", expansions=2)
    section = (
        "; %s\n[program:%s]\ncommand=%s\ndirectory=/\nautostart=true\nautorestart=true\nstartsecs=0\nstartretries=5\n"
        "redirect_stderr=true\nstdout_logfile=%s\nstdout_logfile_maxbytes=1MB\nstdout_logfile_backups=1\n"
        % (HEADER, NAME, command, log)
    )
    return {"%s/%s.conf" % (node.manager.programs, NAME): section}
