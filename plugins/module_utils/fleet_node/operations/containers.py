# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on container engines and images."""

from __future__ import annotations

from ..containers.engine import ENGINES
from ..containers.host_settings import RESTARTS, STATES, ensure
from ..containers.images import ensure_image, remove_image
from ..node.os_errors import os_error
from ..operation import Operation

TEXTS = {"type": "list", "elements": "str", "default": []}

CONTAINER_ENGINE = {
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


def container_engine(params, check_mode):
    """The result of the module. Raises FleetError."""
    try:
        return ensure(check_mode=check_mode, **params)
    except OSError as error:
        raise os_error("The container engine cannot be set up", error) from error


def container_engine_due(result):
    """Why the module has something to do; None where it has nothing."""
    if result["missing"]:
        return "%s is not installed" % ", ".join(result["missing"])
    if result["changed"]:
        return "; ".join(result["actions"]) or "settings of %s differ" % result["engine"]
    return None


CONTAINER_IMAGE = {
    "image": {"type": "str", "required": True},
    "digest": {"type": "str"},
    "engine": {"type": "str", "default": "auto", "choices": ["auto", "docker", "podman"]},
    "address": {"type": "str"},
    "mirror": {"type": "raw"},
    "auth": {"type": "dict", "no_log": False},  # Module hides its passwords, not its usernames
    "environment": {"type": "dict", "default": {}},
    "wait_s": {"type": "int", "default": 3600},
    "root": {"type": "path", "default": ""},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
}


def container_image(params, check_mode):
    """The result of the module. Raises FleetError."""
    given = dict(params)
    if given.pop("state") == "absent":
        named = {key: given[key] for key in ("image", "digest", "engine", "address", "mirror")}
        return remove_image(check_mode=check_mode, **named)
    return ensure_image(check_mode=check_mode, **given)


def container_image_due(result):
    """Why the module has something to do; None where it has nothing."""
    if result["changed"]:
        return result["msg"]
    return "what an ended pull left is to be removed" if result.get("ended") else None


OPERATIONS = {
    "container_engine": Operation(CONTAINER_ENGINE, container_engine, due=container_engine_due),
    "container_image": Operation(CONTAINER_IMAGE, container_image, due=container_image_due),
}
