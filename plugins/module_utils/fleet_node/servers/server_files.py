# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of servers: written beside their places and installed together, kept until a change is verified, removed.

The files that a wave replaced stay as PATH.previous, links that need no space. A record lists them: {server: {files:
[path], starts}}. A path without its link did not exist; `starts` is false for a server that was removed to make room.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat

from ..host import files, trust
from ..host.files import fits, make_directory, readable_json, write_atomic
from ..host.os_errors import about, os_error
from .model import STARTS, config_path


class Staging:
    """Files written next to their places; commit() renames all of them."""

    def __init__(self):
        self.files = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        """Remove files that were not installed, and files that were replaced."""
        for temporary, _place in self.files:
            for path in (temporary, temporary + ".old"):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def add(self, path, text, mode=0o644, owner=None):
        make_folder(os.path.dirname(path))
        self.files.append((files.write_next_to(path, text, mode, owner), path))

    def commit(self):
        """Install all files; if one fails, the others are restored. Raises OSError."""
        installed = []
        try:
            for temporary, place in self.files:
                with about(place):
                    if os.path.lexists(place):
                        os.link(place, temporary + ".old", follow_symlinks=False)
                    installed.insert(0, (temporary, place))
                    os.rename(temporary, place)
        except OSError:
            for temporary, place in installed:
                with contextlib.suppress(OSError):
                    os.rename(temporary + ".old", place) if os.path.lexists(temporary + ".old") else os.unlink(place)
            raise


def make_folder(path, owner=None, mode=0o755):
    """Create `path` with this owner and mode, and missing parents with mode 0755, whatever the umask. An existing
    directory that its owner cannot use gets the mode too. root changes a directory behind a link only if no other
    account could have made the link. Raises FleetError."""
    try:
        created, status, real = make_directory(path), os.stat(path), os.path.realpath(path)
        found, owners = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
        right = mode if path in created or found & 0o700 != 0o700 else found
        if (right, owner or owners) == (found, owners):
            return
        if os.geteuid() != 0:
            os.chown(real, *(owner or owners))
        elif real != os.path.normpath(path):
            folder, name = os.path.split(os.path.normpath(path))
            last = real != os.path.join(os.path.realpath(folder), name)
            fault = trust.fault(path if last else folder)  # a directory itself may belong to any account
            if fault:
                raise OSError(errno.EINVAL, "a link leads to %s, and %s" % (real, fault), path)
        files.place(real, right, *(owner or owners), folder=True)
    except OSError as error:
        raise os_error("The directory %s cannot be made" % path, error) from error


def remove(node, observed, all_observed):
    """Delete the files of a stopped server and its definition. Its directories stay."""
    node.manager.drop([observed.name])
    forget_state(node, observed.name)
    # a configuration file of the plan may belong to another server
    kept = {config_path(one.entry) for name, one in all_observed.items() if name != observed.name and one.entry}
    for path in [*observed.files, *node.manager.log_files(observed.name)]:
        if path not in kept:
            unlink(path)


def forget_state(node, name):
    """Delete the record of a server's last start, under the lock of those who rewrite it (take_back)."""
    unlink(node.paths.ready(name))
    path = node.paths.server_state(name)
    if os.path.lexists(path):
        with files.record_lock(os.path.dirname(path)):
            unlink(path)


def unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


# -- files that a wave replaced ----------------------------------------------------------------------------------------


PREVIOUS, STAGED = ".previous", ".old"


def kept(paths):
    """{server: its kept files}; {} without any."""
    found = readable_json(_record(paths))
    return found if fits(found, {"*": {"files": [str], "starts": bool}}, complete=True) else {}


def unverified(paths):
    """Names of servers that were changed and not verified since."""
    return sorted(name for name, one in kept(paths).items() if one["starts"])


def keep(node, actions, desired, observed):
    """Keep the files that these actions replace. A definition that is kept already is older and was verified; it is not
    replaced. Raises OSError."""
    known = kept(node.paths)
    found = dict(known)
    for action in actions:
        one = observed.get(action.name)
        if action.name in known or action.kind not in ("create", "change", "remove"):
            continue
        entries = [desired[action.name].entry if action.name in desired else None, one.entry if one else None]
        paths = [node.paths.entry(action.name), node.paths.secret(action.name)]
        paths += [node.manager.definition_path(action.name), *map(config_path, entries)]
        found[action.name] = {"files": sorted({*paths} - {None}), "starts": action.kind in STARTS}
    if any(action.kind in ("create", "change") for action in actions):
        for path in [path for name in found if name not in known for path in found[name]["files"]]:
            unlink(path + PREVIOUS)
            with contextlib.suppress(FileNotFoundError):
                os.link(path, path + PREVIOUS, follow_symlinks=False)
        _keep_only(node.paths, found)


def stage_restore(paths):
    """Put the kept files beside their places, before anything stops. Raises OSError."""
    for path in _kept_files(paths):
        unlink(path + STAGED)
        if os.path.lexists(path + PREVIOUS):
            os.link(path + PREVIOUS, path + STAGED, follow_symlinks=False)


def restore(paths):
    """Install the kept files of stage_restore(). Returns the paths that had no file, which are deleted. Raises
    OSError."""
    absent = []
    for path in _kept_files(paths):
        try:
            os.rename(path + STAGED, path)
            unlink(path + STAGED)  # which rename() leaves if both are the same file
        except FileNotFoundError:
            unlink(path)
            absent.append(path)
    return absent


def _kept_files(paths):
    return [path for one in kept(paths).values() for path in one["files"]]


def forget(paths, names):
    """Forget these servers, which are verified or removed. With the last changed server, removed servers are
    forgotten."""
    left = {name: one for name, one in kept(paths).items() if name not in names}
    _keep_only(paths, left if any(one["starts"] for one in left.values()) else {})


def _keep_only(paths, found):
    known = kept(paths)
    if found:
        make_folder(paths.secrets)
        write_atomic(_record(paths), json.dumps(found), 0o600)
    elif known:
        unlink(_record(paths))
    for name in set(known) - set(found):
        for path in known[name]["files"]:
            unlink(path + PREVIOUS)


def _record(paths):
    return paths.secrets + "/.previous.json"
