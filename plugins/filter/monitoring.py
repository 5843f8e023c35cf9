# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters from the plan and the reports to Prometheus. The planner is imported only when they are called."""

from __future__ import annotations

import importlib

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError

MONITORING = "ansible_collections.inference.fleet.plugins.plugin_utils.planning.monitoring"


def targets(*arguments):
    """Return planning.monitoring.targets(). Raises AnsibleFilterError if it raises FleetError."""
    try:
        return importlib.import_module(MONITORING).targets(*arguments)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def limits(reports_dir):
    """Return planning.monitoring.limits()."""
    return importlib.import_module(MONITORING).limits(reports_dir)


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Return {name: function}."""
        return {"monitoring_targets": targets, "monitoring_limits": limits}
