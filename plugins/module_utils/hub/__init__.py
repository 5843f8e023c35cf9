# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from a model hub: what is wanted (Wanted), what a hub says it has (Listing), and why it failed (HubProblem).

A module of this package named after a source is its client: `Client(wanted, token)` for one repository, with

listing()
    The Listing of the wanted revision.
fetch(listing, path, folder)
    Bring one file to `folder`/`path`, over `folder`/`path`.incomplete, going on where that ends; returns whether the
    file only ever grew. What is there afterwards need not be right: the caller looks at size and checksum.

Both raise HubProblem. A client imports the library of its hub when it is made; only the toolkit has it.
`plain` lists every hub without its library, and reads small files and the starts of others.
`worker` is what runs there, as a job of its own that outlives the connection; `jobs` starts it and looks at it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field

from ansible_collections.inference.fleet.plugins.module_utils.hub import known

DEFAULT_EXCLUDE = ("original/*", "metal/*")
INCOMPLETE = ".incomplete"
PARTIAL = ".partial"
LISTING = ".listing.json"
SOURCES = {"huggingface": "Hugging Face", "modelscope": "ModelScope"}
DEFAULT_ENDPOINTS = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn"}
DEFAULT_BRANCHES = {"huggingface": "main", "modelscope": "master"}
TOKENS = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}  # variables of a worker's environment
COMMIT = re.compile(r"^[0-9a-f]{40}$")
# Pinned: what the worker uses of them was read in these versions.
PACKAGES = {
    "huggingface": ("huggingface_hub==2.4.0",),
    "modelscope": ("modelscope==1.40.2", "modelscope-hub==0.5.1"),
}


class HubProblem(Exception):
    """Why a hub did not give what was asked for.

    kind: repository, revision, entry, access (401, 403), busy (429, 5xx), network, data (a file that is not what is
    listed), foreign (no hub's answer), disk, client (the library is not there) or other. retry: whether trying again
    may help. wait: seconds that the hub asked to wait, or None.
    """

    def __init__(self, kind, text, retry=False, wait=None):
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.retry = retry
        self.wait = wait


@dataclass(frozen=True)
class Wanted:
    """Which files of which repository are wanted where.

    revision: commit, tag or branch. destination: real path of the directory that servers load. endpoint: URL of the
    hub. format: mxfp4, bf16 or None for any. draft: whether it is a draft model; `target` then says of which model:
    {repo, revision, destination, include, exclude, format}, or nothing, and `eagle3` whether it must be a head that NxD
    Inference runs. draft_sizes: for a model, what its draft is: {name, hidden_size, vocab_size}, or nothing. workers:
    files at a time. retries: attempts without a byte of progress before giving up. timeout_s: of one answer or silence.
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
    workers: int = 8
    retries: int = 5
    timeout_s: int = 30
    verify: str = "quick"
    refresh: bool = False
    check_mode: bool = False

    @property
    def name(self):
        """The repository and its revision, for messages."""
        return "%s at revision %s" % (self.repo, self.revision)

    @property
    def hub(self):
        """The hub and its address, for messages."""
        return "%s (%s)" % (SOURCES[self.source], self.endpoint)

    def plain(self):
        """As JSON."""
        return {**asdict(self), "include": list(self.include), "exclude": list(self.exclude)}

    @classmethod
    def from_plain(cls, value):
        """From JSON."""
        return cls(**{**value, "include": tuple(value["include"]), "exclude": tuple(value["exclude"])})


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
