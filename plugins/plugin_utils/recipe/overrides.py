# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overrides from the inventory, deep-merged over a recipe in the order of the variables' names."""

from __future__ import annotations

import re

from ..base.checks import Mistakes, invalid, unknown_key
from ..base.words import close_to, names_secret, path_text, show

VARIABLE = re.compile(r"^fleet_override(_\w+)?$")
# A null in these keys of a group or an instance removes the recipe's value for all servers; planning applies it.
KEPT = ("arguments", "environment", "container", "secrets")


def override_names(variables):
    """Return the names of override variables among ``variables``, sorted: the order in which they are merged."""
    return sorted(name for name in variables if VARIABLE.match(name))


def combine(layers):
    """Merge ``layers`` [(variable name, mapping)] into a mapping.

    Return (mapping, {path tuple: variable name} of all leaves). Raises FleetError if two layers set a leaf to different
    values, because the result must not depend on the alphabetical order of variables.
    """
    merged, origin, mistakes = {}, {}, Mistakes()
    for name, layer in layers:
        if isinstance(layer, dict):
            _add(merged, layer, (), name, origin, mistakes)
        elif layer is not None:
            mistakes.keep(invalid(name, layer, "a mapping of recipe keys to values; with -e as JSON"))
    mistakes.raise_any()
    return merged, origin


def _add(merged, layer, above, name, origin, mistakes):
    """Merge a layer, or a part of it, into `merged`. above: path of both."""
    for key, value in layer.items():
        path = (*above, str(key))
        if key not in merged:
            merged[key] = {} if isinstance(value, dict) else value
            if value == {} or not isinstance(value, dict):
                origin[path] = name
        if isinstance(value, dict) and isinstance(merged[key], dict):
            _add(merged[key], value, path, name, origin, mistakes)
        elif value != merged[key]:
            known = ", ".join(owners(origin, path))
            values = (name, path_text(path), shown(path, value), known, shown(path, merged[key]))
            mistakes.add("override.leaf-set-twice", *values)


def owners(origin, path):
    """Return the names of the variables that set the value at a path or a part of it. origin: of combine()."""
    return sorted({name for leaf, name in origin.items() if leaf[: len(path)] == path or path[: len(leaf)] == leaf})


def check_nulls(base, override, path=()):
    """Raises FleetError for a null that removes nothing, although there is a key with a similar name."""
    if isinstance(base, list) and isinstance(override, dict) and all(isinstance(item, dict) for item in base):
        base = {str(group_name(item)): item for item in base}
    if not isinstance(override, dict):
        return
    known = base if isinstance(base, dict) else {}
    for key, value in override.items():
        here = (*path, key)
        if value is not None:
            check_nulls(known.get(key), value, here)
        elif len(here) == 3 and here[0] == "instances" and key not in (*KEPT, "config", *known):
            raise invalid(path_text(here), None, "no null, since it removes nothing there")
        elif key not in known and close_to(key, known, 0.85):
            allowed = "a key of the recipe, which null removes, such as %s"
            raise invalid(path_text(here), None, allowed % close_to(key, known, 0.85))


def shown(path, value):
    """Return a value for a message, masked if the name of its key indicates a secret."""
    if isinstance(value, dict):
        return "a mapping"
    return "another value" if any(map(names_secret, path)) else show(value)


def apply(base, override):
    """Return ``base`` with ``override`` merged over it. The arguments are not changed.

    Mappings merge key by key, null removes, lists and scalars replace. A mapping over a list of named mappings (the
    recipe's servers) merges into the items of those names.
    """
    if isinstance(override, dict) and isinstance(base, list) and all(isinstance(item, dict) for item in base):
        return _apply_named(base, override, _with_nulls)
    if not isinstance(override, dict) or not isinstance(base, dict):
        return _without_nulls(override)
    result = dict(base)
    for key, value in override.items():
        if value is None:
            result.pop(key, None)
        elif key in base:
            result[key] = (apply_container if key == "container" else apply)(base[key], value)
        else:
            result[key] = value if key in KEPT else _without_nulls(value)
    return result


def apply_container(base, override):
    """`apply` for a container: the digest in ``base`` does not apply to a different image."""
    return apply(_same_image(base, override), override)


def _same_image(base, override):
    if isinstance(base, dict) and isinstance(override, dict) and override.get("image") not in (None, base.get("image")):
        return {key: value for key, value in base.items() if key != "digest"}
    return base


def extend(base, recipe):
    """Return ``recipe`` merged over ``base``, the file that it extends: a recipe as if written in a single file.

    As apply(), but null removes keys of ``base`` only: other nulls remain, because they are values there, of a profile
    without a limit, or of an overlay, which removes keys when it is applied. New keys have the place next to
    keys of ``base`` that they have in ``recipe``, because the order of arguments is that of the command line.
    """
    if isinstance(recipe, dict) and isinstance(base, list) and all(isinstance(item, dict) for item in base):
        return _apply_named(base, recipe, extend)
    if not isinstance(recipe, dict) or not isinstance(base, dict):
        return recipe
    order = list(base)
    at = next((order.index(key) for key in recipe if key in base), len(order))
    for key in recipe:
        if key not in base:
            order.insert(at, key)
        at = order.index(key) + 1
    result = {}
    for key in order:
        value, below = recipe.get(key), base.get(key)
        if key not in recipe:
            result[key] = below
        elif key not in base:
            result[key] = value
        elif value is not None or below is None:
            result[key] = extend(_same_image(below, value) if key == "container" else below, value)
    return result


def group_name(group):
    """Return the name of a server group, by default its role."""
    return group.get("name") or group.get("role")


def _apply_named(base, override, merge):
    names = [group_name(item) for item in base]
    unknown = sorted(key for key in override if key not in names)
    if unknown:
        raise unknown_key("a list of named items", unknown[0], override[unknown[0]], list(map(str, names)))
    result = []
    for name, item in zip(names, base):
        if name not in override:
            result.append(item)
        elif override[name] is not None:
            result.append(merge(item, override[name]))
    return result


def _with_nulls(item, override):
    """apply() that keeps nulls, which remove the recipe's values for all servers. The group may already have nulls."""
    result = apply(item, override)
    for key in KEPT:
        given = override.get(key) if isinstance(override, dict) else None
        if isinstance(given, dict) and isinstance(result.get(key), dict):
            result[key] = {**result[key], **{name: None for name, value in given.items() if value is None}}
    return result


def _without_nulls(value):
    if isinstance(value, dict):
        return {key: item if key in KEPT else _without_nulls(item) for key, item in value.items() if item is not None}
    return value
