# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe schema: coercion of strings from the command line, errors that name key, value and what is allowed.

Beside JSON schema's own keywords a node has `allowed`, what its pattern means in words; `examples` are shown with it.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import (
    FALSE,
    NUMBER,
    TRUE,
    WHOLE,
    odd_characters,
    path_text,
    show,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.models import FAMILIES
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS

try:
    import jsonschema
except ImportError:
    HAS_JSONSCHEMA = False
else:
    HAS_JSONSCHEMA = True

COLLECTION = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
REQUIREMENT = "jsonschema>=4.23,<5"
SCHEMA_PATH = os.path.join(COLLECTION, "recipes", "recipe.schema.json")
TYPE_NAMES = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


@functools.lru_cache(maxsize=1)
def recipe_schema():
    """The JSON schema of a recipe, with the platforms, engines and families of models there are; read-only."""
    with open(SCHEMA_PATH, encoding="utf-8") as stream:
        schema = json.load(stream)
    properties = schema["properties"]
    properties["platform"]["enum"], properties["engine"]["enum"] = list(PLATFORMS), list(ENGINES)
    schema["$defs"]["backend"]["enum"] = sorted({name for engine in ENGINES.values() for name in engine.wraps})
    schema["$defs"]["model"]["properties"]["family"]["enum"] = list(FAMILIES)
    return schema


@functools.lru_cache(maxsize=1)
def _validator():
    if not HAS_JSONSCHEMA:
        raise FleetError(
            "recipe.jsonschema-missing",
            "The Python package jsonschema is missing on the controller; install it for Ansible's Python: "
            "%s -m pip install '%s'.",
            (sys.executable, REQUIREMENT),
        )
    # A count of 8.0 is no whole number: Python could not count with it. Nor may "$" pass over a line break at the end.
    draft = jsonschema.Draft202012Validator
    whole = draft.TYPE_CHECKER.redefine(
        "integer", lambda _checker, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(draft, {"pattern": _check_pattern}, type_checker=whole)(recipe_schema())


def _check_pattern(_validator, pattern, value, _schema):
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield jsonschema.ValidationError("does not match %s" % pattern)


def resolved(schema):
    """A schema node, or what it refers to by $ref."""
    return recipe_schema()["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def type_names(schema):
    """The types that a schema node allows, as a list of JSON type names."""
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _coerce_scalar(text, types):
    """What a string from the command line means where ``types`` are allowed; itself where it means nothing."""
    if "string" in types:
        return text
    lower = text.strip().lower()
    if "null" in types and lower in ("null", "none", "~", ""):
        return None
    if "boolean" in types and lower in TRUE | FALSE:
        return lower in TRUE
    if "integer" in types and WHOLE.fullmatch(lower):
        return int(lower)
    if "number" in types and NUMBER.fullmatch(lower):
        return float(lower)
    if "array" in types or "object" in types:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        wanted = list if "array" in types else dict
        return value if isinstance(value, wanted) else text
    return text


def coerce(value, schema=None):
    """``value`` with the strings of ``-e key=value`` turned into what the schema wants. Wrong ones stay as they are."""
    schema = recipe_schema() if schema is None else resolved(schema)
    if isinstance(value, str):
        types = type_names(schema)
        for option in schema.get("anyOf", ()):
            types += type_names(option)
            if option.get("const") == value:
                return value
        if "const" in schema and isinstance(schema["const"], int):
            types.append("integer")
        return _coerce_scalar(value, types) if types else value
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        rest = rest if isinstance(rest, dict) else {}
        # Arguments may be anything: a string stays a string there.
        return {key: coerce(item, properties.get(key, rest)) for key, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [coerce(item, schema["items"]) for item in value]
    return value


def _allowed(error):
    """What is allowed where ``error`` (a jsonschema error) was found, as text."""
    schema = error.schema
    if "anyOf" in schema:
        options = []
        for option in schema["anyOf"]:
            options.append(show(option["const"]) if "const" in option else _describe(option))
        return " or ".join(options)
    if "const" in schema:
        return show(schema["const"])
    return _describe(schema)


def _describe(schema):
    if "enum" in schema:
        return ", ".join(str(item) for item in schema["enum"])
    text = " or ".join(TYPE_NAMES[name] for name in type_names(schema)) or "anything"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        text += " from %s to %s" % (low, high)
    elif low is not None:
        text += " of at least %s" % low
    if "allowed" in schema:
        text = text.replace(TYPE_NAMES["string"], schema["allowed"])
    if schema.get("examples"):
        text += ", for example %s" % show(schema["examples"][0], 120)
    if "minItems" in schema or "maxItems" in schema:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        text += " with %s" % ("%d to %d items" % (low, high) if high else "at least %d item" % low)
    return text


def _message(error, text_of):
    """(path, text) for one jsonschema error. text_of: see problems()."""
    path = list(error.absolute_path)
    key = text_of(path)
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - set(known))
        text = []
        for name in unknown:
            close = difflib.get_close_matches(name, known, 1)
            text.append(
                "unknown key '%s'%s (value %s)%s"
                % (
                    text_of([*path, name]),
                    odd_characters(name),
                    show(error.instance[name]),
                    "; did you mean '%s'?" % close[0] if close else "",
                )
            )
        return [*path, unknown[0]], "%s; allowed here: %s" % ("; ".join(text), ", ".join(known))
    if error.validator == "required":
        missing = sorted(name for name in error.validator_value if name not in error.instance)
        return path, "%s lacks %s; needed here: %s" % (
            "'%s'" % key if key else "the recipe",
            ", ".join("'%s'" % name for name in missing),
            ", ".join(error.validator_value),
        )
    if "propertyNames" in error.schema_path:
        return [*path, error.instance], "'%s' has the name %s%s; allowed: %s, for example %s" % (
            key, show(error.instance), odd_characters(error.instance), error.schema["allowed"],
            error.schema["examples"][0],
        )  # fmt: skip
    odd = odd_characters(error.instance) if error.validator == "pattern" else ""
    return path, "'%s' is %s%s; allowed: %s" % (key or "recipe", show(error.instance), odd, _allowed(error))


def problems(recipe, text_of=path_text):
    """All mistakes of a recipe: [(path as list of keys and indexes, text)], in a stable order.

    text_of: how a path is written in messages.
    """
    found = {text: path for path, text in (_message(error, text_of) for error in _validator().iter_errors(recipe))}
    found = [(path, text) for text, path in found.items()]
    return sorted(found, key=lambda item: (path_text(item[0]), item[1]))
