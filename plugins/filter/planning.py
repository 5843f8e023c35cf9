# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters from the plan to a proxy and to Prometheus. They import the planner only when they are called."""

from __future__ import annotations

import functools
import importlib

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError

PLANNING = "ansible_collections.inference.fleet.plugins.plugin_utils.planning."
FUNCTIONS = {
    "endpoint": ("backends", "certificate", "check_access", "hosts", "key_names", "server_keys"),
    "monitoring": ("limits", "targets"),
}


def call(module, function, *arguments, **named):
    """Return the result of a function of a module of planning. Raises AnsibleFilterError if it raises FleetError."""
    try:
        return getattr(importlib.import_module(PLANNING + module), function)(*arguments, **named)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Return {name: function}: endpoint_backends is backends() of planning.endpoint."""
        return {
            "%s_%s" % (module, name): functools.partial(call, module, name)
            for module, names in FUNCTIONS.items()
            for name in names
        }
