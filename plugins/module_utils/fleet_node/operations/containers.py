# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on container engines and images."""

from __future__ import annotations

import operator

from ..containers.engine import ENGINES
from ..containers.host_settings import Host, check, record, remove
from ..containers.images import ensure_image, remove_image
from ..host.os_errors import os_error
from ..host.redact import checked_variables
from ..operation import Operation

STRINGS = {"type": "list", "elements": "str", "default": []}
INPUTS = ("settings", "registry_mirrors", "insecure_registries", "registries", "ca_bundle", "proxy_env")

CONTAINER_ENGINE = {
    "engine": {"type": "str", "default": "docker", "choices": list(ENGINES)},
    "settings": {"type": "dict", "default": {}},
    "registry_mirrors": STRINGS,
    "insecure_registries": STRINGS,
    "registries": STRINGS,
    "ca_bundle": {"type": "str", "default": ""},
    "proxy_env": {"type": "dict", "default": {}},
    "state": {"type": "str", "default": "present", "choices": ["present", "applied", "absent"]},
    "root": {"type": "str", "default": ""},
}


def container_engine(params, check_mode):
    """The state of a container engine for the role container_engine, which applies the settings. Raises FleetError.

    state: present compares the settings with those of the last run and changes nothing; applied records them; absent
    removes the files of the role.
    """
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
        removed = remove(host, check_mode)
        return {**result, "changed": bool(removed), "removed": removed}
    except OSError as error:
        raise os_error("The container engine cannot be set up", error) from error


CONTAINER_IMAGE = {
    "image": {"type": "str", "required": True},
    "digest": {"type": "str"},
    "engine": {"type": "str", "default": "docker", "choices": list(ENGINES)},
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
    """Why the module has something to do; None if it has nothing."""
    if result["changed"]:
        return result["msg"]
    return "files of an ended pull must be removed" if result.get("ended") else None


OPERATIONS = {
    "container_engine": Operation(CONTAINER_ENGINE, container_engine, due=operator.itemgetter("due")),
    "container_image": Operation(CONTAINER_IMAGE, container_image, due=container_image_due),
}
