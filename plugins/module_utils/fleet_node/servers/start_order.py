# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which order the servers of a node start, and which of them restart with another."""

from __future__ import annotations

from ..errors import FleetError


def start_order(entries):
    """Names of `entries` ({name: entry}), leaders first, otherwise in their order. FleetError for a circle."""
    order = []
    waiting = list(entries)
    while waiting:
        ready = [
            name
            for name in waiting
            if all(one in order or one not in entries for one in entries[name]["start"]["after"])
        ]
        if not ready:
            raise FleetError(
                "servers.start-order-circular",
                "The servers %s wait for each other: start.after goes in a circle.",
                (", ".join(waiting),),
            )
        order += ready
        waiting = [name for name in waiting if name not in ready]
    return order


def leaders_to_follow(entry):
    """Names of the servers with which this one restarts."""
    start = entry["start"]
    return start["after"] if start.get("restart_with_leader") else []


def check_order(entries):
    """FleetError where one of `entries` ({name: entry}) starts after one that is not among them, or in a circle."""
    for name, entry in entries.items():
        for leader in entry["start"]["after"]:
            if leader not in entries:
                raise FleetError(
                    "servers.leader-unknown",
                    "Server '%s' starts after '%s', which is not among the servers: %s.",
                    (name, leader, ", ".join(entries)),
                )
    start_order(entries)
