# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds files of this collection that nothing uses any more, by their place and their record, never by their age.

Used is a path that a planned or deployed server, its service definition or a running process names, directly or by a
link, and everything in it or above it. Links are not followed; files without a record of this collection are ignored.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil

from .errors import FleetError
from .host import files, processes
from .host.files import is_locked, mount_points, read_text, size_of
from .host.os_errors import os_error
from .host.python_environment import MARKER, PARTIAL
from .host.server_spec import ARTIFACT_RECORD, NAME, artifact_key
from .servers.reconcile import locked
from .weights.manifest import INNER_STAGING, MANIFEST, lock_of
from .weights.staging import Busy, WeightLock

KINDS = {"work", "compile", "artifact", "cache"}
PATH = re.compile(r"/[^\s\"',;:=\\]+")
ESCAPED = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
QUOTES = re.compile(r"[\\\"'%$]")  # of JSON, units and shells, which also double some of them
KEY = re.compile(r"^[0-9a-f]{16}$")
RECORDS = frozenset((ARTIFACT_RECORD, MANIFEST, MARKER, PARTIAL))
UNITS = "/etc/systemd/system/inference-fleet-*"


def clean(paths, planned, deployment=None, remove=False, remove_shared=False, check=False):
    """Find unused files and, with `remove`, delete them.

    planned: plan entries; deployment: the resolved recipe or None. remove_shared: also delete files that other
    nodes may use. Returns {changed, unused: [row], removed: [path], kept: [path], diff}. Raises FleetError.
    """
    try:
        with locked(paths, wait_s=0) if remove and not check else contextlib.nullcontext():
            found = find(paths, planned, deployment)
            goes = [one for one in found if remove and not one["mounted"] and (remove_shared or not one["shared"])]
            removed = [one["path"] for one in goes if check or _delete(one["path"], one["kind"])]
    except OSError as error:
        raise os_error("Unused files cannot be removed", error, "Run clean.yml again then.") from error
    return {
        "changed": bool(removed),
        "unused": found,
        "removed": removed,
        "kept": [one["path"] for one in found if one["path"] not in removed],
        "diff": {"before": "".join(path + "\n" for path in removed), "after": ""},
    }


# ---- used paths


class Used:
    """The paths that are named. texts: strings of plan entries; others: strings of processes and services.

    An entry that names a folder, such as a container's mount, uses everything in it. That does not apply to processes,
    which may name the root. Whatever could be the path counts, since the end of a path with a blank is not known.
    """

    def __init__(self, texts, others, lib):
        self._named = _places(texts)
        self._paths = self._named | _places(others)
        self._text = "\n".join(map(_unquoted, [*texts, *others]))
        self._lib = lib

    def names(self, path):
        """Whether the path, a path in it, or, by an entry, a folder above it is named."""
        spellings = {path, os.path.realpath(path)}
        if any(re.search(re.escape(_unquoted(one)) + r"(?!\.*[\w+-])", self._text) for one in spellings):
            return True
        path = os.path.realpath(path)
        return any(_within(other, path) for other in self._paths) or any(
            _within(path, other) for other in self._named if not _within(self._lib, other)
        )


def _places(texts):
    """The absolute paths in strings, and the targets of links among them, except folders of the root directory.

    An absolute string, or its part after "=", is also a path by itself.
    """
    found = set()
    for text in texts:
        complete = [one for one in (text, text.partition("=")[2]) if one.startswith("/") and "\n" not in one]
        for path in [*(one.rstrip("/") for one in complete), *(one.rstrip("/.)]}") for one in PATH.findall(text))]:
            if path.count("/") > 1:
                found |= {os.path.normpath(path), os.path.realpath(path)}
    return found


def _strings(value):
    """The strings in a JSON value, and its keys."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        return [text for one in value for text in _strings(one)]
    return [value] if isinstance(value, str) else []


def _unquoted(text):
    """The text without quotes and escapes, so that a path and its quoted form are alike."""
    return QUOTES.sub("", ESCAPED.sub(lambda found: json.loads('"%s"' % found.group()), text))


def _within(path, folder):
    return path == folder or path.startswith(folder + "/")


def used_places(paths, planned, deployment):
    """(Used, [entries]). Raises FleetError for an invalid entry."""
    entries = list(planned)
    for file in sorted(glob.glob(glob.escape(paths.servers) + "/*.json")):
        text = read_text(file) or ""
        try:
            entry = json.loads(text)
            entries.append({**entry, "directories": entry["directories"]})
        except (ValueError, KeyError, TypeError):
            raise FleetError("clean.entry-unreadable", file) from None
    texts = _strings([deployment, *entries])
    others = _processes(paths)
    for pattern in (UNITS, UNITS + "/*", glob.escape(paths.etc) + "/supervisor.d/*"):
        others += [read_text(file) or "" for file in glob.glob(pattern) if os.path.isfile(file)]
    return Used(texts, others, os.path.realpath(paths.lib)), entries


def _processes(paths):
    """Strings of running processes: program, arguments, folder, and the environment of this root's servers."""
    texts = []
    ours = set(processes.server_pids(paths.root))
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        for link in ("exe", "cwd"):
            with contextlib.suppress(OSError):
                texts.append(os.readlink("/proc/%s/%s" % (pid, link)))
        for name in ("cmdline", "environ") if int(pid) in ours else ("cmdline",):
            with contextlib.suppress(OSError), open("/proc/%s/%s" % (pid, name), "rb") as stream:
                texts += stream.read().decode("utf-8", "surrogateescape").split("\0")
    return texts


# ---- found paths, as (path, kind for a person, reason)


def find(paths, planned, deployment=None):
    """[{path, kind, why, size, shared, mounted}] of a node, by path. Raises FleetError, OSError.

    size: bytes; shared: it is outside of the root's own folder or on another file system, so other nodes may use it;
    mounted: something is mounted in it, so it is never deleted.
    """
    used, entries = used_places(paths, planned, deployment)
    unused = [
        *_server_folders(paths, used),
        *_artifacts(paths, used, entries),
        *_environments(paths, used),
        *_weights(paths, used, entries),
    ]
    mounts, found = mount_points(), []
    device = os.stat(paths.lib).st_dev if os.path.isdir(paths.lib) else None
    for path, kind, why in sorted(unused):
        real = os.path.realpath(path)
        shared = not _within(real, os.path.realpath(paths.lib)) or os.lstat(real).st_dev != device
        mounted = any(_within(mount, real) for mount in mounts)
        row = {"path": path, "kind": kind, "why": why, "size": size_of(path), "shared": shared, "mounted": mounted}
        found.append(row)
    return found


def _folders(folder):
    """[(name, path)] of the folders in a folder, without links."""
    try:
        with os.scandir(folder) as items:
            return sorted((item.name, item.path) for item in items if item.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _server_folders(paths, used):
    for name, path in _folders(paths.lib + "/servers"):
        if NAME.match(name) and set(os.listdir(path)) <= KINDS and not used.names(path):
            yield path, "folders of a server", "no planned or deployed server, nor a process, uses it"


def _artifacts(paths, used, entries):
    """Compiled artifacts below the root's own folder, and next to artifacts that entries name."""
    parents = {path for _name, path in _folders(paths.lib + "/artifacts")}
    for entry in entries:
        artifact = (entry.get("directories") or {}).get("artifact") or ""
        if artifact and os.path.basename(artifact) == artifact_key(entry):
            parents.add(os.path.dirname(artifact))
    for parent in sorted({os.path.realpath(one) for one in parents}):
        for name, path in _folders(parent):
            ours = os.path.isfile(os.path.join(path, ARTIFACT_RECORD))
            if KEY.match(name) and (ours or not os.listdir(path)) and not used.names(path):
                yield path, "compiled artifact", "no planned or deployed server has this configuration"


def _environments(paths, used):
    for _name, path in _folders(paths.venvs):
        ours = any(os.path.isfile(os.path.join(path, name)) for name in (MARKER, PARTIAL))
        if ours and not used.names(path):
            yield path, "environment", "no planned or deployed server, nor a process, runs in it"


def _weights(paths, used, entries):
    """Checkpoints with a manifest, and partial downloads, in folders of checkpoints."""
    named = {folder for entry in entries for folder in entry.get("weights") or ()}
    parents = {paths.models, *(os.path.dirname(folder) for folder in named)}
    for parent in sorted({os.path.realpath(one) for one in parents}):
        for name, path in _folders(parent):
            destination = _destination(path)
            if used.names(destination) or used.names(path) or _is_changing(destination):
                continue
            if destination != path:
                yield path, "partial download", "%s is not planned, and no job fetches it" % destination
            elif not name.startswith(".") and os.path.isfile(os.path.join(path, MANIFEST)):
                yield path, "checkpoint", "no planned or deployed server reads it"


def _destination(path):
    """Where the files of a partial download belong; the path itself if it is none."""
    found = re.fullmatch(r"(.*/)\.([^/]+)" + re.escape(INNER_STAGING), path)
    return found[1] + found[2] if found else path


def _is_changing(destination):
    """Whether a run changes a destination of weights, on this node or another, or its lock cannot be read."""
    try:
        return is_locked(lock_of(destination))
    except OSError:
        return True


# ---- delete


def _remove(path):
    """Remove a folder with its records last, since a run that ends before must be able to recognise the rest."""
    for name in set(os.listdir(path)) - RECORDS:
        files.remove(os.path.join(path, name))
    shutil.rmtree(path)


def _delete(path, kind):
    """Delete it unless it is in use by now. Returns whether it was deleted."""
    lock = contextlib.nullcontext()
    if kind in ("checkpoint", "partial download"):
        lock = WeightLock(_destination(path), patience_s=0)
    try:
        with lock:
            _remove(path)
    except Busy:
        return False
    return True
