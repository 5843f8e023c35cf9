# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes what a server leaves on a node: its files, and its directories where that is asked for."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil

from ..errors import FleetError
from ..node import files
from .model import config_path


def remove(node, observed, desired, all_observed, purge):
    node.manager.drop([observed.name])
    forget_state(node, observed.name)
    # a config of the plan's that is there though the entry is not may be another server's
    kept = {config_path(one.entry) for name, one in all_observed.items() if name != observed.name and one.entry}
    for path in [*observed.files, *node.manager.log_files(observed.name)]:
        if path not in kept:
            unlink(path)
    if not purge:
        return
    shared = set()
    for name, one in [*all_observed.items(), *desired.items()]:
        if name != observed.name and one.entry and os.path.exists(node.paths.entry(name)):
            shared.update((one.entry.get("directories") or {}).values())
    for path in observed.folders:
        # one that several shared is gone with the first of them, where none was deployed any more
        if os.path.isdir(path) and not any(_overlap(path, other) for other in shared):
            _purge(path)
    with contextlib.suppress(OSError):
        os.rmdir("%s/servers/%s" % (node.paths.lib, observed.name))  # only where nothing else is in it


def purgeable(paths, entries, purge_artifacts):
    """(existing directories of these entries that a purge deletes, those of artifacts that it leaves), both sorted.

    An artifact outside the root's own folder, or on a file system of its own in it, may be a whole fleet's, which all
    its nodes mount.
    """
    folders, kept = set(), set()
    for entry in entries:
        for kind, path in ((entry or {}).get("directories") or {}).items():
            if os.path.isdir(path):
                own = _inside(path, paths.lib) and os.stat(path).st_dev == os.stat(paths.lib).st_dev
                if kind == "artifact" and not own and not purge_artifacts:
                    kept.add(os.path.realpath(path))
                else:
                    folders.add(path)
    folders = {path for path in folders if not any(_overlap(path, other) for other in kept)}
    return sorted(folders), sorted(kept)


def _purge(path):
    """Delete a server's directory; FleetError for one that cannot be a server's own."""
    real = os.path.realpath(path)
    homes = {os.path.realpath(user.pw_dir) for user in pwd.getpwall() if user.pw_dir}
    if real.count("/") < 3 or real in homes or os.path.ismount(real):
        raise FleetError(
            "servers.purge-path-shared",
            "%s is not purged: it looks like more than one server's directory. Delete it yourself.",
            (path,),
        )
    shutil.rmtree(real, ignore_errors=False)


def forget_state(node, name):
    """Delete the record of a server's last start, not while somebody reads it and writes it anew (take_back)."""
    unlink(node.paths.ready(name))
    path = node.paths.server_state(name)
    if os.path.lexists(path):
        with files.folder_lock(os.path.dirname(path)):
            unlink(path)


def unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _inside(path, folder):
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(folder)]) == os.path.realpath(folder)


def _overlap(path, other):
    return _inside(path, other) or _inside(other, path)
