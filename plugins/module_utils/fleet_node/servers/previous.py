# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the definitions that a change replaced until the changed servers are verified, or restores them.

They are in a file of mode 0600, since they contain secrets: {server: {files: {path: null or {data, mode, owner}},
starts}}. `starts` is false for a server that was removed to make room.
"""

from __future__ import annotations

import base64
import json
import os
import stat

from ..host.files import read_bytes, readable_json, write_atomic
from ..host.server_spec import start_order
from .model import STARTS, config_path
from .server_files import Staging, forget_state, make_folder, unlink


def read(paths):
    """{server: its kept files}; {} without any."""
    found = readable_json(_path(paths))
    return found if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()) else {}


def unverified(paths):
    """Names of servers that were changed and not verified since."""
    return sorted(name for name, one in read(paths).items() if one.get("starts"))


def keep(node, actions, desired, observed):
    """Keep the files that these actions replace. A definition that is kept already is older and was verified; it is not
    replaced. Raises OSError."""
    if not any(action.kind in ("create", "change") for action in actions):
        return
    known = read(node.paths)
    found = dict(known)
    for action in actions:
        one = observed.get(action.name)
        if action.name in known or action.kind not in ("create", "change", "remove"):
            continue
        entries = [desired[action.name].entry if action.name in desired else None, one.entry if one else None]
        paths = [node.paths.entry(action.name), node.paths.secret(action.name)]
        paths += [node.manager.definition_path(action.name), *map(config_path, entries)]
        found[action.name] = {"files": {path: _file(path) for path in paths if path}, "starts": action.kind in STARTS}
    if found != known:
        _write(node.paths, found)


def forget(paths, names):
    """Forget these servers, which are verified or removed. With the last changed server, removed servers are
    forgotten."""
    known = read(paths)
    left = {name: one for name, one in known.items() if name not in names}
    if left != known:
        _write(paths, left if any(one.get("starts") for one in left.values()) else {})


def put_back(node, stop):
    """Restore all kept definitions and start them. Returns ([names with their old definition], [names without one,
    which are removed]). stop(names): stops servers. Raises FleetError, OSError."""
    known = read(node.paths)
    back, gone, entries = [], [], {}
    with Staging() as staging:
        unlinked = []
        for name, one in known.items():
            files = one.get("files") or {}
            for path, file in files.items():
                if file is None:
                    unlinked.append(path)
                else:
                    owner = tuple(file["owner"]) if os.geteuid() == 0 else None
                    staging.add(path, base64.b64decode(file["data"]), file["mode"], owner)
            entry = files.get(node.paths.entry(name))
            (back if entry else gone).append(name)
            if entry:
                entries[name] = json.loads(base64.b64decode(entry["data"]))
        stop(list(known))
        staging.commit()
        for path in unlinked:
            unlink(path)
    for name in known:
        forget_state(node, name)
    if gone:
        node.manager.drop(gone)
    if back:
        node.manager.start(start_order(entries))
    _write(node.paths, {})
    return back, gone


def _file(path):
    data = read_bytes(path)
    if data is None:
        return None
    status = os.stat(path)
    return {
        "data": base64.b64encode(data).decode("ascii"),
        "mode": stat.S_IMODE(status.st_mode),
        "owner": [status.st_uid, status.st_gid],
    }


def _write(paths, found):
    if not found:
        unlink(_path(paths))
        return
    make_folder(os.path.dirname(_path(paths)))
    write_atomic(_path(paths), json.dumps(found), 0o600)


def _path(paths):
    return paths.secrets + "/.previous.json"
