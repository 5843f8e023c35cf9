# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables and progress lines for people."""

from __future__ import annotations


def gather(reports, report):
    """Add the rows of ``report`` {title, columns, rows} to ``reports`` {title: report}. None adds nothing."""
    if not report:
        return
    known = reports.setdefault(report["title"], {"title": report["title"], "columns": report["columns"], "rows": []})
    known["rows"] += report["rows"]


def cell(value):
    """A value as a table shows it: one line."""
    if value is None:
        return "-"
    if value is True or value is False:
        return "yes" if value else "no"
    return " ".join(str(value).split())


def render(columns, rows):
    """A table as lines: columns as wide as their widest cell, in the order of the rows."""
    table = [[cell(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    return ["  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip() for row in table]


def progress_line(result):
    """One line on the servers of a polling result: "1 of 2 ready; server-1 starting (34 s)". None without servers."""
    servers = result.get("servers")
    if not isinstance(servers, list) or not servers or not all("name" in server for server in servers):
        return None
    waiting = [server for server in servers if not server.get("ready")]
    parts = []
    for server in waiting[:4]:
        text = "%s %s" % (server["name"], server.get("state", "unknown"))
        details = [str(item) for item in (server.get("reason"), server.get("since_text")) if item]
        if server.get("since"):
            details.append("since %s" % server["since"])
        parts.append(text + (" (%s)" % ", ".join(details) if details else ""))
    if len(waiting) > 4:
        parts.append("and %d more" % (len(waiting) - 4))
    return "%d of %d ready%s" % (len(servers) - len(waiting), len(servers), "; " + "; ".join(parts) if parts else "")
