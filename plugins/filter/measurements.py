# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on benchmarks."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.measure.points import elsewhere_of, points, scope_of


def benchmark_points(servers, deployment, profile=None, elsewhere=()):
    """points.points(); AnsibleFilterError where the profile does not fit the servers."""
    try:
        return points(servers, deployment, profile or None, elsewhere)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def benchmark_scope(deployment, profile=None):
    """points.scope_of(); AnsibleFilterError where there is no such profile."""
    try:
        return scope_of(deployment, profile or None)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {
            "benchmark_elsewhere": elsewhere_of,
            "benchmark_points": benchmark_points,
            "benchmark_scope": benchmark_scope,
        }
