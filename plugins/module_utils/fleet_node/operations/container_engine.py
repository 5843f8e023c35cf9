# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What container_engine takes and does."""

from __future__ import annotations

from ..containers.engine import ENGINES
from ..containers.host_settings import RESTARTS, STATES, ensure
from ..node.os_errors import os_error

TEXTS = {"type": "list", "elements": "str", "default": []}
ARGUMENTS = {
    "engine": {"type": "str", "default": "docker", "choices": list(ENGINES)},
    "allow_missing": {"type": "bool", "default": False},
    "settings": {"type": "dict", "default": {}},
    "registry_mirrors": TEXTS,
    "insecure_registries": TEXTS,
    "registries": TEXTS,
    "ca_bundle": {"type": "str", "default": ""},
    "proxy_env": {"type": "dict", "default": {}},
    "restart": {"type": "str", "default": "auto", "choices": list(RESTARTS)},
    "state": {"type": "str", "default": "present", "choices": list(STATES)},
    "root": {"type": "str", "default": ""},
}


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    try:
        return ensure(check_mode=check_mode, **params)
    except OSError as error:
        raise os_error("The container engine cannot be set up", error) from error


def due(result):
    """Why the module has something to do; None where it has nothing."""
    if result["missing"]:
        return "%s is not installed" % ", ".join(result["missing"])
    if result["changed"]:
        return "; ".join(result["actions"]) or "settings of %s differ" % result["engine"]
    return None
