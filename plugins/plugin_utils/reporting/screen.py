# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables on the screen of a run whose stdout callback is not this collection's."""

from __future__ import annotations

from ansible import constants as C
from ansible.utils.display import Display
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.tables import gather, lines

CALLBACK = "inference.fleet.fleet"
WIDTH = 80  # of a title with its stars, as Ansible's own


def say(line):
    """Print a line where no callback prints it."""
    callback = C.DEFAULT_STDOUT_CALLBACK
    if callback != CALLBACK and "json" not in callback:
        Display().display(line)


def show(report):
    """Print a report {title, columns, rows}, or a list of those, where no callback gathers it for the end of the run.

    What a callback prints for machines is left as it is.
    """
    callback = C.DEFAULT_STDOUT_CALLBACK
    if callback == CALLBACK or "json" in callback:
        return
    tables = {}
    gather(tables, report)
    for table in tables.values():
        title = table["title"].upper() + " "
        # all of it at once: hosts that end together have a worker each
        Display().display("\n".join(["", title.ljust(WIDTH, "*"), *lines(table)]))
