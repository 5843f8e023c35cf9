# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters from the plan to a proxy in front of the servers. The planner is imported only when they are called."""

from __future__ import annotations

import functools
import importlib

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError

ENDPOINT = "ansible_collections.inference.fleet.plugins.plugin_utils.planning.endpoint"
NAMES = {
    "endpoint_backends": "backends",
    "endpoint_certificate": "certificate",
    "endpoint_check_access": "check_access",
    "endpoint_hosts": "hosts",
    "endpoint_key_names": "key_names",
    "endpoint_server_keys": "server_keys",
}


def call(function, *arguments, **named):
    """Return the result of a function of planning.endpoint. Raises AnsibleFilterError if it raises FleetError."""
    try:
        return getattr(importlib.import_module(ENDPOINT), function)(*arguments, **named)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Return {name: function}."""
        return {name: functools.partial(call, function) for name, function in NAMES.items()}
