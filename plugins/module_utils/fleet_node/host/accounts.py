# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account of servers, and the folders that several parts of the collection share on a node."""

from __future__ import annotations

import contextlib
import functools
import glob
import grp
import json
import os
import pwd
import re
import shutil
import stat

from ..errors import FleetError, argument_invalid
from . import commands, processes
from .files import make_directory, mount_points, names_in, place, read_json, write_atomic
from .files import remove as remove_path
from .jobs import DetachedJob
from .os_errors import os_error
from .paths import NodePaths

ACCOUNT = re.compile(r"^[a-z_][a-z0-9_-]{0,31}$")


def ensure(root, user, check_mode=False):
    """Create the account `user` and the shared folders below `root`, and correct the rights of the folders.

    user: None if servers run as the account that connects. The account is a system account with its own group and no
    login; a record below `root` states that it was created here. With an account every user may enter the folders, and
    they belong to the account that runs this. Returns {changed, message, diff: {before, after}}.
    Raises FleetError.
    """
    paths = NodePaths.of_parameter(root)
    if user is not None and not ACCOUNT.match(user):
        raise argument_invalid("user", user, "1-32 characters of a-z, 0-9, '_' and '-'")
    wanted = [("group", user), ("user", user)] if user is not None else []
    folders = (paths.etc, paths.lib, paths.venvs, paths.models, paths.encodings, paths.log)
    wanted += [("directory", path) for path in folders]
    missing = [item for item in wanted if not _exists(*item)]
    wrong = _wrong_rights(paths, user is not None)
    if not check_mode:
        try:
            created = [list(item) for item in missing if item[0] != "directory"]
            if created:  # before the accounts: a purge removes only accounts in the record
                items = [*(item for item in recorded(paths) if item not in created), *created]
                make_directory(paths.lib)
                write_atomic(paths.lib + "/accounts.json", json.dumps(items) + "\n")
            for item in missing:
                _create(*item, paths)
            for _path, _found, _wanted, repair in wrong:
                repair()
        except OSError as error:
            raise os_error("The account and the folders cannot be created", error) from error
    due = ["%s %s is missing" % item for item in missing]
    due += ["%s has %s instead of %s" % (path, found, right) for path, found, right, _repair in wrong]
    notes = {("directory", path): ": " + found for path, found, _wanted, _repair in wrong}
    return {
        "changed": bool(due),
        "message": "; ".join(due) or "up to date",
        "diff": {
            "before": "".join("%s %s%s\n" % (*item, notes.get(item, "")) for item in wanted if item not in missing),
            "after": "".join("%s %s\n" % item for item in wanted),
        },
    }


def _wrong_rights(paths, shared):
    """[(path, found, wanted, function that corrects it)] of folders with wrong rights or another owner.

    shared: whether servers run as another account, which must be able to enter them. Only weights may be writable by
    others. Weights, logs and mounts keep their owner.
    """
    found, own, mounts = [], (os.geteuid(), os.getegid()), mount_points()
    # others may put links to folders of root into the folder of models
    models, servers = (
        [path for path in sorted(glob.glob(glob.escape(folder) + "/*")) if not os.path.islink(path)]
        for folder in (paths.models, paths.lib + "/servers")
    )
    data = [paths.models, paths.encodings, *models]
    folders = [path for path, _movable in paths.folders() if path != paths.state]  # it belongs to the account
    for path in filter(os.path.isdir, [*folders, *models, *servers]):
        at = os.path.realpath(path) if path in folders else path
        status = os.stat(path)
        mode = stat.S_IMODE(status.st_mode)
        right = mode | (0o755 if shared and mode & 0o555 != 0o555 else 0o700)
        if path not in data and path not in mounts:
            right &= ~0o027 if path == paths.log else ~0o022
        if right != mode:
            repair = functools.partial(place, at, right, folder=True)
            found.append((path, "mode %04o" % mode, "mode %04o" % right, repair))
        owner = (status.st_uid, status.st_gid)
        if shared and path not in (*data, paths.log) and owner != own and path not in mounts:
            names = ["owner " + processes.user_name(uid) for uid in (owner[0], own[0])]
            found.append((path, *names, functools.partial(os.chown, at, *own, follow_symlinks=False)))
    return found


def remove(root, check_mode=False):
    """Remove the accounts that ensure() created for this root, and the collection's folders below it.

    Mounts in these folders stay, since other nodes may use them; the content of a folder that is a mount is removed.
    Files of such an account in other folders stay. The servers must have been stopped. Returns as ensure() does. Raises
    FleetError.
    """
    paths = NodePaths.of_parameter(root)
    folders = (paths.run, paths.etc, paths.log, paths.lib)
    # removing an account may remove its group
    accounts = [tuple(item) for item in reversed(recorded(paths)) if _exists(*item)]
    mounts = mount_points()
    try:
        gone = [one for path in filter(os.path.lexists, folders) for one in _removable(path, mounts)]
        lines = ["%s %s\n" % item for item in accounts]
        lines += ["%s %s\n" % ("directory" if os.path.isdir(path) else "file", path) for path in gone]
        if not check_mode:
            _end_jobs(paths)
            for kind, name in accounts:
                if _exists(kind, name):
                    _call(["userdel" if kind == "user" else "groupdel", name])
            for path in gone:  # the record is in the last of the folders
                remove_path(path)
            for path in folders:
                _remove_empty_parents(path, paths.root)
    except OSError as error:
        raise os_error("The folders below %s cannot be removed" % (paths.root or "/"), error) from error
    stays = list(filter(os.path.lexists, folders))
    if check_mode:
        message = "would remove " + ", ".join(line.strip() for line in lines) if lines else "nothing to remove"
    else:
        message = "left, with the mounts in it: %s" % ", ".join(stays) if stays else "nothing is left"
    return {
        "changed": bool(lines),
        "message": message,
        "diff": {"before": "".join(lines), "after": ""},
    }


def _remove_empty_parents(path, root):
    """Remove empty folders above a path, up to the root."""
    while root and path.startswith(root + "/"):
        path = os.path.dirname(path)
        with contextlib.suppress(OSError):  # it is not empty, a mount, or belongs to others
            os.rmdir(path)


def _removable(path, mounts):
    """[path] to delete in order to remove `path` except mounts in it."""
    real = os.path.realpath(path)
    inside = any(one == real or one.startswith(real + "/") for one in mounts)
    if not inside or not os.path.isdir(path) or os.path.islink(path):
        return [path]
    found = []
    for name in sorted(os.listdir(path)):
        child = os.path.join(path, name)
        if os.path.islink(child) or os.path.realpath(child) not in mounts:
            found += _removable(child, mounts)
    return found


def _end_jobs(paths):
    """End downloads and pulls that outlived their play; they would create their folders again."""
    jobs = paths.lib + "/jobs"
    for name in names_in(jobs):
        job = DetachedJob(os.path.join(jobs, name))
        if os.path.isdir(job.folder) and job.alive():
            job.stop()


def recorded(paths):
    """[["group" or "user", name]] that ensure() created, in that order."""
    found = read_json(paths.lib + "/accounts.json")
    return found if isinstance(found, list) else []


def _exists(kind, name):
    if kind == "directory":
        return os.path.isdir(name)
    try:
        (grp.getgrnam if kind == "group" else pwd.getpwnam)(name)
    except KeyError:
        return False
    return True


def _create(kind, name, paths):
    if kind == "directory":
        make_directory(name)
        os.chmod(name, 0o750 if name == paths.log else 0o755)
        return
    if kind == "group":
        argv = ["groupadd", "--system", name]
    else:
        shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
        argv = ["useradd", "--system", "--gid", name, "--home-dir", paths.lib, "--no-create-home"]
        argv += ["--shell", shell, name]
    try:
        _call(argv)
    except FleetError:
        if not _exists(kind, name):  # else another run was faster
            raise


def _call(argv):
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    done = commands.run(argv, merged=True, env={**os.environ, "PATH": path})
    if done.returncode != 0:
        raise FleetError("node.account-failed", " ".join(argv), done.stdout.strip().rstrip("."))
