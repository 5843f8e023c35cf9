# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Both hubs by the standard library alone: listings, small files, and the starts of files, without the toolkit too.

The clients of the hubs' libraries are made of this one; weights are brought by those. Proxies and certificates come
from the environment of the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from urllib.parse import quote, urlencode, urljoin, urlsplit

from . import COMMIT, HubProblem, Listing, wait_of

LONGEST = 64 << 20  # bytes of a listing
PAGES = 1000
NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
# What Hugging Face says in a header of an answer that is an error.
CODES = {"RepoNotFound": "repository", "RevisionNotFound": "revision", "EntryNotFound": "entry", "GatedRepo": "access"}


class Client:
    """See the package; `fetch` is for small files, which it holds in memory."""

    def __init__(self, wanted, token):
        self._wanted = wanted
        self._token = token
        self._opener = _opener()

    def listing(self):
        """The Listing of the wanted revision."""
        return self._modelscope() if self._wanted.source == "modelscope" else self._huggingface()

    def fetch(self, listing, path, folder, _digest=None):
        """Bring one file to `folder`/`path`."""
        try:
            content = self.head(listing, path, listing.files[path]["size"])
        except HubProblem as problem:
            if problem.kind == "repository":  # which has just been listed
                problem.kind = "entry"
            raise
        with open(os.path.join(folder, path), "wb") as stream:
            stream.write(content)

    def head(self, listing, path, count):
        """The first `count` bytes of a file of the listing, fewer where it is shorter."""
        wanted = self._wanted
        at = quote(listing.files[path].get("at", listing.at), safe="")
        if wanted.source == "modelscope":
            address = "%s/api/v1/models/%s/repo?Revision=%s&FilePath=%s" % (
                wanted.endpoint, wanted.repo, at, quote(path, safe="")
            )  # fmt: skip
        else:
            address = "%s/%s/resolve/%s/%s" % (wanted.endpoint, wanted.repo, at, quote(path))
        with self._open(address, {"Range": "bytes=0-%d" % (count - 1), "Accept-Encoding": "identity"}) as answer:
            return answer.read(count)

    def _huggingface(self):
        wanted = self._wanted
        base = "%s/api/models/%s/" % (wanted.endpoint, wanted.repo)
        commit = self._json(base + "revision/" + quote(wanted.revision, safe=""))[0].get("sha")
        if not isinstance(commit, str):
            raise HubProblem("foreign", "no commit")
        address, found = "%stree/%s?recursive=true&expand=false" % (base, commit), {}
        for _page in range(PAGES):
            entries, following = self._json(address, list)
            for entry in entries:
                if entry.get("type") == "file":
                    large = entry.get("lfs") or {}
                    found[entry.get("path")] = {
                        "size": large.get("size", entry.get("size")),
                        "sha256": large.get("oid"),
                        "oid": None if large else entry.get("oid"),
                    }
            if following is None:
                return Listing(commit, commit, found)
            address = urljoin(address, following)
        raise HubProblem("other", "its listing has no end")

    def _modelscope(self):
        wanted = self._wanted
        query = urlencode({"Revision": wanted.revision, "Recursive": "True"})
        data = self._json("%s/api/v1/models/%s/repo/files?%s" % (wanted.endpoint, wanted.repo, query))[0].get("Data")
        return modelscope_listing(wanted.revision, (data or {}).get("Files"))

    def _json(self, address, kind=dict):
        """(the JSON value of an answer, the address of its next page or None)."""
        with self._open(address, {"Accept": "application/json"}) as answer:
            text = answer.read(LONGEST)
            following = NEXT.search(answer.headers.get("Link") or "")
            if answer.length and len(text) < LONGEST:
                raise HubProblem("network", "the listing was cut off", retry=True)
        try:
            value = json.loads(text.decode("utf-8"))
        except ValueError:
            value = None
        if not isinstance(value, kind):
            raise HubProblem("foreign", "no JSON")
        return value, following.group(1) if following else None

    @contextlib.contextmanager
    def _open(self, address, headers):
        import http.client
        import urllib.error
        import urllib.request

        request = urllib.request.Request(address, headers=headers)
        if self._token:
            request.add_header("Authorization", "Bearer " + self._token)
            if self._wanted.source == "modelscope":  # whose older parts look for a cookie
                request.add_header("Cookie", "m_session_id=" + self._token)
        try:
            with self._opener.open(request, timeout=self._wanted.timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise self._of_status(error) from None
        except urllib.error.URLError as error:
            raise HubProblem("network", "%s" % (error.reason or error), retry=True) from error
        except (OSError, http.client.HTTPException) as error:
            raise HubProblem("network", "%s: %s" % (type(error).__name__, error), retry=True) from error

    def _of_status(self, error):
        """The HubProblem of an answer with a status that is an error."""
        text, status = "HTTP %d" % error.code, error.code
        kind = CODES.get(error.headers.get("X-Error-Code") or "")
        if status in (408, 425, 429) or status >= 500:
            return HubProblem("busy", text, retry=True, wait=wait_of(error.headers))
        if kind is None:
            kind = {401: "access", 403: "access", 404: "repository"}.get(status, "other")
        return HubProblem(kind, text)


def _opener():
    import urllib.request  # half of what importing this collection costs a module that asks no hub

    class Redirects(urllib.request.HTTPRedirectHandler):
        """The token is for the hub, not for whom it sends its readers to."""

        http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # which Python 3.9 and 3.10 do not follow

        def redirect_request(self, req, fp, code, msg, headers, newurl):
            following = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
            if following is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
                following.remove_header("Authorization")
                following.remove_header("Cookie")
            return following

    return urllib.request.build_opener(Redirects)


def modelscope_listing(revision, entries):
    """The Listing of what ModelScope says of a revision. Raises HubProblem where that is nothing.

    A branch has no commit in what it tells; the newest commit of any of its files stands for it. Each file is asked for
    at the commit that it is from, so that the branch may move on.
    """
    if not entries:
        raise HubProblem("revision", "it lists no files")  # what this hub says of a revision that it does not have
    found, newest = {}, (0, "")
    for entry in entries:
        if (entry.get("Type") or "blob") == "tree":
            continue
        path = entry.get("Path") or entry.get("Name")
        sha256 = (entry.get("Sha256") or "").lower() or None
        found[path] = {"size": entry.get("Size"), "sha256": sha256, "oid": None}
        if COMMIT.match(entry.get("Revision") or "") and not COMMIT.match(revision):
            found[path]["at"] = entry["Revision"]
        newest = max(newest, (_time(entry.get("CommittedDate")), entry.get("Revision") or ""))
    commit = revision if COMMIT.match(revision) else newest[1] or revision
    return Listing(commit, revision, found)


def _time(value):
    return value if isinstance(value, (int, float)) else 0
