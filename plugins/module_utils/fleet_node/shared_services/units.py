# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A unit of systemd that a role brings: what differs of it and its files, and starting it without a needless reload.

`systemctl daemon-reload` takes the devices away from containers that run with them (see services/systemd.py), so it is
called only where systemd holds an older version of the unit.
"""

from __future__ import annotations

import os
import shutil
import time

from ..errors import FleetError
from ..node import commands
from ..node.files import read_text
from ..node.processes import port_holder

CALL_S = 120
POLL_S = 0.2


def systemctl(*arguments, check=True):
    """What systemctl prints. FleetError where it fails."""
    if shutil.which("systemctl") is None:
        raise FleetError(
            "service.no-systemd",
            "This node has no systemd, which the services of the fleet run under. Use a node with systemd, or run the "
            "service elsewhere and name its address in the recipe.",
        )
    waits = {"start", "stop", "restart", "--now"}.intersection(arguments)
    done = commands.run(["systemctl", *arguments], limit_s=CALL_S if waits else commands.LIMIT_S, merged=True)
    if check and done.returncode:
        raise FleetError(
            "service.systemctl-failed",
            "systemctl %s failed: %s. Look at `journalctl -u %s`, correct that and run again.",
            (" ".join(arguments), done.stdout.strip(), arguments[-1]),
        )
    return done.stdout


def shown(unit):
    """{property: value} of a unit, also of one that does not exist."""
    names = "ActiveState,MainPID,NeedDaemonReload,UnitFileState,ExecMainStartTimestampMonotonic"
    lines = systemctl("show", "--property", names, unit).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def is_up(unit):
    """Whether a process of the unit runs, ready or not."""
    return shown(unit).get("MainPID", "0") != "0"


def is_stale(state, files):
    """Whether the unit of this state (shown()) runs a process that is older than one of its files."""
    if state.get("MainPID", "0") == "0":
        return False
    began = time.time() - time.monotonic() + int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return state.get("NeedDaemonReload") == "yes" or any(
        os.path.exists(path) and os.stat(path).st_mtime > began for path in files
    )


def differing(files):
    """Paths of {path: content} whose content is another, or that are not there."""
    return [path for path, content in files.items() if read_text(path) != content]


def diff(files):
    """A module's diff of those of {path: content} that differ."""
    return [
        {"before": read_text(path) or "", "after": files[path], "before_header": path, "after_header": path}
        for path in differing(files)
    ]


def start(unit, restart=False):
    """Enable the unit and have systemd start it; it may be long until it is ready.

    After a restart the process of before has ended: what answers is not that one.
    """
    state = shown(unit)
    if state.get("NeedDaemonReload") == "yes":
        systemctl("daemon-reload")
    systemctl("enable", "--no-reload", unit)
    systemctl("restart" if restart else "start", "--no-block", unit)
    end = time.monotonic() + CALL_S
    while restart and shown(unit).get("MainPID") == state.get("MainPID", "0") != "0" and time.monotonic() < end:
        time.sleep(POLL_S)


def stop(unit):
    """Stop the unit and keep it from starting at a boot."""
    systemctl("stop", unit)
    systemctl("disable", "--no-reload", unit)
    if shown(unit).get("ActiveState") == "failed":  # NATS before 2.10 ends with 1; systemd would hold it as enabled
        systemctl("reset-failed", unit)


def ensure_started(unit, check_mode):
    """Start the unit where it does not run, or would not at a boot; whether that was so."""
    state = shown(unit)
    changed = state.get("MainPID", "0") == "0" or state.get("UnitFileState") != "enabled"
    if changed and not check_mode:
        start(unit)
    return changed


def ensure_stopped(unit, check_mode):
    """Stop the unit where it runs or would start at a boot; whether that was so."""
    state = shown(unit)
    changed = state.get("MainPID", "0") != "0" or state.get("UnitFileState") == "enabled"
    if changed and not check_mode:
        stop(unit)
    return changed


def check_ports(what, ports):
    """FleetError where a port of [(address, port)] is held; for a unit that does not run."""
    for address, port in ports:
        holder = port_holder(address, port)
        if holder is not None:
            raise FleetError(
                "service.port-held",
                "%s: port %d on %s is held by process %s of %s. Nothing was changed; end it or choose another port.",
                (what, port, address, holder["pid"] or "?", holder["user"]),
            )


def journal(unit, lines=15):
    """The last lines of the unit's journal, for an error."""
    argv = ["journalctl", "--unit", unit, "--lines", str(lines), "--no-pager", "--output", "cat"]
    return commands.run(argv).stdout.strip()


def reasons(unit, files, programs, certificates, watched=None, image=""):
    """{what: why} of what is to be done for a unit.

    certificates: faults of those that are made here. watched: files that the process read at its start, beside others.
    image: what is wrong with the image that has its programs.
    """
    found = {}
    missing = [path for path in programs if not os.access(path, os.X_OK)]
    if missing or image:
        found["programs"] = image or "%s is missing" % missing[0]
    if certificates:
        found["certificates"] = certificates[0]
    changed = differing(files)
    if changed:
        found["files"] = "%s differs" % ", ".join(changed)
    state = shown(unit)
    if state.get("MainPID", "0") == "0":
        found["unit"] = "%s does not run" % unit
    elif state.get("UnitFileState") != "enabled":
        found["unit"] = "%s is not enabled" % unit
    elif is_stale(state, watched or files):
        found["unit"] = "%s runs since before its files were changed" % unit
    return found
