# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter on the hosts of a service's group."""

from __future__ import annotations


def service_members(*arguments, **named):
    """members.members(); the planner is imported where it is used, as Ansible loads all filters for one of them."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.planning.members import members

    return members(*arguments, **named)


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {"service_members": service_members}
