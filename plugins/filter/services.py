# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for shared services. Their imports are in the functions, because Ansible loads all filters for one."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError


def image_reference(image, digest=""):
    """The name under which a pulled image is on a node."""
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine

    return engine.digest_tag(image, digest) if digest else image


def service_members(*arguments, **named):
    """planning.services.members()."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.planning import services

    return services.members(*arguments, **named)


def unit_word(word):
    """systemd.unit_word() of an argument, which may be a number in an inventory. Raises AnsibleFilterError."""
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import systemd

    try:
        return systemd.unit_word(str(word))
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {"image_reference": image_reference, "service_members": service_members, "unit_word": unit_word}
