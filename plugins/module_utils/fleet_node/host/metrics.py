# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics of a node's servers for Prometheus, in a file that node exporter's textfile collector reads."""

from __future__ import annotations

import os
import re

from .files import make_directory, names_in, read_text, record_lock, write_atomic

FAMILIES = {
    "fleet_server_verified": "Whether the last verdict of the server was good.",
    "fleet_server_last_verdict_timestamp_seconds": "Time of the last verdict of the server.",
    "fleet_server_converged": "Whether the process of the server runs the definition with this hash.",
    "fleet_server_key_timestamp_seconds": "Time at which the API keys of the server were deployed.",
    "fleet_server_answers": "Whether the watchdog got an answer from the server when it last asked.",
}
SAMPLE = re.compile(r'(\w+)(\{server="([^"]*)".*\}) (\S+)')


def update(folder, servers, samples):
    """Replace metrics of servers in the file below `folder`; metrics of servers without a definition are removed.

    servers: folder of the definitions. samples: {server: {family: number, or (number, {label: value})}}. Names and
    values of labels contain neither quotes nor backslashes. Raises OSError.
    """
    path = file_in(folder)
    make_directory(folder)
    with record_lock(folder):
        kept = {}
        for family, labels, server, number in SAMPLE.findall(read_text(path) or ""):
            if family not in samples.get(server, ()):
                kept[family, server] = (labels, number)
        for server, families in samples.items():
            for family, value in families.items():
                number, more = value if isinstance(value, tuple) else (value, {})
                labels = ",".join('%s="%s"' % one for one in {"server": server, **more}.items())
                kept[family, server] = ("{%s}" % labels, "%d" % number)
        defined = set(names_in(servers, suffix=".json"))
        lines = []
        for family, words in FAMILIES.items():
            lines += ["# HELP %s %s" % (family, words), "# TYPE %s gauge" % family]
            shown = [one for name, one in sorted(kept) if name == family and one in defined]
            lines += ["%s%s %s" % (family, *kept[family, server]) for server in shown]
        write_atomic(path, "\n".join(lines) + "\n")


def file_in(folder):
    """The path of the file."""
    return os.path.join(folder, "inference-fleet.prom")
