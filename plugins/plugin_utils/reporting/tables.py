# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables and progress lines for people."""

from __future__ import annotations

import re

WAITS = re.compile(r"^waiting for ([a-z0-9-]+)")


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
    """One line on the servers of a polling result, None without servers.

    "1 of 2 ready; server-1: starting since …"; those that wait for another one are counted: "7 wait for server-0".
    """
    servers = result.get("servers")
    if not isinstance(servers, list) or not servers or not all("name" in server for server in servers):
        return None
    waiting = [server for server in servers if not server.get("ready")]
    behind = {}
    for server in waiting:
        found = WAITS.match(server.get("reason") or "")
        behind.setdefault(found.group(1) if found else None, []).append(server)
    named = behind.pop(None, [])
    for leader in [leader for leader, servers_behind in behind.items() if len(servers_behind) == 1]:
        named += behind.pop(leader)  # one alone says more in its own words
    parts = ["%s: %s" % (server["name"], server.get("reason") or server.get("state")) for server in named[:4]]
    if len(named) > 4:
        parts.append("and %d more" % (len(named) - 4))
    parts += ["%d wait for %s" % (len(followers), leader) for leader, followers in behind.items()]
    return "; ".join(["%d of %d ready" % (len(servers) - len(waiting), len(servers)), *parts])


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def transfer_line(progress):
    """One line on a transfer: "downloading 45 %, 27.4 of 60.8 GiB, 312.0 MiB/s, 1 min 49 s left, FILE".

    progress: {percent, bytes_done, bytes_total, rate_bytes_s, eta_s, file, phase, waiting}; what is None or
    absent is left out.
    """
    first = str(progress.get("phase") or "working")
    if progress.get("percent") is not None and progress.get("bytes_total") != 0:
        # 99.9 is not there yet; of nothing there are no percents.
        first += " %d %%" % int(progress["percent"])
    parts = [first]
    done, total = progress.get("bytes_done"), progress.get("bytes_total")
    if total:
        unit = _unit(total)
        parts.append("%s of %s %s" % (_scaled(done or 0, unit), _scaled(total, unit), UNITS[unit]))
    elif done:
        parts.append("%s %s" % (_scaled(done, _unit(done)), UNITS[_unit(done)]))
    if progress.get("rate_bytes_s") is not None:
        unit = _unit(progress["rate_bytes_s"])
        parts.append("%s %s/s" % (_scaled(progress["rate_bytes_s"], unit), UNITS[unit]))
    if progress.get("eta_s") is not None:
        parts.append("%s left" % duration(progress["eta_s"]))
    if progress.get("file"):
        parts.append(cell(progress["file"]))
    if progress.get("waiting"):
        parts.append("waiting " + cell(progress["waiting"]))
    return ", ".join(parts)


def duration(seconds):
    """Seconds as people read them: "48 s", "1 min 49 s", "2 h 5 min"."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return "%d s" % seconds
    if seconds < 3600:
        return "%d min %d s" % divmod(seconds, 60)
    return "%d h %d min" % divmod(seconds // 60, 60)


def _unit(size):
    """Index of the largest unit in which `size` is at least one."""
    return max(0, min(len(UNITS) - 1, (int(size).bit_length() - 1) // 10))


def _scaled(size, unit):
    return "%d" % size if unit == 0 else "%.1f" % (size / (1 << 10 * unit))


STATUS_COLUMNS = ["host", "server", "port", "state", "ready", "since", "restarts", "memory", "drift"]


def status_report(host, servers):
    """The servers of one host, as engine_servers_info returns them, as a report: a line for each difference."""
    rows = []
    for server in servers:
        memory = server.get("memory_mib")
        found = server.get("differences")
        lines = [one["text"] for one in found or ()] or ["no plan" if found is None else "as planned"]
        lines += ["note: " + note for note in server.get("notes") or ()]
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
                lines[0],
            ]
        )
        rows += [[""] * (len(STATUS_COLUMNS) - 1) + [line] for line in lines[1:]]
    return {"title": "Status", "columns": STATUS_COLUMNS, "rows": rows}


def unreachable_report(host):
    """A host of which nothing is known, as a row of status_report()."""
    row = [host, *[None] * (len(STATUS_COLUMNS) - 2), "unreachable"]
    return {"title": "Status", "columns": STATUS_COLUMNS, "rows": [row]}
