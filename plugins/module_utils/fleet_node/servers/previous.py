# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The definitions that a change replaced: kept until the servers with the new ones are verified, else put back.

They are one file of mode 0600, since secrets are among them: {server: {files: {path: null or {data, mode, owner}},
starts, image}}. `starts` is false for a server that was removed to make room.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat

from ..containers.engine import EngineError, engine_of_entry
from ..host.files import read_bytes, readable_json, write_atomic
from ..host.server_spec import start_order
from .model import STARTS, config_path
from .server_files import Staging, forget_state, make_folder, unlink


def read(paths):
    """{server: what is kept of it}; {} without any."""
    found = readable_json(_path(paths))
    return found if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()) else {}


def unverified(paths):
    """Names of servers that were changed and not verified since."""
    return sorted(name for name, one in read(paths).items() if one.get("starts"))


def keep(node, actions, desired, observed):
    """Keep what these actions are about to replace. A definition that is kept already is older and was verified: it
    stays. Raises OSError."""
    if not any(action.kind in ("create", "change") for action in actions):
        return
    known = read(node.paths)
    found = dict(known)
    for action in actions:
        one = observed.get(action.name)
        if action.name in known or action.kind not in ("create", "change", "remove"):
            continue
        entries = [desired[action.name].entry if action.name in desired else None, one.entry if one else None]
        paths = [node.paths.entry(action.name), node.paths.deployer(action.name), node.paths.secret(action.name),
                 node.manager.definition_path(action.name), *map(config_path, entries)]  # fmt: skip
        found[action.name] = {
            "files": {path: _file(path) for path in paths if path},
            "starts": action.kind in STARTS,
            "image": _image(one.entry) if one is not None and one.entry else None,
        }
    if found != known:
        _write(node.paths, found)


def forget(paths, names):
    """These servers are verified, or gone. With the last changed one, those that made room for it are forgotten too."""
    known = read(paths)
    left = {name: one for name, one in known.items() if name not in names}
    if left != known:
        _write(paths, left if any(one.get("starts") for one in left.values()) else {})


def put_back(node, stop):
    """Put back all that is kept and start it. ([names that run their old definition again], [names that are removed
    again, since they had none]). stop(names): stops servers. Raises FleetError, OSError."""
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
        for name in back:
            _tag(node, entries[name], known[name].get("image"))
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


def _image(entry):
    """The id of the image that an entry's name means on this node now, None without a container."""
    engine = engine_of_entry(entry)
    if engine is not None:
        with contextlib.suppress(EngineError):
            found = engine.find_image(entry["container"]["image"], entry["container"].get("digest"))
            return found["id"] if found else None
    return None


def _tag(node, entry, image):
    """Have an entry's name mean the image that it meant. What cannot be done is a warning: the old server starts with
    what the name means now."""
    engine = engine_of_entry(entry) if image else None
    if engine is None or entry["container"].get("digest"):
        return
    try:
        if _image(entry) != image:
            engine.call("tag", image, entry["container"]["image"])
    except EngineError as error:
        node.warnings.append(
            "%s: its image %s cannot be given the name %s again (%s)."
            % (entry["name"], image, entry["container"]["image"], error.words)
        )


def _write(paths, found):
    if not found:
        unlink(_path(paths))
        return
    make_folder(os.path.dirname(_path(paths)))
    write_atomic(_path(paths), json.dumps(found), 0o600)


def _path(paths):
    return paths.secrets + "/.previous.json"
