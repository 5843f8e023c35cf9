# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a container engine for the role container_engine, which applies the settings.

state: present compares the settings with those of the last run and changes nothing; applied records them; effective
restarts docker if settings wait for that; absent removes the files of the role.
"""

from __future__ import annotations

from ..containers.engine import ENGINES
from ..containers.host_settings import Host, apply_pending, check, record, remove
from ..node.os_errors import os_error
from ..node.redact import checked_variables

STRINGS = {"type": "list", "elements": "str", "default": []}
ARGUMENTS = {
    "engine": {"type": "str", "default": "docker", "choices": list(ENGINES)},
    "settings": {"type": "dict", "default": {}},
    "registry_mirrors": STRINGS,
    "insecure_registries": STRINGS,
    "registries": STRINGS,
    "ca_bundle": {"type": "str", "default": ""},
    "proxy_env": {"type": "dict", "default": {}},
    "restart": {"type": "str", "default": "auto", "choices": ["auto", "always", "never"]},
    "state": {"type": "str", "default": "present", "choices": ["present", "applied", "effective", "absent"]},
    "root": {"type": "str", "default": ""},
}
INPUTS = ("settings", "registry_mirrors", "insecure_registries", "registries", "ca_bundle", "proxy_env")


def run(params, check_mode):
    """The result of the operation. Raises FleetError."""
    host = Host(params["engine"], params["root"])
    inputs = {key: params[key] for key in INPUTS}
    result = {"changed": False, "engine": host.kind, "due": None, "missing": []}
    try:
        if params["state"] == "present":
            checked_variables(inputs["proxy_env"])
            return {**result, **check(host, inputs)}
        if params["state"] == "applied":
            if not check_mode:
                record(host, inputs)
            return result
        if params["state"] == "effective":
            keys = apply_pending(host, params["restart"], check_mode)
            return {**result, "changed": bool(keys), "due": "restart docker for %s" % keys if keys else None}
        removed = remove(host, check_mode)
        return {**result, "changed": bool(removed), "removed": removed}
    except OSError as error:
        raise os_error("The container engine cannot be set up", error) from error


def due(result):
    """Why the role has something to do; None if it has nothing."""
    return result["due"]
