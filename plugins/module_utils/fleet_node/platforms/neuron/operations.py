# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations of the platform neuron."""

from __future__ import annotations

from ...errors import FleetError
from ...operation import Operation
from . import artifact_archives, packages

COMPILED_ARTIFACT = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "state": {"type": "str", "choices": ["exported", "imported"], "default": "imported"},
    "source": {"type": "path"},
    "remote_source": {"type": "bool", "default": False},
    "destination": {"type": "path"},
    "remote_destination": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
}


def compiled_artifact(params, check_mode):
    """The result of the module. Raises FleetError."""
    try:
        if params["state"] == "exported":
            return artifact_archives.export(
                params["servers"], params["destination"], params["force"], check_mode=check_mode
            )
        return artifact_archives.take_over(params["servers"], params["source"], check_mode=check_mode)
    except OSError as error:
        raise FleetError("artifact.cannot-bring", "The compiled artifacts cannot be brought: %s.", (error,)) from error


NEURON_PACKAGES = {
    "packages": {"type": "dict", "required": True},
    "hardware": {"type": "dict", "default": {}},
    "needs": {"type": "dict", "default": {}},
    "servers": {"type": "list", "elements": "dict", "default": []},
    "installed": {"type": "list", "elements": "str", "default": []},
    "reboot_follows": {"type": "bool", "default": False},
}


def neuron_packages(params, check_mode):
    """The result of the module; its warnings with it. Raises FleetError."""
    result = packages.look(check_mode=check_mode, **params)
    if result["reboot"] and not result["must_reboot"]:
        result["warnings"] = [
            "The kernel has the Neuron driver %s loaded, %s is installed; reboot the node to use it."
            % (result["loaded_driver"], result["packages"].get(packages.DRIVER))
        ]
    return result


def neuron_packages_due(result):
    """Why something is to be installed, or the node rebooted; None where nothing is."""
    if result["must_reboot"]:
        return "the node has to be rebooted for its driver"
    return result["message"] if result["due"] else None


OPERATIONS = {
    "compiled_artifact": Operation(
        COMPILED_ARTIFACT, compiled_artifact, rules={"required_if": [("state", "exported", ("destination",))]}
    ),
    "neuron_packages": Operation(NEURON_PACKAGES, neuron_packages, due=neuron_packages_due),
}
