# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of hosts, as the inventory declares them."""

from __future__ import annotations

ADDRESS, HOST = "fleet_address", "ansible_host"


def address_of(host, variables):
    """The declared address of a host. FleetError names the variable that would need facts."""
    for name in (ADDRESS, HOST):
        value = variables.get(name)
        if value:
            return str(value)
    return host
