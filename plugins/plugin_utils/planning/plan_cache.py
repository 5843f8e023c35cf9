# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of earlier runs, so that a run whose plan is known does not import the planner.

A plan is kept under the hash of all that it is made of: what was asked for, the collection's code and data, variables
of hosts, files. Which variables and files these are is known after planning only. So there are two kinds of files:

- QUESTION.made_of: for what was asked for and by which code, the names of the variables and the paths of the files that
  such plans were made of, the last ones first.
- HASH.plan: a plan, under the hash of the question and of what these variables and files hold.

The hashes have a key of their own, `key` in the folder: who sees a name cannot try passwords against it, and a file
that was not written here, or was changed, is taken for none. So is whatever is a link, another account's, or readable
for others. Without a folder to write to there is no cache; nothing here is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import stat
import sys

from ansible.release import __version__ as ansible_version
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import (
    fits,
    read_bytes,
    write_atomic,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import canonical
from ansible_collections.inference.fleet.plugins.plugin_utils import seen_files

VARIABLE = "INFERENCE_FLEET_PLAN_CACHE"  # of the environment: another folder; empty: none
COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
FORMAT = 1
KEY, MADE_OF, PLAN = "key", ".made_of", ".plan"
KEY_BYTES = 32
KEPT = 50  # plans, and as many of the others
MOST = 64 << 20  # bytes of all of them, and of one
WAYS = 4  # in which plans for one question were made
# What plans are made by, beside the Python code that the planner imports: its data, the roles and the steps' playbooks.
CODE = ("playbooks/steps", "plugins/action", "plugins/lookup", "plugins/module_utils", "plugins/plugin_utils",
        "recipes", "roles")  # fmt: skip
NO_CODE = ("README.md", "files", "__pycache__")  # of roles the first two: steps are planned without them
WAY = {"variables": [{"names": [str], "hosts": [str]}], "files": [[str]]}
ANSWER = {
    "plan": {
        "hosts": {"*": {"deploys": bool, "of": int, "workers": (int, None),
                        "plan": {"servers": [dict], "deployment": (dict, None), "capacity": [dict], "steps": [dict]}}},
        "of": [[str]], "names": {"*": [str]}, "workers": [[dict]],
    },
    "warnings": [str], "report": ([dict], None),
}  # fmt: skip


def folder():
    """Where plans are kept, None where they are not."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return os.path.abspath(os.path.expanduser(given)) if given else None
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    return os.path.join(base, "inference-fleet", "plans")


class PlanCache:
    """The kept plans for one question."""

    def __init__(self, question):
        """question: what was asked for, as JSON."""
        self._folder, self._key, self._name = folder(), None, None
        if self._folder is None:
            return
        try:
            self._key = _key(self._folder)
            base = [FORMAT, sys.version, ansible_version, code(), os.getcwd(), os.path.expanduser("~"), question]
            self._name = self._digest(canonical(base))
        except (OSError, TypeError, ValueError):  # no folder, no right to write there, or a question that is no JSON
            self._key = None

    def recall(self, others):
        """The answer that keep() was given, None where there is none that is right. others: Hosts."""
        for way in self._ways():
            name = self._answer_of(way, others)
            answer = self._load(name + PLAN, ANSWER) if name else None
            if answer is not None and set(answer) == set(ANSWER):
                with contextlib.suppress(OSError):
                    os.utime(os.path.join(self._folder, name + PLAN))  # what is used stays
                return answer
        return None

    def keep(self, others, answer):
        """Keep an answer, as JSON. others: Hosts that it was made from."""
        if self._key is None:
            return
        variables = {}
        for one in others.asked():
            variables.setdefault(frozenset(one.read | one.looked), []).append(one.host)
        seen = seen_files.seen()
        way = {
            "variables": [{"names": sorted(names), "hosts": of} for names, of in variables.items()],
            "files": sorted(map(list, seen)),
        }
        name = self._answer_of(way, others, seen)
        ways = [way, *(one for one in self._ways() if one != way)][:WAYS]
        with contextlib.suppress(OSError, TypeError, ValueError):
            self._store(name + PLAN, answer)
            self._store(self._name + MADE_OF, ways)
            self._prune()

    def _ways(self):
        if self._key is None:
            return []
        found = self._load(self._name + MADE_OF, [WAY])
        return [one for one in found or () if set(one) == set(WAY)]

    def _answer_of(self, way, others, seen=None):
        """The name of the answer that was made this way of what variables and files hold now; None where it is no way.

        seen: what files held when they were read.
        """
        try:
            values = [
                [host, others(host).fingerprint(one["names"], self._digest)]
                for one in way["variables"]
                for host in one["hosts"]
            ]
            files = [
                [kind, path, seen[kind, path] if seen else seen_files.now(kind, path)] for kind, path in way["files"]
            ]
        except (KeyError, ValueError, AttributeError):  # a host that is none any more
            return None
        return self._digest(canonical([self._name, values, files]))

    def _digest(self, data):
        return hmac.new(self._key, data, "sha256").hexdigest()

    def _load(self, name, shape):
        """The value of one of our files, None where there is none of ours that is whole."""
        data = _read(os.path.join(self._folder, name))
        if data is None:
            return None
        seal, _line, body = data.partition(b"\n")
        if not hmac.compare_digest(seal, self._seal(name, body)):
            return None
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return value if fits(value, shape) else None

    def _store(self, name, value):
        body = json.dumps(value).encode()
        if len(body) < MOST:
            write_atomic(os.path.join(self._folder, name), self._seal(name, body) + b"\n" + body, 0o600)

    def _seal(self, name, body):
        return self._digest(name.encode() + b"\n" + body).encode()

    def _prune(self):
        """Leave the newest files, in number and size, and remove what a run that was killed left behind."""
        found = []
        with os.scandir(self._folder) as entries:
            for one in entries:
                if one.name.endswith((MADE_OF, PLAN)) or one.name.startswith("."):
                    status = one.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, one.path))
        total = 0
        for number, (_time, size, path) in enumerate(sorted(found, reverse=True)):
            total += size
            if number >= 2 * KEPT or total > MOST:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def code():
    """A digest of the collection's files that have a say in a plan."""
    digest = hashlib.sha256()
    for path in _code_files():
        with open(os.path.join(COLLECTION, path), "rb") as stream:
            digest.update(b"%s\0%s" % (os.fsencode(path), hashlib.sha256(stream.read()).digest()))
    return digest.hexdigest()


def _code_files():
    for top in CODE:
        for at, names, files in os.walk(os.path.join(COLLECTION, top)):
            names[:] = sorted(name for name in names if name not in NO_CODE)
            for name in sorted(files):
                if not name.endswith(".pyc") and name not in NO_CODE:
                    yield os.path.relpath(os.path.join(at, name), COLLECTION)


def _key(path):
    """The key of a folder, which is made where it is missing. Raises OSError where it is not ours alone."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or not _ours(status, stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(path)
    file = os.path.join(path, KEY)
    key = _read(file)
    if key is None or len(key) != KEY_BYTES:
        write_atomic(file, os.urandom(KEY_BYTES), 0o600)
        key = _read(file)  # another run may have been faster
    if key is None or len(key) != KEY_BYTES:
        raise PermissionError(file)
    return key


def _read(path):
    """The bytes of a file that is ours alone; None for any other."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST or not _ours(status, stat.S_IRWXG | stat.S_IRWXO):
            return None
        return read_bytes(path, MOST, follow=False)
    except OSError:
        return None


def _ours(status, others):
    """Whether a file or folder is of this account, and others have none of these rights."""
    return status.st_uid == os.geteuid() and not status.st_mode & others
