# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines at the foot of a terminal that are written again and again, one for each host."""

from __future__ import annotations

import shutil
import threading

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.visible import visible


class LiveLines:
    """Lines by name on the terminal `stream`. `clear` before anything else is written there."""

    def __init__(self, stream, size=shutil.get_terminal_size):
        self._stream = stream
        self._size = size
        self._lines = {}
        self._drawn = 0
        self._lock = threading.RLock()

    def update(self, name, line):
        """Show `line` for `name`; a new name goes below the others."""
        with self._lock:
            self._lines[name] = visible(line)
            columns, rows = self._size()
            lines = list(self._lines.values())
            room = max(1, rows - 1)
            if len(lines) > room:
                lines = [*lines[: room - 1], "and %d more hosts" % (len(lines) - room + 1)]
            # A line that wraps would be two, and going up would end one too low.
            text = "".join(line[: max(1, columns - 1)] + "\n" for line in lines)
            self._stream.write(self._back() + text)
            self._stream.flush()
            self._drawn = len(lines)

    def drop(self, name):
        """A host is done: its line goes, the others are drawn with the next update."""
        with self._lock:
            if self._lines.pop(name, None) is not None:
                self.clear()

    def clear(self):
        """Take the lines away; they come back with the next update."""
        with self._lock:
            if self._drawn:
                self._stream.write(self._back())
                self._stream.flush()
                self._drawn = 0

    def _back(self):
        return "\x1b[%dA\x1b[J" % self._drawn if self._drawn else ""
