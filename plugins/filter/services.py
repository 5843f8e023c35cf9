# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on services that servers share: what their units say. What they need is imported where they are used, as
Ansible loads all filters for one of them."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError


def service_container(service, **given):
    """planning.service_container(); AnsibleFilterError where that cannot be."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.planning import service_container as planning

    try:
        return planning.service_container(service, **given)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def unit_word(word):
    """systemd.unit_word() of an argument, which an inventory may have as a number; AnsibleFilterError where none is."""
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import systemd

    try:
        return systemd.unit_word(str(word))
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {"service_container": service_container, "unit_word": unit_word}
