# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables, progress lines, and reasons of unreachable hosts on the screen.

The callback prints tables at the end of a run; in runs with another stdout callback, tasks print them by show().
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading

from ansible import constants as C
from ansible import context
from ansible.utils.display import Display

from ...module_utils.fleet_node.errors import visible
from ..base.words import natural, some

CALLBACK = "inference.fleet.fleet"
WIDTH = 80  # of a title with its stars, like Ansible's own titles
FOLD = 4  # hosts
VARYING = ("since", "memory")  # differ between equal hosts
SLOWEST = re.compile(r"slowest: .*? \d+ ms")  # of a verdict; differs, too
SECONDS = re.compile(r"\d+ s\b|(?<=T)[0-9:]+Z|[0-9]{2}:[0-9]{2}:[0-9]{2}Z|of at most \d+|last time \d+")
WAITS = re.compile(r"^waiting for ([a-z0-9-]+)")


def gather(reports, report):
    """Add the rows of ``report`` {title, columns, rows}, or of a list of reports, to ``reports`` {title: report}.

    None adds nothing. A report may have `key`, the number of leading columns that identify a row: the newest row of a
    server replaces its older rows.
    """
    for one in report if isinstance(report, list) else [report] if report else []:
        known = reports.setdefault(one["title"], {"title": one["title"], "columns": one["columns"], "rows": []})
        key = one.get("key")
        newer = [row[:key] for row in one["rows"]] if key else []
        known["rows"] = [row for row in known["rows"] if row[:key] not in newer] + one["rows"]


def candidate_of(task_vars):
    """The name of the candidate, if the play tries candidates of a sweep, else None."""
    return (task_vars.get("tune_candidate") or {}).get("name")


def of_candidate(report, task_vars):
    """The report with a column for the candidate, if the play tries candidates of a sweep."""
    name = candidate_of(task_vars)
    if name is None:
        return report
    return {
        "title": report["title"] + " of candidates",
        "columns": ["candidate", *report["columns"]],
        "rows": [[name, *row] for row in report["rows"]],
    }


def cell(value):
    """A value as a line of a table."""
    if value is None:
        return "-"
    if value is True or value is False:
        return "yes" if value else "no"
    return visible(" ".join(str(value).split()))


def folded(columns, rows, equal=None):
    """Rows in which FOLD or more hosts with equal rows share them: "n1, n2, n3 and 97 more".

    The first column must be the host; a row without a host belongs to the previous one. equal: {host: key}, by default
    the rows without VARYING columns. Cells that differ show the lowest and the highest value.
    """
    if list(columns[:1]) != ["host"]:
        return rows
    blocks, host = {}, None
    for row in rows:
        host = row[0] if row[0] not in ("", None) else host
        blocks.setdefault(host, []).append(row)
    fixed = [index for index, name in enumerate(columns) if index and name not in VARYING]
    groups = {}
    for name, block in blocks.items():
        key = equal[name] if equal else repr([[SLOWEST.sub("", cell(row[index])) for index in fixed] for row in block])
        groups.setdefault((key, len(block)), []).append(name)
    shared = {name: group for group in groups.values() if len(group) >= FOLD for name in group}
    result = []
    for name, block in blocks.items():
        group = shared.get(name)
        if group is None:
            result += block
        elif name == group[0]:
            for index, row in enumerate(block):
                cells = zip(columns[1:], *(blocks[one][index][1:] for one in group))
                result.append([some(group) if row[0] == name else row[0], *(_span(*cell) for cell in cells)])
    return result


def _span(column, *values):
    """The cell for the values of several hosts: the common value, or the lowest and the highest."""
    if len(set(map(cell, values))) == 1:
        return values[0]
    if column == "hash":
        return "differs"
    ends = sorted(map(cell, values), key=natural)
    return "%s … %s" % (ends[0], ends[-1])


def lines(report):
    """A report {title, columns, rows} as lines for the screen."""
    return render(report["columns"], folded(report["columns"], report["rows"]))


def render(columns, rows):
    """A table as lines: columns as wide as their widest cell, in the order of the rows."""
    table = [[cell(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    return ["  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip() for row in table]


def progress_line(result):
    """A line on the servers of a polling result, None without servers.

    "1 of 3 ready; server-1, server-2: loading, 47 s of at most 300". Servers in the same state are listed together, and
    those that wait for another server are counted: "7 wait for server-0".
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
        named += behind.pop(leader)  # a single server shows its message
    alike = {}
    for server in named:
        words = server.get("progress") or server.get("reason") or server.get("state")
        alike.setdefault(SECONDS.sub("", str(words)), (words, []))[1].append(server["name"])
    parts = ["%s: %s" % (some(names), words) for words, names in list(alike.values())[:4]]
    if len(alike) > 4:
        parts.append("and %d more" % sum(len(names) for _words, names in list(alike.values())[4:]))
    parts += ["%d wait for %s" % (len(followers), leader) for leader, followers in behind.items()]
    return "; ".join(["%d of %d ready" % (len(servers) - len(waiting), len(servers)), *parts])


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def transfer_line(progress):
    """A line on a transfer: "downloading 45 %, 27.4 of 60.8 GiB, 312.0 MiB/s, 1 min 49 s left, FILE".

    progress: {percent, bytes_done, bytes_total, rate_bytes_s, eta_s, file, phase, waiting}; all keys are optional.
    """
    first = str(progress.get("phase") or "working")
    if progress.get("percent") is not None and progress.get("bytes_total") != 0:
        # 99.9 is not complete; 0 bytes have no percentage
        first += " %d %%" % int(progress["percent"])
    parts = [first]
    done, total = progress.get("bytes_done"), progress.get("bytes_total")
    if total:
        unit = _unit(total)
        parts.append("%s of %s %s" % (_scaled(done or 0, unit), _scaled(total, unit), UNITS[unit]))
    elif done:
        parts.append(amount(done))
    if progress.get("rate_bytes_s") is not None:
        parts.append(amount(progress["rate_bytes_s"]) + "/s")
    if progress.get("eta_s") is not None:
        parts.append("%s left" % duration(progress["eta_s"]))
    if progress.get("file"):
        parts.append(cell(progress["file"]))
    if progress.get("waiting"):
        parts.append("waiting " + cell(progress["waiting"]))
    return ", ".join(parts)


def duration(seconds):
    """Seconds for the screen: "48 s", "1 min 49 s", "2 h 5 min"."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return "%d s" % seconds
    if seconds < 3600:
        return "%d min %d s" % divmod(seconds, 60)
    return "%d h %d min" % divmod(seconds // 60, 60)


def amount(size):
    """A number of bytes with its unit."""
    return "%s %s" % (_scaled(size, _unit(size)), UNITS[_unit(size)])


def _unit(size):
    """Index of the largest unit in which `size` is at least one."""
    return max(0, min(len(UNITS) - 1, (int(size).bit_length() - 1) // 10))


def _scaled(size, unit):
    return "%d" % size if unit == 0 else "%.1f" % (size / (1 << 10 * unit))


STATUS_COLUMNS = ["host", "server", "port", "state", "ready", "since", "restarts", "memory", "drift"]


def status_report(host, servers):
    """The report of a host's servers as engine_servers_info returns them: a line for each difference."""
    rows, keys = [], ("name", "port", "state", "ready", "since", "restarts")
    for server in servers:
        memory = server.get("memory_mib")
        found = server.get("differences")
        lines = [one["text"] for one in found or ()] or ["no plan" if found is None else "as planned"]
        lines += ["note: " + note for note in server.get("notes") or ()]
        memory = None if memory is None else "%.1f GiB" % (memory / 1024.0)
        rows.append([host, *map(server.get, keys), memory, lines[0]])
        rows += [[""] * (len(STATUS_COLUMNS) - 1) + [line] for line in lines[1:]]
    return {"title": "Status", "columns": STATUS_COLUMNS, "rows": rows}


def unreachable_report(host):
    """The row of an unreachable host in status_report()."""
    row = [host, *[None] * (len(STATUS_COLUMNS) - 2), "unreachable"]
    return {"title": "Status", "columns": STATUS_COLUMNS, "rows": [row]}


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


PLAYBOOK = "playbooks/replace_node.yml"
NAMED = "inference.fleet.replace_node"
SENT = re.compile(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[A-Za-z0-9+/]{43})")
OFFENDING = re.compile(r"Offending \S+ key in (\S+:\d+)")
CHANGED = re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed")
UNKNOWN = re.compile(r"No \S+ host key is known for|Host key verification failed")


def reason(message, host):
    """A sentence about Ansible's message for an unreachable host."""
    message = str(message)
    if CHANGED.search(message):
        return _changed(message, host)
    if UNKNOWN.search(message) and "revoked" not in message.lower():
        return "its host key is not in known_hosts; %s shows it" % replace_command(host)
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("debug")]
    return lines[-1].rpartition("reached over ssh: ")[2][:300] if lines else "no message was returned"


def _changed(message, host):
    sent, place = SENT.search(message), OFFENDING.search(message)
    text = "its host key has changed"
    if sent:
        text += " to %s (%s)" % (sent.group(2), sent.group(1))
    if place:
        text += ", %s has another" % place.group(1)
    return text + "; if the node was replaced, and that is its fingerprint: %s" % replace_command(
        host, sent.group(2) if sent else "SHA256:…"
    )


def replace_command(host, fingerprint=None):
    """The command that accepts a node's new host key, with paths relative to the working directory."""
    playbook = PLAYBOOK if os.path.exists(PLAYBOOK) else NAMED
    words = ["ansible-playbook", playbook]
    for source in context.CLIARGS.get("inventory") or ():
        if "," not in source:
            near = os.path.relpath(source)
            source = source if near.startswith("..") else near
        words += ["-i", source]
    words += ["-e", "fleet_node=%s" % host]
    if fingerprint:
        words += ["-e", "fleet_host_key=%s" % fingerprint]
    return " ".join(word if re.match(r"^[\w@%+=:,./…-]+$", word) else shlex.quote(word) for word in words)


def unreachable_table(reasons):
    """{host: reason} as a report {title, columns, rows}."""
    return {
        "title": "Unreachable",
        "columns": ["host", "reason"],
        "rows": [[host, reasons[host]] for host in sorted(reasons)],
    }
