# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wanted from a hub (Desired), what a hub states that it has (Listing), and the names of the hubs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import known

DEFAULT_EXCLUDE = ("original/*", "metal/*")
NAME_MAX = 255  # bytes of a name
SOURCES = {"huggingface": "Hugging Face", "modelscope": "ModelScope"}
DEFAULT_ENDPOINTS = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn"}
DEFAULT_BRANCHES = {"huggingface": "main", "modelscope": "master"}
TOKEN_VARIABLES = {"huggingface": "fleet_hf_token", "modelscope": "fleet_modelscope_token"}  # of an inventory
COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True)
class Desired:
    """Which files of which repository are wanted where.

    revision: commit, tag or branch. destination: real path of the directory that servers load. endpoint: URL of the
    hub. format: mxfp4, bf16 or None for any. draft: whether it is a draft model; `target` then says of which model:
    {repo, revision, destination, include, exclude, format}, or nothing, and `eagle3` whether it must be a head that the
    engine runs. draft_sizes: for a model, what its draft is: {name, hidden_size, vocab_size}, or nothing. sums:
    {path: sha256} that the files must have, by a list of the user's. workers: files at a time. min_rate: bytes a second
    below which a connection is dropped, looked at every min_rate_window_s; 0 for none. retries: attempts without a byte
    of progress before giving up. timeout_s: of one answer or silence.
    """

    source: str
    repo: str
    revision: str
    destination: str
    endpoint: str
    include: tuple = ()
    exclude: tuple = DEFAULT_EXCLUDE
    format: str | None = None
    draft: bool = False
    eagle3: bool = False
    target: dict = field(default_factory=dict)
    draft_sizes: dict = field(default_factory=dict)
    sums: dict = field(default_factory=dict)
    min_rate: int = 0
    min_rate_window_s: int = 60
    workers: int = 8
    retries: int = 5
    timeout_s: int = 30
    verify: str = "quick"
    refresh: bool = False
    check_mode: bool = False

    def identity(self):
        """What makes two requests the same weights; a manifest holds it."""
        return {
            "source": self.source,
            "repo": self.repo,
            "revision": self.revision,
            "include": sorted(self.include),
            "exclude": sorted(self.exclude),
        }

    def is_in(self, manifest):
        """Whether the manifest is of what is wanted: the same revision by name or commit, the same patterns."""
        asked = self.identity()
        if asked["revision"] == manifest.get("commit"):
            asked["revision"] = manifest.get("revision")
        elif COMMIT.match(asked["revision"]):
            return False  # of a hub that did not keep to it
        return all(manifest.get(key) == value for key, value in asked.items())

    @property
    def name(self):
        """The repository and its revision, for messages."""
        return "%s at revision %s" % (self.repo, self.revision)

    @property
    def hub(self):
        """The hub and its address, for messages."""
        return "%s (%s)" % (SOURCES[self.source], self.endpoint)


@dataclass(frozen=True)
class Listing:
    """What a hub says a revision holds. files: {path: {size, sha256 or None, oid (git's sha1) or None}}.

    commit: the revision, resolved. at: what to ask the hub for, to get these files; a file's record may have an `at` of
    its own, the commit that it is from, where the hub tells no other.
    """

    commit: str
    at: str
    files: dict


def default_revision(source, repo):
    """What is fetched where nothing is said: the commit that the collection knows, else the hub's main branch."""
    pinned = known.find(source, repo)
    return pinned.commit if pinned else DEFAULT_BRANCHES[source]
