# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines at the bottom of a terminal that are updated continuously, one for each host."""

from __future__ import annotations

import shutil
import threading

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.visible import visible


class LiveLines:
    """Lines by name on the terminal `stream`. Call `clear` before other output."""

    def __init__(self, stream, size=shutil.get_terminal_size):
        self._stream = stream
        self._size = size
        self._lines = {}
        self._drawn = 0
        self._lock = threading.RLock()

    def update(self, name, line):
        """Show `line` for `name`; a new name is added below the others."""
        with self._lock:
            self._lines[name] = visible(line)
            columns, rows = self._size()
            lines = list(self._lines.values())
            room = max(1, rows - 1)
            if len(lines) > room:
                lines = [*lines[: room - 1], "and %d more hosts" % (len(lines) - room + 1)]
            # A line that wraps would occupy two rows, and the cursor would not move up far enough.
            text = "".join(line[: max(1, columns - 1)] + "\n" for line in lines)
            self._stream.write(self._back() + text)
            self._stream.flush()
            self._drawn = len(lines)

    def drop(self, name):
        """Remove the line of a host that is done. The next update draws the others."""
        with self._lock:
            if self._lines.pop(name, None) is not None:
                self.clear()

    def clear(self):
        """Clear the lines; the next update shows them again."""
        with self._lock:
            if self._drawn:
                self._stream.write(self._back())
                self._stream.flush()
                self._drawn = 0

    def _back(self):
        return "\x1b[%dA\x1b[J" % self._drawn if self._drawn else ""
