# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of earlier runs, so that a run with a known plan does not import the planner.

A file for each question (arguments, code, folder) contains the last plan, the names of the variables and the paths of
the files that it was made from, and a digest of their values. The plan is used again while the digest is the same.
Files and the folder must belong to this account alone. Without a folder to write to there is no cache; nothing here is
an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys

from ansible.release import __version__ as ansible_version

from ...module_utils.fleet_node.host.files import write_atomic
from ...module_utils.fleet_node.host.server_spec import canonical
from .. import cache_folder, seen_files

VARIABLE = "INFERENCE_FLEET_PLAN_CACHE"  # environment variable: another folder; empty: no cache
COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
KEPT = 50  # plans
MOST = 64 << 20  # bytes of all plans, and of one plan
# Files that determine plans, in addition to the Python code that the planner imports: its data, the roles and the
# steps' playbooks.
CODE = ("playbooks/steps", "plugins/action", "plugins/lookup", "plugins/module_utils", "plugins/plugin_utils",
        "recipes", "roles")  # fmt: skip
NO_CODE = ("README.md", "files", "__pycache__")  # of roles the first two: steps are planned without them


def folder():
    """Return the folder of the plans, None if there is none."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return cache_folder.folder("plans")
    return os.path.abspath(os.path.expanduser(given)) if given else None


class PlanCache:
    """The kept plan for a question."""

    def __init__(self, question):
        """question: the arguments of the plan, as JSON."""
        self._path, where = None, folder()
        if where:
            with contextlib.suppress(OSError, TypeError, ValueError):  # no permission, or a question that is not JSON
                cache_folder.prepare(where)
                base = [sys.version, ansible_version, code(), os.getcwd(), os.path.expanduser("~"), question]
                self._path = os.path.join(where, hashlib.sha256(canonical(base)).hexdigest() + ".json")

    def recall(self, others):
        """Return the kept answer, None if there is none or something has changed. others: Hosts."""
        data = cache_folder.read(self._path, MOST) if self._path else None
        # a host that was removed, or a damaged file
        with contextlib.suppress(OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
            kept = json.loads(data or b"null")
            if kept is not None and kept["digest"] == _digest(kept, others, seen_files.now):
                os.utime(self._path)  # plans in use are not removed
                return kept["answer"]
        return None

    def keep(self, others, answer):
        """Keep an answer, as JSON. others: Hosts that it was made from."""
        if self._path is None:
            return
        variables = {}
        for one in others.asked():
            variables.setdefault(frozenset(one.read | one.looked), []).append(one.host)
        seen = seen_files.seen()
        kept = {
            "variables": [{"names": sorted(names), "hosts": hosts} for names, hosts in variables.items()],
            "files": sorted(map(list, seen)),
            "answer": answer,
        }
        with contextlib.suppress(OSError, KeyError, ValueError, TypeError, AttributeError):
            kept["digest"] = _digest(kept, others, lambda kind, path: seen[kind, path])
            body = json.dumps(kept)
            if len(body) < MOST:
                write_atomic(self._path, body, 0o600)
                cache_folder.prune(os.path.dirname(self._path), KEPT, MOST)


def _digest(kept, others, content):
    """Return a digest of the variables and files that a plan was made from. content(kind, path) -> of a file."""
    values = [[host, others(host).fingerprint(one["names"])] for one in kept["variables"] for host in one["hosts"]]
    files = [[kind, path, content(kind, path)] for kind, path in kept["files"]]
    return hashlib.sha256(canonical([values, files])).hexdigest()


def code():
    """Return a digest of the collection's files that determine plans."""
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
