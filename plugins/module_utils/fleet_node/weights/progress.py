# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a run that transfers or reads weights."""

from __future__ import annotations

import contextlib
import threading
import time

RATE_S = 15.0  # the period over which the rate is measured


class Progress:
    """The progress of a run."""

    def __init__(self):
        self._lock = threading.Lock()
        self.phase = "listing"
        self.total = 0
        self.file = None
        self._done = None
        self._samples = []
        self._waits = {}  # {thread: (until, reason)}

    @contextlib.contextmanager
    def waiting(self, seconds, reason):
        """While a file waits for its next attempt."""
        with self._lock:
            self._waits[threading.get_ident()] = (time.monotonic() + seconds, reason)
        try:
            yield
        finally:
            with self._lock:
                del self._waits[threading.get_ident()]

    def _waiting(self):
        """The reason and the remaining time of a wait; None if no thread waits."""
        until, reason = max(self._waits.values(), default=(None, None))
        return None if until is None else "%d s: %s" % (max(0, round(until - time.monotonic())), reason)

    def begin(self, phase, total, done):
        """A new phase of `total` bytes; done(): how many of them are transferred or read."""
        with self._lock:
            self.phase, self.total, self._done, self._samples, self.file = phase, total, done, [], None

    def verifying(self, total):
        """Begin to read `total` bytes that are on the node; returns the read(name, bytes) that counts them."""
        counts = {}

        def read(name, count):
            counts[name] = counts.get(name, 0) + count
            self.file = name

        self.begin("verifying", total, lambda: sum(list(counts.values())))
        return read

    def snapshot(self):
        """{phase, percent, bytes_done, bytes_total, rate_bytes_s, eta_s, file, waiting}; null if unknown, or if
        nothing waits."""
        with self._lock:
            done = min(self._done(), self.total) if self._done else 0
            now = time.monotonic()
            self._samples = [item for item in self._samples if now - item[0] <= RATE_S] + [(now, done)]
            then, before = self._samples[0]
            rate = max(0, done - before) / (now - then) if self._done and now - then >= 0.5 else None
            left = self.total - done
            return {
                "phase": self.phase,
                "percent": int(1000 * done / self.total) / 10 if self.total else 0.0,
                "bytes_done": done,
                "bytes_total": self.total,
                "rate_bytes_s": None if rate is None else int(rate),
                "eta_s": None if not rate else int(left / rate) + (left > 0),
                "file": self.file,
                "waiting": self._waiting(),
            }
