# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers of a node stop for a tool that starts an engine of its own, and come back.

The job of the tool starts them itself when the tool has ended, so that they come back where nobody waits for it any
more. A call that finds them still down, since the job was killed too, starts them as well; and after a reboot the
service manager does, as they were stopped and not disabled.
"""

from __future__ import annotations

import shlex

from ..errors import FleetError
from ..launchers import get_launcher
from ..servers.readiness import check_ready

# the signals that end a job end the tool, and not this; the last words of the log are the tool's
AFTER = 'trap : TERM INT HUP; "$@"; status=$?; %s >/dev/null 2>&1; exit $status'


class Servers:
    """Those of a node. entries: {name: plan entry}."""

    def __init__(self, node, entries):
        self.node, self.entries = node, entries

    def stop(self):
        """None of their processes is left, or FleetError, and they are started again."""
        try:
            self.node.manager.stop(list(self.entries))
            self._end_leftovers()
        except FleetError:
            self.node.manager.start(list(self.entries))
            raise

    def _end_leftovers(self):
        for name, entry in self.entries.items():
            left = get_launcher(entry, self.node.paths.root).stop_leftovers(entry)
            if left:
                raise FleetError(
                    "measure.server-stays",
                    "%s was stopped for the tool, and this is left of it: %s. End it and run again.",
                    (name, "; ".join(one["what"] for one in left)),
                )

    def wrapped(self, argv):
        """argv that runs this one and then starts the servers."""
        return ["/bin/sh", "-c", AFTER % shlex.join(self.node.manager.start_argv(list(self.entries))), "sh", *argv]

    def start(self):
        """Start those that do not run; nothing of the tool's engine is left then."""
        up = {name for name, status in self.node.manager.statuses().items() if status.state in ("up", "restarting")}
        down = [name for name in self.entries if name not in up]
        if down:
            self._end_leftovers()
            self.node.manager.start(down)

    def lack(self):
        """What they lack to be ready, None where they are. FleetError where waiting is of no use."""
        try:
            check_ready(self.node, list(self.entries.values()))
        except FleetError as error:
            if error.details.get("final"):
                raise
            return error.message
        return None
