# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe schema: coercion of texts from the command line, errors that name key, value and what is allowed."""

from __future__ import annotations

import difflib
import functools
import json
import os
import sys

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError

try:
    import jsonschema
except ImportError:
    HAS_JSONSCHEMA = False
else:
    HAS_JSONSCHEMA = True

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REQUIREMENT = "jsonschema>=4.23,<5"
SCHEMA_PATH = os.path.join(COLLECTION, "recipes", "recipe.schema.json")
TYPE_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
TRUE = frozenset(("true", "yes", "on"))
FALSE = frozenset(("false", "no", "off"))


@functools.lru_cache(maxsize=1)
def recipe_schema():
    """The JSON schema of a recipe as a dict; read-only, shared."""
    with open(SCHEMA_PATH, encoding="utf-8") as stream:
        return json.load(stream)


@functools.lru_cache(maxsize=1)
def _validator():
    if not HAS_JSONSCHEMA:
        raise FleetError(
            "The Python package jsonschema is missing on the controller; install it for Ansible's Python: "
            "%s -m pip install '%s'." % (sys.executable, REQUIREMENT)
        )
    return jsonschema.Draft202012Validator(recipe_schema())


def type_names(schema):
    """The types that a schema node allows, as a list of JSON type names."""
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _coerce_scalar(text, types):
    """What a text from the command line means where ``types`` are allowed; the text itself where it means nothing."""
    if "string" in types:
        return text
    lower = text.strip().lower()
    if "null" in types and lower in ("null", "none", "~", ""):
        return None
    if "boolean" in types and lower in TRUE | FALSE:
        return lower in TRUE
    for name, convert in (("integer", int), ("number", float)):
        if name in types:
            try:
                return convert(lower)
            except ValueError:
                continue
    if "array" in types or "object" in types:
        try:
            value = json.loads(text)
        except ValueError:
            return text
        wanted = list if "array" in types else dict
        return value if isinstance(value, wanted) else text
    return text


def coerce(value, schema=None):
    """``value`` with the texts of ``-e key=value`` turned into what the schema wants. Wrong ones stay as they are."""
    schema = recipe_schema() if schema is None else schema
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
        # Arguments may be anything: a text stays a text there.
        return {key: coerce(item, properties.get(key, rest)) for key, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [coerce(item, schema["items"]) for item in value]
    return value


def show(value, limit=80):
    """A value as a person reads it in a message, cut."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def path_text(path):
    """A path of keys and indexes as text: servers[0].port."""
    text = ""
    for part in path:
        text += "[%d]" % part if isinstance(part, int) else (("." if text else "") + str(part))
    return text


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
    if "pattern" in schema:
        text += " matching %s" % schema["pattern"]
    if schema.get("minItems"):
        text += " with at least %d item" % schema["minItems"]
    return text


def _message(error):
    """(path, text) for one jsonschema error."""
    path = list(error.absolute_path)
    key = path_text(path)
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - set(known))
        text = []
        for name in unknown:
            close = difflib.get_close_matches(name, known, 1)
            text.append(
                "unknown key '%s' (value %s)%s"
                % (
                    path_text([*path, name]),
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
        return path, "'%s' has the name %s; allowed: names matching %s" % (
            key, show(error.instance), error.schema.get("pattern", "")
        )  # fmt: skip
    return path, "'%s' is %s; allowed: %s" % (key or "recipe", show(error.instance), _allowed(error))


def problems(recipe):
    """All mistakes of a recipe: [(path as list of keys and indexes, text)], in a stable order."""
    found = [_message(error) for error in _validator().iter_errors(recipe)]
    return sorted(found, key=lambda item: (path_text(item[0]), item[1]))
