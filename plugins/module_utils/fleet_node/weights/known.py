# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints whose files are known beforehand, so that a hub, a mirror or a proxy that lists others is detected."""

from __future__ import annotations

import json
import pkgutil
from typing import NamedTuple


class Known(NamedTuple):
    """A commit of a repository. files: {path: (size, sha256)}, all of them except those in the folders `besides`."""

    source: str
    repo: str
    commit: str
    files: dict
    besides: tuple = ()


def _files(found):
    return {name: tuple(pair) for name, pair in found.items()}


# known.json: {checkpoints: [Known], standins: {repository: files}}. The stand-ins are archives of this collection. The
# 65,276,859,410 bytes of gpt-oss-120b have 15 shards, numbered 00000 to 00014 "of-00014"; original/ and metal/ contain
# two more copies of them.
_DATA = json.loads(pkgutil.get_data(__package__, "known.json"))
KNOWN = tuple(Known(**{**one, "files": _files(one["files"])}) for one in _DATA["checkpoints"])
GPT_OSS_120B = KNOWN[0]
STANDINS = {repo: _files(files) for repo, files in _DATA["standins"].items()}
DEFAULT_STANDIN = next(iter(STANDINS))
WEIGHTS = ".safetensors"


def find(source, repo, commit=None):
    """The Known checkpoint of a repository, at `commit` if that is given; None if nothing is known of it."""
    for known in KNOWN:
        if (known.source, known.repo) == (source, repo) and commit in (None, known.commit):
            return known
    return None


def required(repo, revision, records):
    """{path: (size, sha256)} that files {path: {size}} of any origin must have; {} if they are no known checkpoint.

    A checkpoint is recognised by its revision; without one, by a file with weights of a known name and size, so that a
    checkpoint that was cut into other files is not mistaken for the published checkpoint. Then only weights must be as
    published: users change chat templates.
    """
    for known in KNOWN:
        there = {path: one for path, one in known.files.items() if path in records and known.repo == repo}
        if revision == known.commit:
            return there
        weights = {path: one for path, one in there.items() if path.endswith(WEIGHTS)}
        if not revision and any(records[path]["size"] == one[0] for path, one in weights.items()):
            return weights
    return {}


def differences(files, records):
    """{path: what is wrong} of files {path: (size, sha256)} that are among {path: {size, sha256: hex or None}}."""
    wrong = {}
    for path in sorted(set(files) & set(records)):
        size, sha256 = files[path]
        if size is not None and records[path]["size"] != size:
            wrong[path] = "has %d bytes, required are %d" % (records[path]["size"], size)
        elif records[path].get("sha256") not in (None, sha256):
            wrong[path] = "has sha256 %s, required is %s" % (records[path]["sha256"], sha256)
    return wrong


def corrected(known, files):
    """{path: record} with the size and sha256 of the Known (None: nothing is known) instead of the recorded values."""
    pinned = known.files if known else {}
    return {
        path: {**record, "size": pinned[path][0], "sha256": pinned[path][1]} if path in pinned else record
        for path, record in files.items()
    }
