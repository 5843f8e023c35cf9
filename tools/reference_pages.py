# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the generated parts of docs/using: keys of recipes, from the schema; variables, from their tables; the steps of
the guides with their tests, from tests/guide_steps.yml.

    .venv/bin/python tools/run.py python tools/reference_pages.py   # writes recipe-keys.md, variables.md, support.md

The parts of variables.md and support.md above the marker are written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import table

CLONE = Path(__file__).resolve().parent.parent
KEYS = CLONE / "docs" / "using" / "recipe-keys.md"
VARIABLES = CLONE / "docs" / "using" / "variables.md"
SUPPORT = CLONE / "docs" / "using" / "support.md"
STEPS = CLONE / "tests" / "guide_steps.yml"
MARKER = "<!-- Below: written by tools/reference_pages.py. Do not edit. -->\n"
# Keys of a group or an instance that have the form of the recipe's own key, and are described there.
OWNERS = ("servers[].", "instances.NAME.")
REPEATED = ("arguments", "environment", "config", "container", "model", "venv", "start", "secrets")
UNLIMITED = 100_000  # a limit of this size is not shown
# Words of error messages that a table does not need.
SHORTER = {
    "`true` or `false`": "boolean", "whole number": "integer", ", a separate folder": "",
    " of environment variables": "", ", above 0, at most ": ", 1 to ",
    "a name of letters, digits, '.', '_' and '-'": "name",
}  # fmt: skip
HEAD = """# Recipe keys

<!-- Written by tools/reference_pages.py from recipes/recipe.schema.json. Do not edit. -->

The keys of recipes, all of which `fleet_override` can change ([recipes.md](recipes.md)), with values. **Bold** keys are
required. `NAME` is any name; `x[].y` is the key `y` of each item of the list `x`.
"""


def prose(text):
    return re.sub(r"([<*])", r"\\\1", text)


def kinds(schema):
    """Return the values that a schema accepts, in words."""
    if "const" in schema:
        return "`%s`" % schema["const"]
    if "enum" in schema:
        return ", ".join("`%s`" % one for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kinds(one) for one in schema["anyOf"])
    words = schema.get("type", "mapping")
    words = [words] if isinstance(words, str) else words
    names = {"object": "mapping", "array": "list", "boolean": "boolean", "integer": "integer"}
    text = ", ".join(names.get(word, word) for word in words)
    if schema.get("allowed"):
        allowed = re.sub(r"^an? | without '\.\.'$|, in quotes$", "", schema["allowed"])
        return allowed + (", null" if "null" in words else "")
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return re.sub("integer|number", lambda word: word.group() + limits(low, high), text)
    return text


def limits(low, high):
    """Return the text for the limits of a number."""
    return " from %s" % low + (" to %s" % high if float(high) < UNLIMITED else "")


def rows(schema, whole, prefix=""):
    """Yield (key, required, schema) of all keys below a schema."""
    schema = resolved(schema, whole)
    repeated = [key for key in schema.get("properties", {}) if key in REPEATED] if prefix in OWNERS else []
    if repeated:
        text = "Differences from the recipe's own keys: %s." % ", ".join("`%s`" % key for key in repeated)
        yield prefix + "…", False, {"description": text}
    for key, one in schema.get("properties", {}).items():
        one = resolved(one, whole)
        if key in repeated:
            continue
        yield prefix + key, key in schema.get("required", ()), one
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
    """Return the page: a list of the keys without further keys, then a section for each of the others."""
    groups = {}
    for key, required, one in rows(schema, schema):
        name, _dot, inner = key.partition(".")
        groups.setdefault(name.removesuffix("[]"), []).append((inner, required, one))
    single, sections = ["## Single keys\n"], []
    for name, ((_inner, required, one), *others) in groups.items():
        if not others:
            single.append(item(name, required, one))
            continue
        bold = "**Required.** " if required else ""
        sections.append("\n## %s\n\n%s%s\n" % (name, bold, prose(one.get("description", ""))))
        sections += [item(*other) for other in others]
    return "\n".join([HEAD, *single, *sections]) + "\n"


def item(key, required, schema):
    name = "**`%s`**" % key if required else "`%s`" % key
    text = schema.get("description", "") + (" Default: `%s`." % schema["default"] if "default" in schema else "")
    value = "" if key.endswith("…") else " (%s)" % kinds(schema)
    return "- %s%s: %s" % (name, prose(value), prose(text))


def allowed_values(row):
    """Return the allowed values of a variable."""
    if row.get("words"):
        return row["words"]
    if row.get("choices"):
        return ", ".join("`%s`" % one for one in row["choices"])
    kind = table()["kinds"][row["kind"]]
    if row["kind"] in ("integer", "number"):
        low = row.get("low")
        bounds = ", above 0, at most %d" % row["high"] if low is None else ", %d to %d" % (low, row["high"])
        return kind["text"] + bounds
    return kind.get("text", kind.get("words"))


def shared_variables():
    """Return the lists of the fleet_* variables."""
    lines = []
    for section in table()["sections"]:
        lines.append("## %s\n" % section["title"])
        for name, row in section["variables"].items():
            names = "`%s`" % name + (", `%s_LAYER`" % name if name == "fleet_override" else "")
            value = allowed_values(row)
            for long, short in SHORTER.items():
                value = value.replace(long, short)
            value = re.sub(r", (\d+) to (\d+)$", lambda found: limits(*found.groups()), value)
            scope = "; %s" % ", ".join("`%s`" % one for one in row["scope"].split(", ")) if "scope" in row else ""
            default = " Default: %s." % row["default"] if "default" in row else ""
            lines.append("- %s (%s%s): %s%s" % (names, value, scope, row["text"], default))
        lines.append("")
    return "\n".join(lines)


ROLES = """## Set by the collection

Do not set `fleet_servers` and `fleet_deployment`, a host's plan and resolved recipe. `fleet_verdict` and
`fleet_status` are statistics of the run (`set_stats`), for AWX and callbacks.

## Variables of roles

The README of each role lists them, with their defaults:
"""


def roles():
    """Return links to the pages of the roles."""
    names = sorted(path.parent.name for path in CLONE.glob("roles/*/README.md"))
    return ",\n".join("[%s](../../roles/%s/README.md)" % (name, name) for name in names) + ".\n"


def variables(page):
    """Return the page of variables with its generated part renewed."""
    return "\n".join([page.partition(MARKER)[0] + MARKER, shared_variables(), ROLES + roles()])


GUIDES = """## The guides, step by step

The steps of the five guides, each with the tests that prove it. `real`: a real engine, service or tool. `simulated`: a
simulated node, a stand-in that is as strict as the program that it replaces, or recorded output. `planned`: only the
plan; the named closed program decides the rest. Real measuring tools run in `make soak` only, their stand-ins in
`make test`. No step has been tested on an accelerator.
"""


def steps_of_guides():
    """Return the list of the guides' steps."""
    lines = [GUIDES]
    for number, guide in yaml.safe_load(STEPS.read_text(encoding="utf-8"))["guides"].items():
        lines.append("\n### %s: %s\n\n" % (number, guide["title"]))
        for step in guide["steps"]:
            more = step.get("closed") or step.get("why")
            how = "`%s`" % step["how"] + (", %s" % more if more else "")
            proofs = ", ".join("`%s`" % test for test in step["tests"])
            lines.append("- **%s** (%s): %s. %s\n" % (step["id"], how, step["step"], proofs))
    return "".join(lines)


def support(page):
    """Return the page of the support matrix with its generated part renewed."""
    return "\n".join([page.partition(MARKER)[0] + MARKER, steps_of_guides()])


def main():
    schema = json.loads((CLONE / "recipes" / "recipe.schema.json").read_text(encoding="utf-8"))
    KEYS.write_text(recipe_keys(schema), encoding="utf-8")
    VARIABLES.write_text(variables(VARIABLES.read_text(encoding="utf-8")), encoding="utf-8")
    SUPPORT.write_text(support(SUPPORT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
