# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ModelScope, by the client that the package modelscope is made of. Runs in the toolkit's environment."""

from __future__ import annotations

import functools
import json
import re
import threading
from dataclasses import replace

from . import HubProblem, part_of, plain, private

# What the library says of a file that came with another size than its listing has.
OTHER_SIZE = re.compile(r"Server (?:announced|reports|returned) (\d+) ")
# What it says of a connection that is slower than its limit.
TOO_SLOW = re.compile(r"(\d+) B/s \S+ (\d+) B/s")
WRITING = threading.local()  # digest: of the file that this thread fetches


def _open(path, mode="r", *arguments, **options):
    """The library's open(): what a thread writes of the file that it fetches goes through its digest."""
    digest = getattr(WRITING, "digest", None)
    return open(path, mode, *arguments, **options) if digest is None or "r" in mode else digest.open(path, mode)


class Client(plain.Client):
    """See the package. What the library reads from the environment is set by `jobs.environment`."""

    def __init__(self, wanted, token):
        try:
            import modelscope_hub
            from modelscope_hub import _download
        except ImportError as error:
            raise HubProblem("client", str(error)) from error
        private.check("modelscope")
        _download.open = _open
        # The library's own name for a file that grows may be longer than a file system takes.
        path = _download._incomplete_path
        _download._incomplete_path = functools.wraps(path)(lambda target: type(target)(part_of(str(target))))
        super().__init__(wanted, token)
        self._api = modelscope_hub.HubApi(endpoint=wanted.endpoint, token=token)

    def listing(self):
        """The Listing of the wanted revision; more than the hub lists at a time, too."""
        wanted = self._wanted
        try:
            entries = self._api.legacy.list_repo_files(wanted.repo, "model", wanted.revision)
        except Exception as error:
            problem = self._problem(error)
            if problem.kind == "entry":
                problem.kind = "repository"
            raise problem from error
        if getattr(self._api.legacy._read_state, "listing_incomplete", False):
            raise HubProblem("other", "the hub lists only a part of the repository")
        return plain.modelscope_listing(wanted.revision, entries)

    def fetch(self, listing, path, folder, digest=None):
        """Bring one file to `folder`/`path`: with no retries of its own, as it is called."""
        size, at = listing.files[path]["size"], listing.files[path].get("at", listing.at)
        WRITING.digest = digest
        try:
            self._api.download_file(self._wanted.repo, "model", path, revision=at, local_dir=folder, file_size=size)
        except Exception as error:
            problem = self._problem(error, size, fetching=True)
            if problem.kind == "entry" and at != listing.at:  # a commit that is not kept: the branch may still have it
                return self.fetch(replace(listing, files={path: {"size": size}}), path, folder, digest)
            raise problem from error
        finally:
            WRITING.digest = None

    def _problem(self, error, size=None, fetching=False):
        """A HubProblem of what the library raised. size: listed of the file that was asked for, while `fetching` it."""
        import ssl

        import requests
        from modelscope_hub import errors

        if isinstance(error, json.JSONDecodeError):
            return HubProblem("foreign", "no JSON")
        if isinstance(error, errors.FileSizeMismatchError):
            other = OTHER_SIZE.search(str(error))
            return HubProblem("data", "%s, listed are %s" % ("%s bytes long" % other[1] if other else "longer", size))
        if isinstance(error, errors.FileIntegrityError):
            return HubProblem("data", "of another sha256 than the hub said with it")
        status = getattr(error, "status_code", None)
        if isinstance(error, (errors.AuthenticationError, errors.PermissionDeniedError)) or status in (401, 403):
            return HubProblem("access", "HTTP %s" % status, forbidden=fetching and status == 403)
        if isinstance(error, errors.NotExistError) or status == 404:
            return HubProblem("entry", "HTTP 404")
        wait = getattr(error, "retry_after", None)
        if isinstance(error, errors.RateLimitError) or (status or 0) >= 500:
            return HubProblem("busy", "HTTP %s" % status, retry=True, wait=wait)
        if isinstance(error, errors.RequestTimeoutError):
            # For a listing the library has two clocks of the same length, the socket's and one that shuts the socket
            # down; which of them is first is chance, and decides what lies below this error.
            return HubProblem("network", "TimeoutError: timed out", retry=True)
        slow = TOO_SLOW.search(str(error)) if type(error).__name__ == "_DownloadTooSlowError" else None
        if slow:
            return HubProblem("network", "%s bytes/s, wanted are %s" % slow.groups(), retry=True)
        network = isinstance(error, (errors.NetworkError, requests.RequestException))
        connection = network or isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError))
        if fetching and isinstance(error, OSError) and error.errno is not None and not connection:
            return HubProblem("disk", error.strerror)
        while network and (error.__cause__ or error.__context__):
            error = error.__cause__ or error.__context__  # which the library's own words, some of them Chinese, hide
        text = " ".join(str(error).split())
        retry = connection or bool(getattr(error, "retryable", False))
        return HubProblem("network" if retry else "other", "%s: %s" % (type(error).__name__, text), retry=retry)
