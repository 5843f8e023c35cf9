# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a listing are wanted, and whether a listing can be believed. Pure."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os

from ..errors import FleetError
from . import checkpoints, draft_heads, known
from .manifest import OURS, is_inside
from .wanted import COMMIT, DEFAULT_EXCLUDE, NAME_MAX, Listing

SHOWN = 5  # names in a message


def matches(path, pattern):
    """Whether a pattern of the hubs' kind names `path`: `*` and `?` match every character, the slash too; a pattern
    that ends with a slash stands for all below."""
    return fnmatch.fnmatchcase(path, pattern + "*" if pattern.endswith("/") else pattern)


def ours(path):
    """Whether a file has a name that this collection uses itself; a repository's file of that name is left out."""
    return path.split("/")[0] in OURS


def select(wanted, files):
    """{path: record} of those `files` that the patterns leave. Raises FleetError where a pattern names nothing."""
    for option in ("include", "exclude"):
        for pattern in getattr(wanted, option):
            if option == "exclude" and pattern in DEFAULT_EXCLUDE:
                continue
            if not any(matches(path, pattern) for path in files):
                raise FleetError(
                    "hub.patterns-invalid",
                    "%s has the pattern '%s', which matches no file of %s. It holds: %s. Change it.",
                    (option, pattern, wanted.name, some(files)),
                )
    kept = {
        path: record
        for path, record in files.items()
        if (not wanted.include or any(matches(path, pattern) for pattern in wanted.include))
        and not any(matches(path, pattern) for pattern in wanted.exclude)
        and not ours(path)
    }
    if not kept:
        raise FleetError(
            "hub.patterns-invalid",
            "include and exclude leave no file of %s. It holds: %s. Change the patterns.",
            (wanted.name, some(files)),
        )
    return kept


def choose(wanted, listing):
    """(the Listing with the checksums that are known, {path: record} of the wanted files). Raises FleetError."""
    check_commit(wanted, listing)
    check_paths(wanted, listing.files)
    every = check_known(wanted, listing)
    kept = check_sums(wanted, select(wanted, every))
    check_names(wanted, kept)
    check_complete(wanted, kept, every)
    check_checksums(wanted, kept)
    return Listing(listing.commit, listing.at, every), kept


def agree(old, record):
    """Whether a recorded file is the listed one, by what both know."""
    if old["size"] != record["size"]:
        return False
    for key in ("sha256", "oid"):
        if record[key] is not None and old.get(key) is not None:
            return record[key] == old[key]
    return False


def check_commit(wanted, listing):
    """Raise FleetError where a commit is wanted and the listing is of another one."""
    if COMMIT.match(wanted.revision) and listing.commit != wanted.revision:
        raise FleetError(
            "hub.listing-invalid",
            "%s lists commit %s for %s, which is a commit itself. The hub, a mirror or a proxy does not keep to the "
            "revision that it is asked for; choose another endpoint, or another revision.",
            (wanted.hub, listing.commit, wanted.name),
        )


def check_paths(wanted, files):
    """Raise FleetError where a listing names a file that would lie outside the destination, or none at all."""
    if not files:
        raise FleetError(
            "hub.listing-invalid", "%s lists no file for %s. Check the endpoint.", (wanted.hub, wanted.name)
        )
    for path, record in files.items():
        if not is_inside(path):
            raise FleetError(
                "hub.listing-invalid",
                "%s lists a file %s for %s; that is not a path. Check the endpoint.",
                (wanted.hub, json.dumps(path), wanted.name),
            )
        if not isinstance(record["size"], int) or record["size"] < 0:
            raise FleetError(
                "hub.listing-invalid",
                "%s lists no size for %s of %s. Check the endpoint.",
                (wanted.hub, path, wanted.name),
            )


def check_names(wanted, kept):
    """Raise FleetError where a selected file has a name that no file system, or not every one, could keep apart from
    the others."""
    folders = {"/".join(path.split("/")[:depth]) for path in kept for depth in range(1, path.count("/") + 1)}
    for path in sorted(kept):
        what = None
        if any(ord(one) < 32 or ord(one) == 127 or one == "\\" for one in path):
            what = "a backslash or a control character in its name"
        elif any(len(os.fsencode(part)) > NAME_MAX for part in path.split("/")):
            what = "a name of more than %d bytes" % NAME_MAX
        elif path in folders:
            what = "the name of a folder"
        if what:
            raise FleetError(
                "hub.listing-invalid",
                "%s lists a file %s for %s, which has %s. Leave it out by exclude, if servers do not need it.",
                (wanted.hub, json.dumps(path), wanted.name, what),
            )


def check_sums(wanted, target):
    """Raise FleetError where wanted files {path: record} have other checksums than the user's list says; returns them
    with what it says."""
    wrong = [
        "%s has sha256 %s, the list says %s" % (path, target[path]["sha256"], wanted.sums[path])
        for path in sorted(set(target) & set(wanted.sums))
        if target[path]["sha256"] not in (None, wanted.sums[path])
    ]
    if wrong:
        raise FleetError(
            "sha256sums.differs",
            "%s is not what the list of sha256sums says: %s. Check the list (in a play: model_weights_sha256sums), the "
            "revision and the endpoint.",
            (wanted.name, "; ".join(wrong[:SHOWN]) + _more(wrong)),
        )
    return {path: {**record, "sha256": wanted.sums.get(path, record["sha256"])} for path, record in target.items()}


def check_known(wanted, listing):
    """Raise FleetError where a commit whose files are known lists others; returns {path: record} with known checksums.

    The files in folders that the checkpoint does not need are not compared.
    """
    files = {path: dict(record) for path, record in listing.files.items()}
    expected = known.find(wanted.source, wanted.repo, listing.commit)
    if expected is None:
        return files
    beside = {path for path in files if path.split("/")[0] in expected.besides and "/" in path}
    faults = known.differences(expected, files)
    faults.update(dict.fromkeys(set(expected.files) - set(files), "is missing"))
    faults.update(dict.fromkeys(set(files) - beside - set(expected.files), "is not part of it"))
    wrong = ["%s %s" % item for item in sorted(faults.items())]
    for path in set(expected.files) & set(files):
        files[path]["sha256"] = expected.files[path][1]
    if wrong:
        raise FleetError(
            "hub.listing-invalid",
            "%s does not list the files that %s commit %s is known to have: %s. The hub, a mirror or a proxy is not "
            "to be trusted; choose another endpoint.",
            (wanted.hub, wanted.repo, listing.commit, "; ".join(wrong[:SHOWN]) + _more(wrong)),
        )
    return files


def check_checksums(wanted, kept):
    """Raise FleetError where nothing is known of a selected file that what comes could be compared with."""
    bare = [path for path, record in kept.items() if not (record["sha256"] or record["oid"])]
    if bare:
        raise FleetError(
            "hub.listing-invalid",
            "%s lists no checksum of %s of %s, so that nobody could tell whether the right bytes come. Choose another "
            "endpoint, or leave out by exclude what servers do not need.",
            (wanted.hub, some(bare), wanted.name),
        )


def check_complete(wanted, kept, files):
    """Raise FleetError unless what the patterns leave is a complete checkpoint, as far as names can tell.

    kept, files: {path: record} of the selected and of all. The shards are checked by their index: `check_index`.
    """
    needed = [checkpoints.CONFIG] if wanted.draft else [checkpoints.CONFIG, checkpoints.TOKENIZER]
    if checkpoints.INDEX in files and not (wanted.draft and checkpoints.SINGLE in kept):
        needed.append(checkpoints.INDEX)
    elif not wanted.draft or checkpoints.SINGLE in files:
        needed.append(checkpoints.SINGLE)
    _refuse(wanted, [path for path in needed if path not in kept], files, "no server can do without")


def check_index(wanted, kept, files, index):
    """Raise FleetError where a shard that the index (parsed) names is not among the selected files."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise FleetError(
            "hub.listing-invalid",
            "%s of %s has no weight_map. Check repo and revision.",
            (checkpoints.INDEX, wanted.name),
        )
    shards = sorted({shard for shard in weight_map.values() if isinstance(shard, str)})
    _refuse(wanted, [shard for shard in shards if shard not in kept], files, "its index names")


def _refuse(wanted, absent, files, why):
    unlisted = [path for path in absent if path not in files]
    if unlisted:
        raise FleetError(
            "hub.listing-invalid",
            "%s does not list %s for %s, and %s %s. The checkpoint is incomplete; check repo and revision.",
            (wanted.hub, some(unlisted), wanted.name, why, "it" if len(unlisted) == 1 else "them"),
        )
    if absent:
        raise FleetError(
            "hub.patterns-invalid",
            "include and exclude leave out %s of %s, and %s %s. Change the patterns.",
            (some(absent), wanted.name, why, "it" if len(absent) == 1 else "them"),
        )


def some(names):
    """A few of these names, for a message."""
    names = sorted(names)
    return ", ".join(names[:SHOWN]) + _more(names)


def _more(items):
    return " and %d more" % (len(items) - SHOWN) if len(items) > SHOWN else ""


def describe(wanted, folder, complete=True, target=None):
    """What the checkpoint in `folder` is, as checkpoints.inspect says. FleetError unless it is of the wanted kind, and
    complete (not complete: config.json is all that is looked at). target: sizes of the model that a draft is for."""
    if wanted.draft:
        sizes = checkpoints.inspect_draft(folder) if complete else checkpoints.describe_draft(folder)
        if target:
            checkpoints.check_draft_sizes(wanted.repo, sizes, target["name"], target)
        if complete and wanted.eagle3:
            draft_heads.check(folder, {})
        return sizes
    found = checkpoints.describe(folder)
    checkpoints.check_format(folder, found["format"], wanted.format)
    if wanted.draft_sizes:
        checkpoints.check_draft_sizes(wanted.draft_sizes["name"], wanted.draft_sizes, wanted.repo, found)
    return checkpoints.inspect(folder) if complete else found


def summary(verb, wanted, count, size):
    """What was done, or would be, with `count` files of which `size` bytes were to come."""
    files_word = "file" if count == 1 else "files"
    text = "%s %s in %s: %d %s, %d bytes" % (verb, wanted.name, wanted.destination, count, files_word, size)
    return text + " to fetch" if wanted.check_mode else text


@contextlib.contextmanager
def naming(folder, name):
    """Errors say the repository for the temporary folder that is looked at."""
    try:
        yield
    except FleetError as error:
        raise error.rewritten(lambda text: text.replace(folder + "/", "").replace(folder, name)) from error
