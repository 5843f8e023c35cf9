# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables and progress lines for people."""

from __future__ import annotations


def gather(reports, report):
    """Add the rows of ``report`` {title, columns, rows}, or of a list of those, to ``reports`` {title: report}.

    None adds nothing.
    """
    for one in report if isinstance(report, list) else [report] if report else []:
        known = reports.setdefault(one["title"], {"title": one["title"], "columns": one["columns"], "rows": []})
        known["rows"] += one["rows"]


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
    """One line on the servers of a polling result: "1 of 2 ready; server-1: starting since …". None without servers."""
    servers = result.get("servers")
    if not isinstance(servers, list) or not servers or not all("name" in server for server in servers):
        return None
    waiting = [server for server in servers if not server.get("ready")]
    parts = ["%s: %s" % (server["name"], server.get("reason") or server.get("state")) for server in waiting[:4]]
    if len(waiting) > 4:
        parts.append("and %d more" % (len(waiting) - 4))
    return "; ".join(["%d of %d ready" % (len(servers) - len(waiting), len(servers)), *parts])


def status_report(host, servers):
    """The servers of one host, as engine_servers_info returns them, as a report for people."""
    rows = []
    for server in servers:
        memory = server.get("memory_mib")
        rows.append(
            [
                host,
                server["name"],
                server.get("port"),
                server.get("state"),
                server.get("ready"),
                server.get("since"),
                server.get("restarts"),
                None if memory is None else "%.1f GiB" % (memory / 1024.0),
                server.get("drift") or "as planned",
                server.get("reason"),
            ]
        )
    columns = ["host", "server", "port", "state", "ready", "since", "restarts", "memory", "plan", "reason"]
    return {"title": "Status", "columns": columns, "rows": rows}
