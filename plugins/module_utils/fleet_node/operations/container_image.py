# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What container_image takes and does."""

from __future__ import annotations

from ..containers.images import ensure_image, remove_image

ARGUMENTS = {
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


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    given = dict(params)
    if given.pop("state") == "absent":
        named = {key: given[key] for key in ("image", "digest", "engine", "address", "mirror")}
        return remove_image(check_mode=check_mode, **named)
    return ensure_image(check_mode=check_mode, **given)


def due(result):
    """Why the module has something to do; None where it has nothing."""
    if result["changed"]:
        return result["msg"]
    return "what an ended pull left is to be removed" if result.get("ended") else None
