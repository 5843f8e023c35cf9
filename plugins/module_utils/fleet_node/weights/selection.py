# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a listing are wanted, whether the listing can be trusted, and what the files must contain."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import tempfile

from ..errors import FleetError
from . import checkpoints, draft_heads, known
from .manifest import OURS, faults_text, is_inside, some
from .wanted import COMMIT, DEFAULT_EXCLUDE, Listing, untrusted

SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")  # a line of sha256sum


def matches(path, pattern):
    """Whether a pattern of the hubs' kind names `path`: `*` and `?` match every character, also slashes; a pattern that
    ends with a slash matches everything below."""
    return fnmatch.fnmatchcase(path, pattern + "*" if pattern.endswith("/") else pattern)


def is_selected(wanted, path):
    """Whether the patterns select this file. Names that this collection uses itself are not selected."""
    included = not wanted.include or any(matches(path, pattern) for pattern in wanted.include)
    return included and not any(matches(path, one) for one in wanted.exclude) and path.split("/")[0] not in OURS


def select(wanted, files):
    """{path: record} of the selected `files`. Raises FleetError if a pattern matches nothing, or nothing is left."""
    for pattern in (*wanted.include, *wanted.exclude):
        if pattern not in DEFAULT_EXCLUDE and not any(matches(path, pattern) for path in files):
            raise _patterns(wanted, files, "the pattern '%s' matches no file" % pattern)
    kept = {path: record for path, record in files.items() if is_selected(wanted, path)}
    if not kept:
        raise _patterns(wanted, files, "they leave no file")
    return kept


def _patterns(wanted, files, what):
    return FleetError("hub.patterns-invalid", wanted.name, what, some(files))


def choose(wanted, listing):
    """(the Listing with the known checksums, {path: record} of the wanted files). Raises FleetError."""
    check_listing(wanted, listing)
    files = check_known(wanted, listing) if wanted.from_hub else listing.files
    kept = check_required(wanted, select(wanted, files))
    check_complete(wanted, kept, files)
    bare = [path for path, record in kept.items() if not (record["sha256"] or record["oid"])] if wanted.from_hub else []
    if bare:
        raise untrusted(wanted, "it lists no checksum of %s" % some(bare))
    return Listing(listing.commit, listing.at, files), kept


def agree(old, record):
    """Whether a recorded file is the listed file, by the first property that both have."""
    if old["size"] != record["size"]:
        return False
    for key in ("sha256", "oid", "origin_mtime_ns"):
        if record.get(key) is not None and old.get(key) is not None:
            return record[key] == old[key]
    return False


def check_listing(wanted, listing):
    """Raises FleetError for a listing of another commit, without files or sizes, or with paths outside the folder."""
    if wanted.from_hub and COMMIT.match(wanted.revision) and listing.commit != wanted.revision:
        raise untrusted(wanted, "it lists commit %s for %s" % (listing.commit, wanted.name))
    if not listing.files:
        raise untrusted(wanted, "it lists no file for %s" % wanted.name)
    for path, record in listing.files.items():
        if not is_inside(path):
            raise untrusted(wanted, "it lists %s, which is not a usable path" % json.dumps(path))
        if not isinstance(record["size"], int) or record["size"] < 0:
            raise untrusted(wanted, "it lists no size for %s" % path)


def check_required(wanted, target):
    """Raises FleetError if files {path: {size, sha256}} differ from the published files or from the user's list.
    Returns them with the required checksums."""
    required = {path: (None, sha256) for path, sha256 in wanted.sums.items()}
    wrong = known.differences(required, target)
    wrong.update({path: "is missing" for path in wanted.sums if path not in target and is_selected(wanted, path)})
    if not wanted.from_hub and wanted.source != "standin":
        published = known.required(wanted.repo, wanted.revision, target)
        wrong.update(known.differences(published, target))
        required.update(published)
    if wrong:
        details = {"rotted": sorted(wrong)}
        raise FleetError("weights.checksum-differs", wanted.name, wanted.origin, faults_text(wrong), details=details)
    return {path: {**one, "sha256": required.get(path, (0, one["sha256"]))[1]} for path, one in target.items()}


def check_known(wanted, listing):
    """Raises FleetError if the listing of a known commit has other files. Returns {path: record} with known checksums.

    Files in folders that the checkpoint does not need are not compared.
    """
    files = {path: dict(record) for path, record in listing.files.items()}
    expected = known.find(wanted.source, wanted.repo, listing.commit)
    if expected is None:
        return files
    ignored = {path for path in files if path.split("/")[0] in expected.besides and "/" in path}
    wrong = known.differences(expected.files, files)
    wrong.update(dict.fromkeys(set(expected.files) - set(files), "is missing"))
    wrong.update(dict.fromkeys(set(files) - ignored - set(expected.files), "is not part of it"))
    if wrong:
        what = "the files of commit %s are known, and it lists others: %s"
        raise untrusted(wanted, what % (listing.commit, faults_text(wrong)))
    return known.corrected(expected, files)


def check_complete(wanted, kept, files, index=None):
    """Raises FleetError unless the selected files are a complete checkpoint, as far as names show.

    kept, files: {path: record} of the selected and of all files. index: the content of the index, if that is known.
    """
    if index is not None:
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise untrusted(wanted, "%s of %s has no weight_map" % (checkpoints.INDEX, wanted.name))
        needed = sorted({shard for shard in weight_map.values() if isinstance(shard, str)})
    elif wanted.adapter:
        weights = [name for name in checkpoints.ADAPTER_WEIGHTS if name in kept]
        needed = [wanted.config, *(weights or checkpoints.ADAPTER_WEIGHTS)[:1]]
    else:
        needed = [checkpoints.CONFIG] if wanted.draft else [checkpoints.CONFIG, checkpoints.TOKENIZER]
        if checkpoints.INDEX in files and not (wanted.draft and checkpoints.SINGLE in kept):
            needed.append(checkpoints.INDEX)
        elif not wanted.draft or checkpoints.SINGLE in files:
            needed.append(checkpoints.SINGLE)
    absent = [path for path in needed if path not in kept]
    unlisted = [path for path in absent if path not in files]
    if unlisted and wanted.from_hub:
        raise untrusted(wanted, "%s is incomplete, it lists no %s" % (wanted.name, some(unlisted)))
    if unlisted:
        raise checkpoints.incomplete(wanted.path, unlisted)
    if absent:
        raise _patterns(wanted, files, "they leave out %s, which is required" % some(absent))


def describe(wanted, folder, complete=True):
    """What the checkpoint in `folder` is, as checkpoints.inspect returns it. Raises FleetError unless it is of the
    wanted kind and complete (not complete: only config.json is read)."""
    if wanted.draft:
        found = checkpoints.inspect_draft(folder, complete)
        if wanted.eagle3:
            draft_heads.check(folder, complete)
        return found
    if wanted.adapter:
        return checkpoints.inspect_adapter(folder, wanted.adapter, complete)
    found = checkpoints.inspect(folder, wanted.family, complete=False)
    checkpoints.check_format(folder, found["format"], wanted.format)
    if wanted.draft_sizes:
        checkpoints.check_draft_sizes(wanted.draft_sizes["name"], wanted.draft_sizes, wanted.repo, found)
    return checkpoints.inspect(folder, wanted.family) if complete else found


@contextlib.contextmanager
def view(wanted, names, places):
    """A temporary folder of links to the files `names` of the destination, or to those of `places` {name: path}. Errors
    contain the name of the weights instead of the folder."""
    with tempfile.TemporaryDirectory(prefix="inference-fleet-") as folder:
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            os.symlink(places.get(name) or os.path.join(wanted.destination, name), os.path.join(folder, name))
        try:
            yield folder
        except FleetError as error:
            raise error.rewritten(lambda text: text.replace(folder + "/", "").replace(folder, wanted.name)) from error


def parse_sums(text, where):
    """{path: sha256} of a list. where: its place, for messages. Raises FleetError."""
    found = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = SUM.fullmatch(line)
        if not match or not is_inside(match[2]):
            raise _sums_invalid(where, "line %d is not 64 hexadecimal digits, two blanks and a relative path" % number)
        if found.setdefault(match[2], match[1].lower()) != match[1].lower():
            raise _sums_invalid(where, "line %d has another checksum of %s than a line before" % (number, match[2]))
    if not found:
        raise _sums_invalid(where, "it names no file")
    return found


def read_sums(path):
    """{path: sha256} of the list in a file. Raises FleetError."""
    try:
        with open(path, encoding="utf-8") as stream:
            return parse_sums(stream.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise _sums_invalid(path, "it can be read neither on the control node nor on this node: %s" % why) from error


def _sums_invalid(where, what):
    return FleetError("weights.sha256sums-invalid", where, what)
