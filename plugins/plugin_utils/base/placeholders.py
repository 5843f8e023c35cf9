# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The placeholders ${name} in the settings of a server, and their values."""

from __future__ import annotations

import re

from ...module_utils.fleet_node.errors import FleetError
from .checks import invalid
from .words import close_to

# Names that ports and services cannot have, because they are placeholders already.
RESERVED = frozenset(
    (
        "name", "group", "index", "role", "port", "devices", "device", "device_range", "device_count",
        "container_devices", "devices_first", "config", "max_num_seqs", "model", "model_id", "draft", "draft_tokens",
        "venv", "bind", "bind_device", "bind_interface", "lnc", "host", "recipe", "root", "lib", "models", "venvs",
        "encodings", "work", "compile", "artifact", "artifact_key", "cache", "address",
    )
)  # fmt: skip
PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")


def substitute(value, context, where):
    """Return ``value`` with each ${name} replaced from ``context``, also in nested lists and mappings. $${ yields ${.

    Raises FleetError, with the place, the placeholder and the allowed placeholders, if a placeholder is unknown or if
    its value is None (such as a port that is not set).
    """
    if isinstance(value, dict):
        for key in value:
            if PLACEHOLDER.search(key):
                raise invalid("the key of " + where, key, "a key without placeholders")
        return {key: substitute(item, context, "%s.%s" % (where, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, context, "%s[%d]" % (where, index)) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def one(match):
        if match.group(0) == "$${":
            return "${"
        name = match.group(1)
        if not match.group(2):
            raise invalid(where, value, "${name}, or $${ for ${ itself")
        if context.get(name) is None:
            close = close_to(name.strip(), [key for key in context if context[key] is not None])
            raise FleetError(
                "plan.placeholder-unknown",
                "%s uses ${%s}, which %s%s; allowed: %s",
                (
                    where,
                    name,
                    "has no value here" if name in context else "is unknown",
                    "; did you mean ${%s}?" % close if close else "",
                    ", ".join("${%s}" % key for key in sorted(context) if context[key] is not None)
                    + ". Use one of these.",
                ),
            )
        return str(context[name])

    return PLACEHOLDER.sub(one, value)


def base_context(recipe, paths, host):
    """Return {name: value} of the placeholders that apply to all servers of a host. paths: NodePaths."""
    return {
        "host": host,
        "recipe": recipe["name"],
        "root": paths.root,
        "lib": paths.lib,
        "models": paths.models,
        "venvs": paths.venvs,
        "encodings": paths.encodings,
    }


def strings(value):
    """Yield all strings in nested mappings and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [string for item in value for string in strings(item)]
    return [value] if isinstance(value, str) else []
