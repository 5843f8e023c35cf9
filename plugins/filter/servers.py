# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on lists of plan entries and servers."""

from __future__ import annotations

import math


def secret_names(servers):
    """Names of the variables that hold the servers' secrets, sorted, each once."""
    return sorted({variable for entry in servers for variable in entry["secrets"].values()})


def poll_delay(servers):
    """Seconds between two looks: the shortest that a server asks for, at least 1."""
    return max(1, math.ceil(min((entry["health"]["poll_s"] for entry in servers), default=1)))


def poll_retries(servers):
    """How often to look: the longest budget, and that of those started after another one on top."""
    budget = max((entry["health"]["budget_s"] for entry in servers), default=1)
    chains = 2 if any(entry["start"]["after"] for entry in servers) else 1
    return max(1, math.ceil(budget * chains / poll_delay(servers)))


def log_lines(servers):
    """The servers' log tails as lines: a heading for each, then its lines."""
    lines = []
    for server in servers:
        tail = server.get("log_tail") or ""
        tail = tail.splitlines() if isinstance(tail, str) else list(tail)
        lines += ["== %s (%s) ==" % (server["name"], server.get("state")), *tail]
    return lines


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {
            "log_lines": log_lines,
            "poll_delay": poll_delay,
            "poll_retries": poll_retries,
            "secret_names": secret_names,
        }
