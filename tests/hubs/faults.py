# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of the simulated hub: what goes wrong, with which requests, how often."""

from __future__ import annotations

import dataclasses
import fnmatch
import threading

# What a request is for. info: revisions and descriptions; list: file listings; head: HEAD of a file; redirect: the
# answer that sends a client to the CDN; get: an answer that carries a file's bytes.
KINDS = ("info", "list", "head", "redirect", "get")


ACTIONS = {
    "status": "answers `status`, with `retry_after` seconds and Hugging Face's `code`, where given",
    "cut": "closes the connection at byte `at` of the file; with `reset`, by a TCP reset",
    "flip": "the right length, with the byte at `at` changed (by default the middle one)",
    "length": "a file that is `by` bytes longer than it should be, consistently announced",
    "stall": "sends up to byte `at` of the file, then nothing",
    "hold": "sends up to byte `at` of the file, waits until the fault is released, then goes on",
    "slow": "`rate` bytes a second",
    "no_range": "ignores Range: status 200 and the whole file",
    "page": "status 200 and a page of HTML, as a captive portal or a proxy's login does",
    "listing": "a listing that lies: `drop` names, `sizes` and `sha256` {name: value}, `add` {name: size}",
}


@dataclasses.dataclass
class Fault:
    """One fault. path: pattern of names in the repository. count: with how many requests, None for all of them.

    skip: requests that match and pass unharmed first. on: KINDS; by default list for `listing` and get for the others.
    happened: how often it did. released: set once a `hold` shall go on.
    """

    action: str
    path: str = "*"
    count: int | None = None
    skip: int = 0
    on: tuple = ()
    parameters: dict = dataclasses.field(default_factory=dict)
    happened: int = 0
    released: threading.Event = dataclasses.field(default_factory=threading.Event, repr=False, compare=False)

    @classmethod
    def make(cls, action, path="*", count=None, skip=0, on=None, **parameters):
        """A fault from its description. Raises ValueError for what does not exist."""
        kinds = (on,) if isinstance(on, str) else tuple(on or (("list",) if action == "listing" else ("get",)))
        if action not in ACTIONS or set(kinds) - set(KINDS):
            raise ValueError("action: one of %s; on: some of %s" % (", ".join(ACTIONS), ", ".join(KINDS)))
        return cls(action, path, count, skip, kinds, parameters)

    def strikes(self, kind, path, start=None, size=None):
        """Whether it happens to this request, which is counted then. start: of the answer's bytes, with a file."""
        if kind not in self.on or not fnmatch.fnmatchcase(path, self.path):
            return False
        if start is not None and not self._touches(start, size):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.released.is_set() or (self.count is not None and self.happened >= self.count):
            return False
        self.happened += 1
        return True

    def _touches(self, start, size):
        """A fault at some byte does not happen to an answer that has not got this byte."""
        if self.action in ("cut", "stall", "hold"):
            return start <= self.parameters["at"] < size
        if self.action == "flip":
            return start <= self.parameters.get("at", size // 2) < size
        return start > 0 or self.action != "no_range"

    def release(self):
        """Let go on what a `hold` holds, and hold nothing more."""
        self.released.set()
