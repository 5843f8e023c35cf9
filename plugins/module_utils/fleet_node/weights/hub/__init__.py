# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from a model hub: what is wanted (Desired), what a hub says it has (Listing), and why it failed (HubProblem).

A module of this package named after a source is its client: `Client(wanted, token)` for one repository, with

listing()
    The Listing of the wanted revision.
fetch(listing, path, folder, digest)
    Bring one file to `folder`/`path`, over part_of() of that, continuing where that ends, and written through the
    Digest. What is there afterwards need not be right: the caller looks at size and checksum.
head(listing, path, count)
    The start of a file.

All raise HubProblem. A client imports the library of its hub when it is made; only the toolkit has it.
`private` lists what is used of the libraries that they do not promise.
`plain` is what clients have in common: it lists hubs without their libraries, reads small files and starts of others.
`worker` is what runs there, as a job of its own that outlives the connection; `jobs` starts it and looks at it.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field

from ...errors import FleetError
from . import known

DEFAULT_EXCLUDE = ("original/*", "metal/*")
INCOMPLETE = ".incomplete"
PARTIAL = ".partial"
ODD = ".inference-fleet-odd"  # in PARTIAL: files that get a folder of their own
NAME_MAX = 255  # bytes of a name
LISTING = ".listing.json"
SOURCES = {"huggingface": "Hugging Face", "modelscope": "ModelScope"}
DEFAULT_ENDPOINTS = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn"}
DEFAULT_BRANCHES = {"huggingface": "main", "modelscope": "master"}
TOKEN_VARIABLES = {"huggingface": "fleet_hf_token", "modelscope": "fleet_modelscope_token"}  # of an inventory
TOKENS = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}  # variables of a worker's environment
RATE_LIMIT = re.compile(r"\br\s*=\s*(\d+)\s*;\s*t\s*=\s*(\d+)")  # what is left, and for how many seconds
COMMIT = re.compile(r"^[0-9a-f]{40}$")
# Pinned: what the worker uses of them was read in these versions.
PACKAGES = {
    "huggingface": ("huggingface_hub==2.4.0",),
    "modelscope": ("modelscope==1.40.2", "modelscope-hub==0.5.1"),
}


def part_of(path):
    """Where a client lets the file `path` grow: beside it, under a name that no file system is too short for."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name + INCOMPLETE)) > NAME_MAX:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, name + INCOMPLETE)


def partial_folder(staging, path):
    """The folder that a client brings the file `path` to, below a staging folder. What is named as if it were another
    file that still grows has one of its own."""
    partial = os.path.join(staging, PARTIAL)
    if not path.endswith(INCOMPLETE):
        return partial
    return os.path.join(partial, ODD, hashlib.sha256(os.fsencode(path)).hexdigest()[:16])


def wait_of(headers):
    """Seconds that a hub asks to wait, by Retry-After or Hugging Face's RateLimit; None where it says nothing."""
    after = (headers.get("Retry-After") or "").strip()
    if after.isdigit():
        return int(after)
    limits = RATE_LIMIT.findall(headers.get("RateLimit") or "")
    return max((int(seconds) for left, seconds in limits if int(left) == 0), default=None)


class HubProblem(Exception):
    """Why a hub did not give what was asked for.

    kind: repository, revision, entry, access (401, 403), busy (429, 5xx), network, data (a file that is not what is
    listed), foreign (no hub's answer), disk, client (the library is not there) or other. retry: whether trying again
    may help. wait: seconds that the hub asked to wait, or None. forbidden: whether it was a 403, which a CDN says of a
    signature that has run out too.
    """

    def __init__(self, kind, text, retry=False, wait=None, forbidden=False):
        super().__init__(text)
        self.forbidden = forbidden
        self.kind = kind
        self.text = text
        self.retry = retry
        self.wait = wait


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


def explained(problem, wanted):
    """The FleetError for what a hub did."""
    path = getattr(problem, "path", None)
    what = "%s of %s" % (path, wanted.name) if path else wanted.name
    attempts = "%d attempt%s" % (wanted.retries + 1, "s" if wanted.retries else "")
    texts = {
        "client": "The toolkit's Python environment has no client for %s (%s). Run the role toolkit with this recipe."
        % (wanted.hub, problem.text),
        "repository": "%s does not know the repository %s (%s), or hides it. Check repo; if it is private, give a "
        "token that may read it." % (wanted.hub, wanted.repo, problem.text),
        "revision": "%s has no revision %s of %s (%s). Check revision: a commit, a tag or a branch."
        % (wanted.hub, wanted.revision, wanted.repo, problem.text),
        "entry": "%s does not have %s (%s). Check repo and revision." % (wanted.hub, what, problem.text),
        "access": "%s does not give %s without a token that may read it (%s). Accept the conditions of the repository "
        "on its page, and give such a token." % (wanted.hub, wanted.name, problem.text),
        "busy": "%s is overloaded or out of order: %s for %s, %s. What was downloaded is kept; run again later."
        % (wanted.hub, problem.text, what, attempts),
        "network": "%s cannot be reached, or breaks off: %s for %s, %s. What was downloaded is kept; check endpoint, "
        "proxies and certificates, and run again." % (wanted.hub, problem.text, what, attempts),
        "foreign": "%s answers for %s with something that is no listing (%s). A proxy or a portal may stand in the "
        "way; check endpoint and proxies." % (wanted.hub, wanted.name, problem.text),
        "disk": "Cannot write %s below %s: %s." % (what, os.path.dirname(wanted.destination), problem.text),
    }
    text = texts.get(problem.kind, "%s does not give %s: %s." % (wanted.hub, what, problem.text))
    return FleetError("hub." + problem.kind, text, details={"problem": problem.kind})
