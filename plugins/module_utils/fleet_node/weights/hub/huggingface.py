# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hugging Face: files by huggingface_hub's own functions. Runs in the toolkit's environment."""

from __future__ import annotations

import functools
import os
import re
import time

from . import HubProblem, part_of, plain, private, wait_of
from .digest import Digest

# The answer to a range may be a compressed body; so small a file is fetched in one piece.
WHOLE = 1 << 20
# The library writes to the disk in pieces of 10 MiB; whatever ends a transfer costs such a piece of every open file.
PIECE = 1 << 20
SMALL_PIECE = 16 << 10
# What the library says of a file that came with another size than its listing has.
OTHER_SIZE = re.compile(r"^Consistency check failed: file should be of size \d+ but has size (\d+)")


class Client(plain.Client):
    """See the package. snapshot_download is not used: it says that all is well when the hub cannot be reached, never
    looks at a file of the right size again, and since huggingface_hub 2 starts a killed download from nothing."""

    def __init__(self, wanted, token):
        try:
            from huggingface_hub import constants, file_download
            from huggingface_hub.utils import _http, build_hf_headers, set_client_factory
        except ImportError as error:
            raise HubProblem("client", str(error)) from error
        private.check("huggingface")

        def client():
            made = _http.default_client_factory()
            made.event_hooks["request"].append(limit)
            if wanted.min_rate:
                made.event_hooks["response"].append(hurry)
            return made

        def hurry(response):
            response.stream = _fast_enough(response.stream, wanted.min_rate, wanted.min_rate_window_s)

        def limit(request):
            # The library's client has no timeout of its own; a silent hub would be waited for for ever.
            times = request.extensions["timeout"]
            request.extensions["timeout"] = {
                name: wanted.timeout_s if value is None else value for name, value in times.items()
            }

        set_client_factory(client)
        # The caller tries again, and knows when that is of use; the library would wait for minutes, silently.
        backoff = _http._http_backoff_base

        @functools.wraps(backoff)
        def once(*args, **named):
            return backoff(*args, **{**named, "max_retries": 0})

        _http._http_backoff_base = once
        # What is dropped for being slow must have kept what came in time.
        constants.DOWNLOAD_CHUNK_SIZE = min(PIECE, SMALL_PIECE) if wanted.min_rate else PIECE
        super().__init__(wanted, token)
        self._library = file_download
        self._headers = build_hf_headers(token=token or False)

    def fetch(self, listing, path, folder, digest=None):
        """Bring one file to `folder`/`path`."""
        size = listing.files[path]["size"]
        file = os.path.join(folder, path)
        part = part_of(file)
        try:
            with (digest or Digest()).open(part, "ab") as stream:
                there = stream.tell()
                if there > size or size <= WHOLE:
                    stream.truncate(0)
                    there = 0
                self._get(listing.at, path, stream, there, size)
            os.rename(part, file)
        except OSError as error:
            raise HubProblem("disk", error.strerror or str(error)) from error

    def _get(self, at, path, stream, there, size):
        """Let the library write a file, or what comes after its first `there` bytes."""
        try:
            self._library.http_get(
                self._library.hf_hub_url(self._wanted.repo, path, revision=at, endpoint=self._wanted.endpoint),
                stream,
                resume_size=there,
                headers=dict(self._headers),
                expected_size=size,
                tqdm_class=Silent,
                _nb_retries=0,  # which it forgets with the first piece, and tries five times more
            )
        except Exception as error:
            if stream.error:
                raise stream.error from error
            raise self._problem(error, size) from error

    def _problem(self, error, size=None):
        """A HubProblem of what the library raised. size: listed of the file that was asked for."""
        import httpx2
        from huggingface_hub import errors

        response = getattr(error, "response", None)
        status = response.status_code if response is not None else None
        if isinstance(error, errors.GatedRepoError) or status in (401, 403):
            # The hub hides private repositories behind the 401 of an unknown one, and says so in this header only.
            if isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError):
                return HubProblem("repository", "HTTP %s" % status)
            elsewhere = status == 403 and not str(response.url).startswith(self._wanted.endpoint + "/")
            return HubProblem("access", "HTTP %s" % status, forbidden=elsewhere)
        if isinstance(error, errors.RevisionNotFoundError):
            return HubProblem("revision", "HTTP %s" % status)
        if isinstance(error, errors.EntryNotFoundError):
            return HubProblem("entry", "HTTP %s" % status)
        if isinstance(error, errors.RepositoryNotFoundError):
            return HubProblem("repository", "HTTP %s" % status)
        if status == 416:
            return HubProblem("data", "shorter than listed, which is %s bytes" % size)
        if status is not None:
            busy = status in (408, 425, 429) or status >= 500
            kind = "busy" if busy else "repository" if status == 404 else "other"
            return HubProblem(kind, "HTTP %s" % status, retry=busy, wait=wait_of(response.headers))
        other = OTHER_SIZE.search(str(error)) if isinstance(error, OSError) else None
        if other:
            return HubProblem("data", "%s bytes long, listed are %s" % (other[1], size))
        if isinstance(error, (httpx2.HTTPError, httpx2.StreamError, OSError)):
            return HubProblem("network", _text(error), retry=True)
        return HubProblem("other", _text(error))


def _fast_enough(stream, rate, window_s):
    """The stream of an answer, which breaks off where fewer than `rate` bytes a second come in a window."""
    import httpx2

    class Stream(httpx2.SyncByteStream):
        """Looked at with every piece; a silence is what the timeout is for."""

        def __iter__(self):
            began, received = time.monotonic(), 0
            for piece in stream:
                received += len(piece)
                passed = time.monotonic() - began
                if passed >= window_s:
                    if received / passed < rate:
                        raise httpx2.ReadTimeout("%d bytes/s, wanted are %d" % (received / passed, rate))
                    began, received = time.monotonic(), 0
                yield piece

        def close(self):
            stream.close()

    return Stream()


class Silent:
    """Stands in for tqdm: progress is read from the disk."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def update(self, count=1):
        """Nothing."""

    def close(self):
        """Nothing."""


def _text(error):
    """An exception in a line, with its kind where it says nothing itself."""
    text = " ".join(str(error).split())
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__
