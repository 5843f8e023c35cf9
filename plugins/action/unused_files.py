# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inference.fleet.unused_files on the node, and makes a table for people of what it found."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.inference.fleet.plugins.plugin_utils.node_program import NodeProgram
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import show


class ActionModule(NodeProgram, ActionBase):
    """Action plugin of inference.fleet.unused_files."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Returns what the module returns, and fleet_report."""
        result = super().run(tmp, task_vars)
        result.update(self.call("unused_files", self._task.args, task_vars))
        if "unused" in result:
            result["fleet_report"] = table(task_vars["inventory_hostname"], result, self._task.check_mode)
            show(result["fleet_report"])
        return result


def table(host, result, check):
    """{title, columns, rows} of what the module found."""
    gone = "would be deleted" if check else "deleted"
    rows = [
        [
            host,
            one["path"],
            one["kind"],
            size(one["size"]),
            gone if one["path"] in result["removed"] else note(one),
            one["why"],
        ]
        for one in result["unused"]
    ]
    if rows:
        total = sum(one["size"] for one in result["unused"])
        rows.append([host, "all of it", "-", size(total), "-", "-"])
    return {"title": "Unused files", "columns": ["host", "path", "what", "size", "state", "why"], "rows": rows}


def note(one):
    """What is to be known of something that stays."""
    if one["mounted"]:
        return "stays: something is mounted in it"
    return "other nodes may use it" if one["shared"] else "there"


def size(number):
    """Bytes for a person."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return "%.4g %s" % (number, unit)
        number /= 1024
    return "%.4g GiB" % number
