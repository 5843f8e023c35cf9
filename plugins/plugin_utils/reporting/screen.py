# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables on the screen for runs with another stdout callback than that of this collection."""

from __future__ import annotations

from ansible import constants as C
from ansible.utils.display import Display
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.tables import gather, lines

CALLBACK = "inference.fleet.fleet"
WIDTH = 80  # of a title with its stars, like Ansible's own titles


def say(line):
    """Print a line, unless the callback prints it."""
    callback = C.DEFAULT_STDOUT_CALLBACK
    if callback != CALLBACK and "json" not in callback:
        Display().display(line)


def show(report):
    """Print a report {title, columns, rows}, or a list of reports,
    unless the callback prints them at the end of the run.

    The output of callbacks that write data is not changed.
    """
    callback = C.DEFAULT_STDOUT_CALLBACK
    if callback == CALLBACK or "json" in callback:
        return
    tables = {}
    gather(tables, report)
    for table in tables.values():
        title = table["title"].upper() + " "
        # a single call: several worker processes may write at the same time
        Display().display("\n".join(["", title.ljust(WIDTH, "*"), *lines(table)]))
