# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which weights are wanted (Wanted), which files a source lists (Listing), and the names of the sources."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from ..errors import FleetError
from ..model import gpt_oss
from . import checkpoints, known

DEFAULT_EXCLUDE = ("original/*", "metal/*")
HUBS = {"huggingface": "Hugging Face", "modelscope": "ModelScope"}
DEFAULT_ENDPOINTS = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn"}
DEFAULT_BRANCHES = {"huggingface": "main", "modelscope": "master"}
TOKEN_VARIABLES = {"huggingface": "fleet_hf_token", "modelscope": "fleet_modelscope_token"}  # of an inventory
COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True)
class Wanted:
    """Which files of which source are wanted where.

    source: a hub, path or standin. repo: None for a draft of unknown origin. revision: commit, tag or branch.
    destination: real path of the directory that servers load. path: the directory to copy from, or the archive.
    endpoint: URL of the hub. format: of model.formats, None for any. family: of the model. draft: whether it is a draft
    model, eagle3: whether it must be a head that the engine runs. draft_sizes: for a model, the sizes of its draft:
    {name, hidden_size, vocab_size}, or nothing. adapter: for a LoRA adapter {base, max_rank}, see checkpoints.
    sums: {path: sha256} that the files must have, by a list of the user's.
    workers: parallel files. min_rate: bytes per second below which a connection is dropped, 0 for none. retries:
    attempts without a byte of progress before giving up. timeout_s: of a response or a silence.
    """

    source: str
    repo: str | None
    revision: str | None
    destination: str
    path: str | None = None
    endpoint: str | None = None
    include: tuple = ()
    exclude: tuple = ()
    format: str | None = None
    family: str = gpt_oss.MODEL_TYPE
    draft: bool = False
    eagle3: bool = False
    draft_sizes: dict = field(default_factory=dict)
    sums: dict = field(default_factory=dict)
    min_rate: int = 0
    workers: int = 8
    retries: int = 5
    timeout_s: int = 30
    adapter: dict = field(default_factory=dict)
    verify: str = "quick"
    refresh: bool = False
    check_mode: bool = False

    @property
    def from_hub(self):
        """Whether the source is a hub."""
        return self.source in HUBS

    @property
    def config(self):
        """The name of the file with the configuration, which is absent while other files are replaced."""
        return checkpoints.ADAPTER_CONFIG if self.adapter else checkpoints.CONFIG

    @property
    def in_place(self):
        """Whether the weights are served from a directory that this collection does not manage. Only the manifest is
        written there."""
        return self.source == "path" and os.path.realpath(self.path) == self.destination

    def identity(self):
        """The fields that identify the weights of a request; a manifest contains them."""
        found = {"source": self.source, "repo": self.repo, "revision": self.revision}
        if self.from_hub:
            found.update(include=sorted(self.include), exclude=sorted(self.exclude))
        return found

    def is_in(self, manifest):
        """Whether the manifest belongs to the wanted weights: the same revision by name or commit, the same
        patterns."""
        asked = self.identity()
        if asked["revision"] is not None and asked["revision"] == manifest.get("commit"):
            asked["revision"] = manifest.get("revision")
        elif self.from_hub and COMMIT.match(asked["revision"]):
            return False  # of a hub that ignored it
        return all(manifest.get(key) == value for key, value in asked.items())

    @property
    def name(self):
        """The repository and its revision, for messages."""
        return "%s at revision %s" % (self.repo, self.revision) if self.revision else self.repo or "the draft model"

    @property
    def origin(self):
        """The source and its address, for messages."""
        return "%s (%s)" % (HUBS[self.source], self.endpoint) if self.from_hub else str(self.path or self.source)


@dataclass(frozen=True)
class Listing:
    """The files of a source. files: {path: {size, sha256 or None, oid (git's sha1) or None}}.

    commit: the revision, resolved. at: the revision in requests for these files; a file's record may have a separate
    `at`, the commit that it is from, if the hub does not state another.
    """

    commit: str | None
    at: str | None
    files: dict


class SourceProblem(Exception):
    """Why a source did not give what was requested.

    kind: repository, revision, entry, access, busy, network, foreign, disk, other (see hub.explained), or data: a file
    that differs from the listing. retry: whether another attempt may help. wait: seconds that the hub asks to wait, or
    None.
    """

    def __init__(self, kind, text, retry=False, wait=None):
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.retry = retry
        self.wait = wait
        self.path = None


def untrusted(wanted, what, details=None):
    """The FleetError for the response of a hub that cannot be used or trusted."""
    return FleetError("hub.response-invalid", wanted.origin, what, details=details)


def default_revision(source, repo):
    """The default revision: the commit that the collection has checksums of, else the hub's main branch."""
    pinned = known.find(source, repo)
    return pinned.commit if pinned else DEFAULT_BRANCHES[source]
