# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The generated parts of docs/using: keys of recipes from the schema, variables from their table and argument specs.

    .venv/bin/python tools/run.py python tools/reference_pages.py   # writes recipe-keys.md and variables.md

Of variables.md the head is by hand; what stands below the marker is written.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import row_of, table, words_of

CLONE = Path(__file__).resolve().parent.parent
KEYS = CLONE / "docs" / "using" / "recipe-keys.md"
VARIABLES = CLONE / "docs" / "using" / "variables.md"
MARKER = (
    "<!-- Below: written by tools/reference_pages.py from plugins/plugin_utils/planning/variables.yml and the roles' "
    "argument specs. Do not edit. -->\n"
)
TYPES = {"bool": "`true` or `false`", "dict": "mapping", "list": "list"}
HEAD = """# Recipe keys

<!-- Written by tools/reference_pages.py from recipes/recipe.schema.json. Do not edit. -->

Every key that a recipe can have, and so every key that `fleet_override` can change. [recipes.md](recipes.md) explains
overrides and placeholders; a key in **bold** is required in a recipe. `servers[].devices` means: key `devices` of each
item of the list `servers`; `NAME` stands for any name.
"""


def cell(text):
    return re.sub(r"([|<*])", r"\\\1", " ".join(text.split()))


def marked(text):
    """The markup of Ansible's docs, C(x), I(x) and V(x), as Markdown."""
    return re.sub(r"\b[CIVOM]\(([^)]*)\)", r"`\1`", text)


def kinds(schema):
    """What a value may be, in words."""
    if "const" in schema:
        return "`%s`" % schema["const"]
    if "enum" in schema:
        return ", ".join("`%s`" % one for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kinds(one) for one in schema["anyOf"])
    words = schema.get("type", "mapping")
    words = [words] if isinstance(words, str) else words
    names = {"object": "mapping", "array": "list", "boolean": "true or false", "integer": "whole number"}
    text = ", ".join(names.get(word, word) for word in words)
    if schema.get("allowed"):
        return "%s: %s" % (text, schema["allowed"])
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return "%s, %s to %s" % (text, low, high)
    return text


def rows(schema, whole, prefix=""):
    """(key, required, schema) of all keys below a schema."""
    schema = resolved(schema, whole)
    for key, one in schema.get("properties", {}).items():
        one = resolved(one, whole)
        yield prefix + key, key in schema.get("required", ()), one
        # What a group or an instance has differently has the form of the recipe's own key.
        if prefix and key in ("arguments", "environment", "config", "container"):
            continue
        items = resolved(one.get("items", {}), whole)
        yield from rows(one, whole, prefix + key + ".")
        yield from rows(items, whole, prefix + key + "[].")
        if isinstance(one.get("additionalProperties"), dict):
            yield from rows(one["additionalProperties"], whole, prefix + key + ".NAME.")


def resolved(schema, whole):
    if "$ref" not in schema:
        return schema
    return {**whole["$defs"][schema["$ref"].rpartition("/")[2]], **schema}


def recipe_keys(schema):
    lines = [HEAD, "| Key | Value | Meaning |", "| --- | --- | --- |"]
    for key, required, one in rows(schema, schema):
        name = "**`%s`**" % key if required else "`%s`" % key
        text = one.get("description", "")
        if "default" in one:
            text += " Default: `%s`." % one["default"]
        lines.append("| %s | %s | %s |" % (name, cell(kinds(one)), cell(text)))
    return "\n".join(lines) + "\n"


def default_of(name, defaults):
    """The default of a role's variable; where it comes from another variable, which one."""
    if name not in defaults:
        return ""
    value = defaults[name]
    if not isinstance(value, str) or "{{" not in value:
        return "`%s`" % json.dumps(value).replace("|", "\\|")
    simple = re.fullmatch(r"\{\{ (fleet_\w+)((?:\.\w+)*)(?: \| default\((.*?)(?:, true)?\))? \}\}", value.strip())
    if simple is None or "(" in (simple.group(3) or ""):
        return "*computed*"
    variable, key, other = simple.groups()
    found = "the recipe's `%s`" % key[1:] if variable == "fleet_deployment" and key else "`%s`" % (variable + key)
    return found if other in (None, "''", "{}", "[]") else "%s, else `%s`" % (found, other.replace("|", "\\|"))


def shared_variables():
    """The tables of the fleet_* variables."""
    lines = []
    for section in table()["sections"]:
        scoped = any("scope" in row for row in section["variables"].values())
        heads = ["Variable", *(["Playbook"] if scoped else []), "Value", "Default", "Meaning"]
        lines += ["## %s\n" % section["title"], "| %s |" % " | ".join(heads), "|%s" % (" --- |" * len(heads))]
        for name, row in section["variables"].items():
            names = "`%s`" % name + (", `%s_LAYER`" % name if name == "fleet_override" else "")
            scope = [", ".join("`%s`" % one for one in row["scope"].split(", "))] if scoped else []
            cells = [names, *scope, words_of(row), str(row.get("default", ""))]
            lines.append("| %s |" % " | ".join([*cells, row["text"]]))
        lines.append("")
    return "\n".join(lines)


ROLES = """## Set by the collection

Do not set these. `fleet_servers` and `fleet_deployment` are a host's plan and its resolved recipe, in the plays;
`fleet_verdict` and `fleet_status` are statistics of the run (`set_stats`) for AWX and callbacks.

## Of the roles

A role's variables have the defaults of this table. "Computed" ones are worked out from other variables, see
`defaults/main.yml` of the role.
"""


def role_variables():
    lines = []
    for specs in sorted(CLONE.glob("roles/*/meta/argument_specs.yml")):
        role = specs.parent.parent.name
        main = yaml.safe_load(specs.read_text(encoding="utf-8"))["argument_specs"]["main"]
        lines += ["### Role %s\n" % role, marked(main["short_description"]) + ".\n"]
        options = main.get("options", {})
        defaults = yaml.safe_load((specs.parents[1] / "defaults" / "main.yml").read_text(encoding="utf-8")) or {}
        if not options:
            lines.append("No variables.\n")
            continue
        lines += ["| Variable | Value | Default | Meaning |", "| --- | --- | --- | --- |"]
        for name, option in options.items():
            text = option["description"]
            text = text if isinstance(text, str) else " ".join(text)
            if option.get("choices"):
                text += " One of %s." % ", ".join("`%s`" % one for one in option["choices"])
            row = row_of(name, option)
            kind = words_of(row) if row else TYPES.get(option.get("type", "str"), "string")
            lines.append("| `%s` | %s | %s | %s |" % (name, kind, default_of(name, defaults), cell(marked(text))))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def variables(page):
    """The page of variables with its generated part anew."""
    return "\n".join([page.partition(MARKER)[0] + MARKER, shared_variables(), ROLES, role_variables()])


def main():
    schema = json.loads((CLONE / "recipes" / "recipe.schema.json").read_text(encoding="utf-8"))
    KEYS.write_text(recipe_keys(schema), encoding="utf-8")
    VARIABLES.write_text(variables(VARIABLES.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
