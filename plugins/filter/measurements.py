# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on benchmarks."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError


def benchmark_elsewhere(*arguments, **named):
    """points.elsewhere_of()."""
    return _points().elsewhere_of(*arguments, **named)


def benchmark_points(servers, deployment, profile=None, elsewhere=()):
    """points.points(); AnsibleFilterError where the profile does not fit the servers."""
    try:
        return _points().points(servers, deployment, profile or None, elsewhere)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def benchmark_scope(deployment, profile=None):
    """points.scope_of(); AnsibleFilterError where there is no such profile."""
    try:
        return _points().scope_of(deployment, profile or None)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def _points():
    """The module, imported where it is used: Ansible loads all filters for one of them, and this brings the planner."""
    from ansible_collections.inference.fleet.plugins.plugin_utils.measure import points

    return points


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {
            "benchmark_elsewhere": benchmark_elsewhere,
            "benchmark_points": benchmark_points,
            "benchmark_scope": benchmark_scope,
        }
