# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account that servers run as, and the folders that several parts of the collection share on a node."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node_paths import NodePaths

ACCOUNT = re.compile(r"^[a-z_][a-z0-9_-]{0,31}$")


def make_directory(path):
    """Create `path` and what is missing above it, readable by every user whatever the umask. Returns what it created.

    Folders that are there keep their owner and mode. Raises OSError.
    """
    created = []
    missing = path
    while not os.path.isdir(missing):
        created.insert(0, missing)
        missing = os.path.dirname(missing)
    for folder in created:
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # mkdir's own mode is cut by the umask of the login
    return created


def existing_parent(path):
    """The nearest folder at or above `path` that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def shared_directories(root):
    """The folders below `root` that more than one part of the collection uses."""
    paths = NodePaths(root)
    return [paths.etc, paths.lib, paths.venvs, paths.models, paths.encodings, paths.log]


def ensure(root, user, check_mode=False):
    """Make the account `user` (None: none, servers run as whoever connects) and the shared folders below `root`.

    Returns {changed, user, directories, diff: {before, after}}. The account is a system account of its own group,
    with no login. Raises FleetError.
    """
    try:
        paths = NodePaths(root)
    except ValueError as error:
        raise FleetError(
            "root is %r; it must be an absolute path, or empty for the system's own folders." % root
        ) from error
    if user is not None and not ACCOUNT.match(user):
        raise FleetError("user is %r; an account's name has 1-32 characters of a-z, 0-9, '_' and '-'." % user)
    directories = shared_directories(root)
    wanted = [("group", user), ("user", user)] if user is not None else []
    wanted += [("directory", path) for path in directories]
    missing = [item for item in wanted if not _exists(*item)]
    if not check_mode:
        for kind, name in missing:
            _make(kind, name, paths)
    return {
        "changed": bool(missing),
        "user": user,
        "directories": directories,
        "diff": {
            "before": "".join("%s %s\n" % item for item in wanted if item not in missing),
            "after": "".join("%s %s\n" % item for item in wanted),
        },
    }


def _exists(kind, name):
    if kind == "directory":
        return os.path.isdir(name)
    try:
        (grp.getgrnam if kind == "group" else pwd.getpwnam)(name)
    except KeyError:
        return False
    return True


def _make(kind, name, paths):
    if kind == "directory":
        try:
            make_directory(name)
        except OSError as error:
            raise FleetError(
                "Cannot create the directory %s: %s. Run with the rights to do so (become), or set fleet_root to a "
                "directory that this user may write to." % (name, error.strerror)
            ) from error
        return
    if kind == "group":
        argv = ["groupadd", "--system", name]
    else:
        shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
        argv = ["useradd", "--system", "--gid", name, "--home-dir", paths.lib, "--no-create-home"]
        argv += ["--shell", shell, name]
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    try:
        process = subprocess.run(
            argv,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise FleetError("Cannot create the %s %s: %s." % (kind, name, error)) from error
    if process.returncode != 0:
        raise FleetError(
            "Cannot create the %s %s: %s. Run with the rights to do so (become), or create it yourself."
            % (kind, name, process.stdout.strip().rstrip("."))
        )
