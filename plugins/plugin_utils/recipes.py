# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes: where they are found, how they are read, and what an inventory makes of them."""

from __future__ import annotations

import difflib
import functools
import json
import os

from ansible_collections.inference.fleet.plugins.module_utils.entry import canonical
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils import overrides
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe_schema import (
    COLLECTION,
    coerce,
    path_text,
    problems,
)

try:
    import yaml
except ImportError:
    HAS_YAML = False
    SafeLoader = object
else:
    HAS_YAML = True
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

OWN_RECIPES = os.path.join(COLLECTION, "recipes")


class _Loader(SafeLoader):
    """YAML that refuses a key given twice: the second one would win without a word."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _value in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise FleetError(
                    "line %d: the key '%s' is given twice; keep one." % (key_node.start_mark.line + 1, key)
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def available(paths):
    """Names of the recipes in ``paths``, sorted."""
    names = set()
    for folder in paths:
        if os.path.isdir(folder):
            names.update(name[:-4] for name in os.listdir(folder) if name.endswith(".yml"))
    return sorted(names)


def find_recipe(name, paths):
    """Path of the recipe ``name``: the first of ``paths`` that has it, else the collection's own, else FleetError."""
    folders = [*paths, OWN_RECIPES]
    if isinstance(name, str) and name:
        for folder in folders:
            path = os.path.join(folder, name + ".yml")
            if os.path.basename(name) == name and os.path.isfile(path):
                return path
    known = available(folders)
    close = difflib.get_close_matches(str(name), known, 1)
    raise FleetError(
        "fleet_recipe is %s, but there is no such recipe%s; allowed: %s. Looked in: %s."
        % (json.dumps(name), "; did you mean '%s'?" % close[0] if close else "", ", ".join(known), ", ".join(folders))
    )


@functools.cache
def _load(path, _stamp):
    label = label_of(path)
    if not HAS_YAML:
        raise FleetError("The Python package PyYAML is missing on the controller; it comes with ansible-core.")
    try:
        with open(path, encoding="utf-8") as stream:
            recipe = yaml.load(stream, Loader=_Loader)
    except OSError as error:
        raise FleetError("%s cannot be read: %s." % (label, error.strerror)) from error
    except FleetError as error:
        raise FleetError("%s: %s" % (label, error.message)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FleetError("%s is no valid YAML: %s." % (label, " ".join(str(error).split()))) from error
    if not isinstance(recipe, dict):
        raise FleetError("%s holds %s; allowed: a mapping." % (label, type(recipe).__name__))
    found = problems(recipe)
    if not found and recipe["name"] != os.path.basename(path)[:-4]:
        found = [(["name"], "'name' is \"%s\"; allowed: the file's own name, %s"
                  % (recipe["name"], os.path.basename(path)[:-4]))]  # fmt: skip
    if found:
        raise FleetError("\n".join("%s: %s." % (label, text) for _path, text in found))
    return recipe


def label_of(path):
    """How a recipe file is named in messages: the collection's own as recipes/x.yml, others by their whole path."""
    if os.path.dirname(os.path.abspath(path)) == OWN_RECIPES:
        return "recipes/" + os.path.basename(path)
    return path


def load_recipe(path):
    """The recipe in ``path``, validated (FleetError). Read once while the file does not change; read-only."""
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        stamp = 0
    return _load(path, stamp)


_resolved = {}


def resolve_recipe(path, layers):
    """The recipe in ``path`` with the overrides ``layers`` [(variable, mapping)] laid over it, validated again.

    Memoised by the content of both, so that a hundred equal hosts cost one validation. FleetError names the variable
    where an override is at fault, the file where the recipe is.
    """
    recipe = load_recipe(path)
    key = (path, os.stat(path).st_mtime_ns, canonical(layers))
    if key not in _resolved:
        _resolved[key] = _resolve(recipe, path, layers)
    return _resolved[key]


def _resolve(recipe, path, layers):
    merged, origin = overrides.combine(layers)
    if not merged:
        return recipe
    names = ", ".join(name for name, layer in layers if layer)
    try:
        result = overrides.apply(recipe, coerce(merged))
    except FleetError as error:
        raise FleetError("%s: %s" % (names, error.message)) from error
    result = coerce(result)
    found = problems(result)
    if found:
        raise FleetError("\n".join("%s: %s." % (_blame(where, origin, names), text) for where, text in found))
    if result["name"] != recipe["name"] or result["schema"] != recipe["schema"]:
        raise FleetError(
            "%s: 'name' and 'schema' of a recipe cannot be overridden; copy %s instead." % (names, label_of(path))
        )
    return result


def _blame(where, origin, names):
    """The variable that set what is at ``where``; all override variables where it cannot be told."""
    keys = tuple(str(part) for part in where if not isinstance(part, int))
    best = [name for path, name in origin.items() if path[: len(keys)] == keys or keys[: len(path)] == path]
    return ", ".join(sorted(set(best))) or names


__all__ = ["available", "find_recipe", "label_of", "load_recipe", "path_text", "resolve_recipe"]
