# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe schema: errors with the key, the value and the allowed values.

In addition to the keywords of JSON schema, a node has `allowed`, a description of its pattern; messages also show
`examples`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys

from ...module_utils.fleet_node.engines.registry import API_KEYS
from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.verify import probes
from ..base.checks import MAX_LINE, invisible
from ..base.words import holds_secret, meant, names_secret, odd_characters, path_text, show
from ..engines import ENGINES
from ..models import FAMILIES, family_of, other_family
from ..platforms import PLATFORMS
from ..seen_files import COLLECTION
from .overrides import group_name

try:
    import jsonschema
except ImportError:
    HAS_JSONSCHEMA = False
else:
    HAS_JSONSCHEMA = True

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
    """Return the JSON schema of a recipe with the available platforms, engines and families of models.
    It must not be changed."""
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
        raise FleetError("recipe.jsonschema-missing", sys.executable, REQUIREMENT)
    # 8.0 is not a valid count, because Python cannot count with it. "$" must not match before a line break at the end.
    draft = jsonschema.Draft202012Validator
    whole = draft.TYPE_CHECKER.redefine(
        "integer", lambda _checker, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(draft, {"pattern": _check_pattern}, type_checker=whole)(recipe_schema())


def _check_pattern(_validator, pattern, value, _schema):
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield jsonschema.ValidationError("does not match %s" % pattern)


def is_image(value):
    """Return whether a value is {image, digest, version} as in the container of a recipe."""
    container = recipe_schema()["$defs"]["container"]["properties"]
    keys = {key: container[key] for key in ("image", "digest", "version")}
    schema = {"type": "object", "required": ["image"], "properties": keys, "additionalProperties": False}
    return type(_validator())(schema).is_valid(value)


def resolved(schema):
    """Return a schema node, or the node that its $ref refers to."""
    return recipe_schema()["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _allowed(error):
    """Return the allowed values at the place of ``error`` (a jsonschema error), as a string."""
    return " or ".join(map(_describe, error.schema.get("anyOf", [error.schema])))


def _describe(schema):
    if "const" in schema:
        return show(schema["const"])
    if "enum" in schema:
        return ", ".join(str(item) for item in schema["enum"])
    types = schema.get("type", [])
    names = [TYPE_NAMES[name] for name in ([types] if isinstance(types, str) else types)]
    text = " or ".join(names) or schema.get("allowed", "anything")
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
    """Return (path, message) for a jsonschema error. text_of: see problems()."""
    path = list(error.absolute_path)
    key = text_of(path)
    if error.validator == "additionalProperties":
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - set(known))
        text = []
        for name in unknown:
            what = "'%s'%s (value %s)" % (text_of([*path, name]), odd_characters(name), show(error.instance[name]))
            text.append("unknown key %s%s" % (what, meant(name, known)))
        return [*path, unknown[0]], "%s; allowed here: %s" % ("; ".join(text), ", ".join(known))
    if error.validator == "required":
        missing = sorted(name for name in error.validator_value if name not in error.instance)
        where, lacks = "'%s'" % key if key else "the recipe", ", ".join("'%s'" % name for name in missing)
        return path, "%s lacks %s; needed here: %s" % (where, lacks, ", ".join(error.validator_value))
    if "propertyNames" in error.schema_path:
        return [*path, error.instance], "'%s' has the name %s%s; allowed: %s, for example %s" % (
            key, show(error.instance), odd_characters(error.instance), error.schema["allowed"],
            error.schema["examples"][0],
        )  # fmt: skip
    odd = odd_characters(error.instance) if error.validator == "pattern" else ""
    return path, "'%s' is %s%s; allowed: %s" % (key or "recipe", show(error.instance), odd, _allowed(error))


def problems(recipe, text_of=path_text):
    """Return all mistakes of a recipe: [(path as list of keys and indexes, message)], in a stable order.

    text_of: how a path is written in messages.
    """
    found = {text: path for path, text in (_message(error, text_of) for error in _validator().iter_errors(recipe))}
    found = [(path, text) for text, path in found.items()]
    return sorted(found, key=lambda item: (path_text(item[0]), item[1]))


# Keys whose strings may have several lines, be empty, or contain Jinja that is not for Ansible.
FREE = (
    "description", "guide", "probes", "config", "arguments", "environment", "command", "benchmark", "evaluate", "tune",
)  # fmt: skip
EMPTY = ("entrypoint",)
JINJA = re.compile(r"\{\{.*\}\}|\{%.*%\}", re.DOTALL)
OPEN_SECRET = (
    "contains a secret, readable in the plan and the node's processes. Remove it, and set the variable that contains "
    "it in 'secrets', such as {HF_TOKEN: fleet_hf_token}, with its value in a vault"
)
NO_SECRET = ("", "empty", "none", "null", "dummy", "unused", "not-needed", "auto", "true", "false")
WITH_CHECK = ("api-key", *API_KEYS)  # of an engine: planning/server_values.py reports what to set instead


def all_problems(recipe, text_of=path_text, in_file=False):
    """Return all mistakes of a recipe: [(path, message)] in a stable order:
    of the schema, of strings, and between keys.

    text_of: how a path is written in messages. in_file: whether the recipe is a file, which must not contain Jinja.
    """
    opened = [(path, "'%s' %s" % (text_of(path), text)) for path, text in _open_secrets(recipe)]
    # other messages about such a value would show it
    found = opened + [item for item in problems(recipe, text_of) if not _covered(item[0], opened)]
    found += [item for item in _strings(recipe, [], text_of, in_file) if not _covered(item[0], found)]
    if not found:
        for rule in (_models, _needs, _groups, _probes):
            found += [(path, "'%s' %s" % (text_of(path), text)) for path, text in rule(recipe)]
    return found


def _open_secrets(value, path=()):
    """Yield secrets in a recipe. They would be in the plan and in command lines, which other accounts can read."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _open_secrets(item, (*path, str(key))) if key not in ("secrets", "secret_versions") else ()
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            before = value[index - 1] if index and isinstance(value[index - 1], str) else ""
            if _is_secret(before.lstrip("-"), item) and before.startswith("-"):
                yield [*path, index], OPEN_SECRET
            else:
                yield from _open_secrets(item, (*path, index))
        return
    keys = [one for one in path if isinstance(one, str)]
    if not keys or keys[-1] in WITH_CHECK or "description" in keys or not isinstance(value, str):
        return
    name, mark, given = value.lstrip("-").partition("=")
    if _is_secret(keys[-1], value) or (mark and _is_secret(name, given)) or holds_secret(value):
        yield list(path), OPEN_SECRET


def _is_secret(name, value):
    """Return whether this is the value of a secret, by its name.
    Placeholders, words for no value, and files are not."""
    known = not isinstance(value, str) or value.strip().lower() in NO_SECRET or value.startswith(("${", "/", "{{"))
    return names_secret(name) and not known and name.replace("_", "-") not in WITH_CHECK


def _covered(path, found):
    return any(list(path) == list(other) for other, _text in found)


def _strings(value, path, text_of, in_file):
    """Yield (path, message) for invalid strings in keys that require a word or a line:
    empty, or with invisible characters."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(item, [*path, key], text_of, in_file)
    elif isinstance(value, str):
        text = _string(value, {one for one in path if isinstance(one, str)}, str(path[-1]), in_file)
        if text:
            yield path, "'%s' is %s%s" % (text_of(path), show(value), text)


def _string(value, keys, last, in_file):
    if in_file and JINJA.search(value) and "template" not in last and not {"probes", "config", "description"} & keys:
        return (
            ", but a recipe file must not contain Jinja; allowed: placeholders such as ${models}. Write it in "
            "fleet_override if it requires Jinja"
        )
    if {"arguments", "environment"} & keys and value != value.rstrip("\r\n"):
        return "; allowed: a string without a line break at its end. Remove it, in YAML with |- instead of |"
    if keys & set(FREE) or (not value and last in EMPTY):
        return ""
    if not value or value != value.strip() or invisible(value) or len(value) > MAX_LINE:
        return (
            "%s; allowed: one line that is not empty, of %d characters at most, without spaces around it or characters "
            "that cannot be seen. Remove these, or the key" % (odd_characters(value), MAX_LINE)
        )
    return ""


def _layers(recipe):
    """Return [(path, keys)] of the recipe itself and of its groups."""
    return [([], recipe), *((["servers", index], group) for index, group in enumerate(recipe["servers"]))]


def _needs(recipe):
    for index, name in enumerate(recipe["needs"]["accelerators"]):
        known = list(PLATFORMS[recipe["platform"]].accelerators)
        if name not in known:
            text = "is %s; allowed for platform %s: %s" % (show(name), recipe["platform"], ", ".join(known))
            yield ["needs", "accelerators", index], text


def _groups(recipe):
    after = {}
    for index, group in enumerate(recipe["servers"]):
        path, name = ["servers", index], group_name(group)
        if name in after:
            yield [*path, "name"], "is '%s', as of another group. Set another name" % name
        after[name] = group.get("after", ())
        yield from _ports(path, group, recipe)
        if group.get("venv") and not recipe.get("venv") and not group["venv"].get("path"):
            yield [*path, "venv", "path"], "is not set, and the recipe has no venv. Set it"
    for index, group in enumerate(recipe["servers"]):
        for other in group.get("after", ()):
            if other not in after:
                path = ["servers", index, "after"]
                yield path, "names the group %s; allowed: %s" % (show(other), ", ".join(after))


def _ports(path, group, recipe):
    ports = group.get("ports") or {}
    for name in ports:
        if name in (recipe.get("services") or {}):
            yield [*path, "ports", name], "has the name of another placeholder. Use another name"
    asked = (group.get("health") or {}).get("port")
    if asked is not None and ports.get(asked) is None:
        allowed = ", ".join(sorted(ports)) or "null without ports"
        yield [*path, "health", "port"], "is %s; allowed: %s. Set that port" % (show(asked), allowed)


def _probes(recipe):
    names = set(probes.NAMES)
    for index, probe in enumerate(recipe.get("probes", ())):
        path = ["probes", index]
        if probe["name"] in names:
            taken = "the name of a built-in probe" if probe["name"] in probes.NAMES else "given twice"
            yield [*path, "name"], "is '%s', %s. Use another name" % (probe["name"], taken)
        names.add(probe["name"])
        if probe.get("body") is None and probe.get("path", probes.CHAT) == probes.CHAT:
            yield [*path, "body"], "is not set, but %s must get one. Set it, with messages" % probes.CHAT


def _models(recipe):
    """Checkpoints of another family by their names; nodes would only read the family after the installation."""
    for path, place in _layers(recipe):
        model = place.get("model") or {}
        family = family_of({"model": {**recipe["model"], **model}})
        if model.get("format") and model["format"] not in family.formats:
            text = "is '%s'; allowed for %s: %s. Correct it"
            yield [*path, "model", "format"], text % (model["format"], family.label, ", ".join(family.formats))
        taken = [{**recipe["model"], **model}.get("id")]
        for at, one in enumerate(model.get("adapters") or ()):
            if one["name"] in taken:
                where = [*path, "model", "adapters", at, "name"]
                yield where, "is '%s', a name that is taken. Use another" % one["name"]
            taken.append(one["name"])
        other = other_family(model.get("repo") or "")
        if other and not model.get("family") and not recipe["model"].get("family"):
            labels = " or ".join(family.label for family in FAMILIES.values())
            text = (
                "is '%s', a name of the family %s; allowed: checkpoints of %s. If it is such a checkpoint, set "
                "model.family to %s"
            )
            yield [*path, "model", "repo"], text % (model["repo"], other, labels, " or ".join(FAMILIES))
