# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What neuron_packages takes and does."""

from __future__ import annotations

from .. import packages

ARGUMENTS = {
    "packages": {"type": "dict", "required": True},
    "hardware": {"type": "dict", "default": {}},
    "needs": {"type": "dict", "default": {}},
    "servers": {"type": "list", "elements": "dict", "default": []},
    "installed": {"type": "list", "elements": "str", "default": []},
    "reboot_follows": {"type": "bool", "default": False},
}


def run(params, check_mode):
    """The result of the module; its warnings with it. Raises FleetError."""
    result = packages.look(check_mode=check_mode, **params)
    if result["reboot"] and not result["must_reboot"]:
        result["warnings"] = [
            "The kernel has the Neuron driver %s loaded, %s is installed; reboot the node to use it."
            % (result["loaded_driver"], result["packages"].get(packages.DRIVER))
        ]
    return result


def due(result):
    """Why something is to be installed, or the node rebooted; None where nothing is."""
    if result["must_reboot"]:
        return "the node has to be rebooted for its driver"
    return result["message"] if result["due"] else None
