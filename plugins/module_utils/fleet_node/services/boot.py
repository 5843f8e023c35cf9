# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line in the account's crontab that starts supervisord, and its servers, after a reboot. systemd needs none."""

from __future__ import annotations

import os
import shlex

from ..host import commands
from ..host.paths import PREFIX

PROGRAM = "crontab"


def ensure(node, wanted, check=False):
    """Add the line to the crontab, or remove it. Returns {changed, diff, warnings}."""
    result = {"changed": False, "diff": {"before": "", "after": ""}, "warnings": []}
    if node.manager.name != "supervisord":
        return result
    mark = " # inference.fleet %s" % (node.paths.root or "/")
    done, problem = _crontab("-l")
    if problem and "no crontab" in problem.lower():
        problem = None
    lines = done.stdout.splitlines() if done and not done.returncode else []
    before = [line for line in lines if line.endswith(mark)]
    after = [_line(node.manager) + mark] if wanted else []
    if before != after and not problem:
        result.update(changed=True, diff={"before": "\n".join(before), "after": "\n".join(after)})
        if not check:
            kept = [line for line in lines if not line.endswith(mark)]
            problem = _crontab("-", "".join(line + "\n" for line in [*kept, *after]))[1]
    if problem and wanted:
        result["warnings"].append(
            "After a reboot nothing starts the servers of %s: %s. Run the play after a reboot, or set "
            "fleet_start_on_boot to false." % (node.paths.root, problem)
        )
    return result


def _line(manager):
    """The crontab's line without its mark. It does nothing while no server is defined."""
    folder = "mkdir -m 700 %s 2>/dev/null; " % shlex.quote(manager.socket_folder) if manager.socket_folder else ""
    words = ["%s=%s" % item for item in sorted(manager.daemon_environment().items())]
    start = " ".join(map(shlex.quote, ["env", "-i", *words, manager.program, "-c", manager.conf]))
    defined = "ls %s/%s*.conf >/dev/null 2>&1" % (shlex.quote(manager.programs), PREFIX)
    return "@reboot " + ("%s && { %s%s; }" % (defined, folder, start)).replace("%", "\\%")  # cron ends a command at %


def _crontab(option, text=None):
    """(CompletedProcess or None, why it failed or None)."""
    try:
        done = commands.run(
            [PROGRAM, option], text=text, errors="surrogateescape", env={**os.environ, "LANG": "C.UTF-8"}
        )
    except OSError as error:
        return None, "crontab cannot be executed (%s)" % error.strerror
    return done, "crontab %s failed: %s" % (option, done.stderr.strip()) if done.returncode else None
