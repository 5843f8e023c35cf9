# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on benchmarks, and on services that servers share.

Ansible loads all filters when it needs one of them, so these import the planner only when they are called.
"""

from __future__ import annotations

import importlib

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError

PLUGINS = "ansible_collections.inference.fleet.plugins."
POINTS = "plugin_utils.measure.points"


def _call(module, function, *arguments, **named):
    """Return the result of a function. Raises AnsibleFilterError if it raises FleetError."""
    try:
        return getattr(importlib.import_module(PLUGINS + module), function)(*arguments, **named)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def benchmark_elsewhere(entries, variables_of):
    """points.elsewhere_of()."""
    return _call(POINTS, "elsewhere_of", entries, variables_of)


def benchmark_points(servers, deployment, profile=None, elsewhere=()):
    """points.points()."""
    return _call(POINTS, "points", servers, deployment, profile or None, elsewhere)


def benchmark_scope(deployment, profile=None):
    """points.scope_of()."""
    return _call(POINTS, "scope_of", deployment, profile or None)


def image_reference(image, digest=""):
    """Return the name of a pulled image on a node."""
    return _call("module_utils.fleet_node.containers.engine", "digest_tag", image, digest) if digest else image


def service_members(*arguments, **named):
    """planning.services.members()."""
    return _call("plugin_utils.planning.services", "members", *arguments, **named)


def unit_word(word):
    """systemd.unit_word() of an argument, which may be a number in an inventory."""
    return _call("module_utils.fleet_node.services.systemd", "unit_word", str(word))


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Return {name: function}."""
        return {
            "benchmark_elsewhere": benchmark_elsewhere,
            "benchmark_points": benchmark_points,
            "benchmark_scope": benchmark_scope,
            "image_reference": image_reference,
            "service_members": service_members,
            "unit_word": unit_word,
        }
