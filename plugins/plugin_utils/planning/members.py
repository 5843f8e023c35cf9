# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The members of a service, by what the inventory declares of a group's hosts; no node is asked."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.base.addresses import address_of

LOOPBACK = "127.0.0.1"


def members(hosts, variables_of, name_key, loopback=False):
    """[{host, name, address}] in the order of the group.

    variables_of: host -> mapping of its variables. name_key: the variable that gives a member another name than its
    host's. loopback: a member that is alone is reached on its own host only.
    """
    alone = loopback and len(hosts) == 1
    found = []
    for host in hosts:
        variables = variables_of[host]
        name = variables.get(name_key) or host
        found.append({"host": host, "name": str(name), "address": LOOPBACK if alone else address_of(host, variables)})
    return found
