# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether only root can change the folders, programs and files that root uses on a node."""

from __future__ import annotations

import errno
import os
import pwd
import stat

from ..errors import FleetError

WRITABLE = stat.S_IWGRP | stat.S_IWOTH
LINKS = 40  # as the kernel


def fault(path, sticky=True):
    """Why an account other than root could change the target of `path`, as a clause; None if none could.

    Each part of the path is checked, and so are links and their targets. sticky: whether the path itself may be a
    folder in which every account may create files, such as /tmp, as its parents may. A missing path has no fault.
    """
    waiting, at, links = path.strip("/").split("/"), "", 0
    found = _own_fault("/", True)
    while waiting and found is None:
        name = waiting.pop(0)
        if name in ("", "."):
            continue
        at = os.path.dirname(at) if name == ".." else "%s/%s" % (at, name)
        try:
            target = os.readlink(at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                return None  # a missing file is not under the control of others
            found = _own_fault(at, sticky or bool(waiting))
            continue
        links += 1
        if os.lstat(at).st_uid != 0:
            return "%s is a link that belongs to %s" % (at, _name(os.lstat(at).st_uid))
        if links > LINKS:
            return "links in it lead in a circle"
        waiting = target.strip("/").split("/") + waiting
        at = "" if target.startswith("/") else os.path.dirname(at)
    return found


def _own_fault(path, sticky):
    status = os.lstat(path or "/")
    if status.st_uid != 0:
        return "%s belongs to %s" % (path, _name(status.st_uid))
    if status.st_mode & WRITABLE and not (sticky and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return "others than root may write to %s (mode %04o)" % (path, stat.S_IMODE(status.st_mode))
    return None


def _name(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "the deleted account %d" % uid


def misplaced(path, folder=False, owners=()):
    """How the file at `path` differs from a plain file of this process's account (or of `owners`) with mode 0644, or a
    folder with mode 0755, as a clause; None if it does not."""
    try:
        status = os.lstat(path)
    except OSError:
        return "is missing"
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(status.st_mode):
        return "is no folder" if folder else "is no plain file"
    if status.st_uid not in (os.geteuid(), *owners):
        return "belongs to %s" % _name(status.st_uid)
    found, mode = stat.S_IMODE(status.st_mode), 0o755 if folder else 0o644
    return None if found == mode else "has mode %04o instead of %04o" % (found, mode)


def check_root(paths):
    """Raises FleetError if this runs as root and others could replace folders of `paths` (NodePaths): by the rights of
    fleet_root and its parents, or by links."""
    if os.geteuid() != 0:
        return
    found = None
    if paths.root:
        found = fault(paths.root, sticky=False)
        below = [paths.root + one for one in ("/etc", "/var", "/var/lib", "/var/log", "/run")]
        found = found or next(filter(None, (fault(one, sticky=False) for one in below)), None)
    found = found or next(filter(None, (_link_fault(*one) for one in paths.folders())), None)
    if found:
        what, remedy = "The folders of inference.fleet", "Remove it."
        if paths.root:
            what = "fleet_root %s" % paths.root
            remedy = "Correct that, set another fleet_root, or run without become as the account that owns it."
        raise FleetError("node.root-not-safe", what, found, remedy)


def _link_fault(path, movable):
    """fault() of a folder that is a link. movable: whether root may have moved the folder to another disk."""
    if not os.path.islink(path):
        return None
    return fault(path, sticky=False) if movable else "%s is a link (to %s)" % (path, os.readlink(path))
