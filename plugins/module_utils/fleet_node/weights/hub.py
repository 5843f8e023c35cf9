# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A repository of Hugging Face or ModelScope, or of a mirror: its listing and the bytes of its files.

It uses the public HTTP interfaces of both hubs: of Hugging Face /api/models/REPO/revision, /tree and /resolve, of
ModelScope /api/v1/models/REPO/repo/files and /repo. Files are always requested by HTTP, never by Xet.
"""

from __future__ import annotations

import contextlib
import re
from urllib.parse import quote, urlencode

from ..errors import FleetError
from ..host.files import fits
from ..host.http_client import parsed, whole_number
from .http import HttpFailure, following, origin
from .wanted import COMMIT, Listing, SourceProblem, untrusted

LONGEST = 64 << 20  # bytes of a listing
PAGES = 1000
LISTED_AT_MOST = 3000  # entries that ModelScope lists in one response
NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
RATE_LIMIT = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})")  # nothing is left, for so many seconds
# Hugging Face names the cause of an error in a header.
CODES = {"RepoNotFound": "repository", "RevisionNotFound": "revision", "EntryNotFound": "entry", "GatedRepo": "access"}
# What responses must look like.
REVISION = {"sha": str}
TREE = [{"type": str, "path": str, "size": (int, None), "oid": (str, None), "lfs": ({"oid": str, "size": int}, None)}]
FILE = {
    **dict.fromkeys(("Path", "Name", "Type", "Revision", "Sha256"), (str, None)),
    "Size": (int, None),
    "CommittedDate": (float, None),
}
FILES = {"Data": ({"Files": ([FILE], None)}, None)}
STATUSES = {401: "access", 403: "access"}
# Kinds of a SourceProblem: what is missing, and the codes of other errors.
MISSING = {"repository": "repository", "revision": "revision", "entry": "file"}
FAILED = {
    "access": "hub.access",
    "busy": "hub.unavailable",
    "network": "hub.unavailable",
    "disk": "weights.cannot-stage",
}


def explained(problem, wanted):
    """The FleetError for a SourceProblem."""
    what = "%s of %s" % (problem.path, wanted.name) if problem.path else wanted.name
    attempts = ", %d attempts" % (wanted.retries + 1) if problem.retry and wanted.retries else ""
    text, details = problem.text + attempts, {"problem": problem.kind}
    if problem.kind in MISSING:
        return FleetError("hub.not-found", wanted.origin, MISSING[problem.kind], what, text, details=details)
    if problem.kind in FAILED:
        return FleetError(FAILED[problem.kind], wanted.origin, what, text, details=details)
    return untrusted(wanted, "the request for %s gets %s" % (what, problem.text), details)


class Hub:
    """The repository of a Wanted. http: an Http. token: of an account, or None; it is sent to the endpoint only."""

    def __init__(self, wanted, token, http):
        self._wanted = wanted
        self._http = http
        self._secrets = {}
        if token:
            self._secrets["Authorization"] = "Bearer " + token
            if wanted.source == "modelscope":  # older parts of it read a cookie
                self._secrets["Cookie"] = "m_session_id=" + token

    def listing(self):
        """The Listing of the wanted revision. Raises SourceProblem."""
        return self._modelscope() if self._wanted.source == "modelscope" else self._huggingface()

    def read(self, listing, path, start, end):
        """The bytes from `start` to `end` of a file of the listing, in blocks as they are received. Raises
        SourceProblem, of kind data if the file has another size than the listing states."""
        record = listing.files[path]
        at, size = record.get("at", listing.at), record["size"]
        try:
            yield from self._read(path, at, start, end, size)
        except SourceProblem as problem:
            if problem.kind != "entry" or at == listing.at:
                raise
            yield from self._read(path, listing.at, start, end, size)  # a commit that is not kept: try the branch

    def _read(self, path, at, start, end, size):
        ranged = (start, end) != (0, size)
        headers = {"Range": "bytes=%d-%d" % (start, end - 1)} if ranged else {}
        with self._get(self._address(path, at), headers, missing="entry") as response:
            if response.size not in (None, size):
                raise SourceProblem("data", "%d bytes long, listed are %d" % (response.size, size))
            if response.headers.get("Content-Encoding", "identity") != "identity" or response.start > start:
                raise SourceProblem("foreign", "a body that was not requested")
            place = response.start
            for block in response.blocks():  # a server without ranges also sends the bytes before `start`
                use = block[max(0, start - place) : end - place]
                place += len(block)
                if use:
                    yield use
                if place >= end:
                    return
            raise SourceProblem("data", "%d bytes long, listed are %d" % (place, size))

    def _address(self, path, at):
        wanted = self._wanted
        if wanted.source == "modelscope":
            query = urlencode({"Revision": at, "FilePath": path})
            return "%s/api/v1/models/%s/repo?%s" % (wanted.endpoint, wanted.repo, query)
        return "%s/%s/resolve/%s/%s" % (wanted.endpoint, wanted.repo, quote(at, safe=""), quote(path))

    def _huggingface(self):
        wanted = self._wanted
        base = "%s/api/models/%s/" % (wanted.endpoint, wanted.repo)
        commit = self._json(base + "revision/" + quote(wanted.revision, safe=""), REVISION)[0].get("sha", "")
        if not COMMIT.match(commit):
            raise SourceProblem("foreign", "no commit")
        address, found = "%stree/%s?recursive=true&expand=false" % (base, commit), {}
        for _page in range(PAGES):
            entries, link = self._json(address, TREE)
            for entry in entries:
                if entry.get("type") == "file":
                    large = entry.get("lfs") or {}
                    found[entry.get("path")] = {
                        "size": large.get("size", entry.get("size")),
                        "sha256": large.get("oid"),
                        "oid": None if large else entry.get("oid"),
                    }
            if link is None:
                return Listing(commit, commit, found)
            try:
                address = following(address, link)
            except HttpFailure as failure:
                raise SourceProblem("foreign", failure.text) from failure
        raise SourceProblem("other", "its listing has no end")

    def _modelscope(self):
        """The Listing of the wanted revision.

        ModelScope does not state the commit of a branch; the newest commit of any of its files replaces it. Each file
        is requested at the commit that changed it last, because the branch may change.
        """
        revision = self._wanted.revision
        query = urlencode({"Revision": revision, "Recursive": "True"})
        address = "%s/api/v1/models/%s/repo/files?%s" % (self._wanted.endpoint, self._wanted.repo, query)
        entries = (self._json(address, FILES)[0].get("Data") or {}).get("Files")
        if not entries:  # what this hub answers for a revision that it does not have
            raise SourceProblem("revision", "it lists no files")
        if len(entries) >= LISTED_AT_MOST:
            raise SourceProblem("other", "the hub lists only a part of the repository")
        found, newest = {}, (0, "")
        for entry in entries:
            if (entry.get("Type") or "blob") == "tree":
                continue
            path, changed = entry.get("Path") or entry.get("Name"), entry.get("Revision") or ""
            sha256 = (entry.get("Sha256") or "").lower() or None
            found[path] = {"size": entry.get("Size"), "sha256": sha256, "oid": None}
            if COMMIT.match(changed) and not COMMIT.match(revision):
                found[path]["at"] = changed
            newest = max(newest, (entry.get("CommittedDate") or 0, changed))
        commit = revision if COMMIT.match(revision) else newest[1] or revision
        return Listing(commit, revision, found)

    def _json(self, address, shape):
        """(the JSON value of a response, the link to its next page or None). shape: see host.files.fits()."""
        with self._get(address, {"Accept": "application/json"}, missing="repository") as response:
            text = response.read(LONGEST)
            link = NEXT.search(response.headers.get("Link") or "")
        value = parsed(text.decode("utf-8", "replace"))
        if not fits(value, shape):
            raise SourceProblem("foreign", "no JSON of the expected form")
        return value, link.group(1) if link else None

    @contextlib.contextmanager
    def _get(self, address, headers, missing):
        """Yield the response. missing: what status 404 means."""
        try:
            secrets = self._secrets if origin(address) == origin(self._wanted.endpoint) else {}
            with self._http.get(address, headers, secrets) as response:
                yield response
        except HttpFailure as failure:
            raise self._problem(failure, missing) from failure

    def _problem(self, failure, missing):
        status = failure.status
        if status is None:
            return SourceProblem("network", failure.text, retry=True)
        if status in (408, 425, 429) or status >= 500:
            return SourceProblem("busy", failure.text, retry=True, wait=wait_of(failure.headers))
        if status == 416:
            return SourceProblem("data", "shorter than listed")
        kind = CODES.get(failure.headers.get("X-Error-Code") or "") or STATUSES.get(status)
        kind = kind or (missing if status == 404 else "other")
        elsewhere = origin(failure.url) != origin(self._wanted.endpoint)
        # a CDN refuses its signed address after it has expired: the hub returns a new address
        return SourceProblem(kind, failure.text, retry=status == 403 and elsewhere)


def wait_of(headers):
    """Seconds that a hub asks to wait, by Retry-After or Hugging Face's RateLimit; None if it does not."""
    after = whole_number((headers.get("Retry-After") or "").strip())
    limits = RATE_LIMIT.findall(headers.get("RateLimit") or "")
    return max(map(int, limits), default=None) if after is None else after
