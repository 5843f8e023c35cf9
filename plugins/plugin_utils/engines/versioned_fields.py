# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of an engine's configuration file and of its command line, by version: data, and a strict check by them.

The data is a JSON file. recorded: versions that were read as a whole, in order. sources: where. models: {"" for the
file itself, the path of a nested mapping, "--" for the command line: {field: {version from which on: what it takes}}}.
What it takes: null once it is gone; "?" where nobody knows; a list of values, with null where null is one, "*" where
there are others, "~" where their case does not count; or a type with its bounds, and "?" behind it where it may be
null: bool, int, float, str, list, list[int], dict, any, model (a mapping that has a table of its own); "int >=0",
"float 0..1?". open: {version from which on: mappings with fields that were not read}. variants: {mapping: the field
that says which further table holds, under its value}. required: {mapping: its fields that must be there}. instead:
{field, by its path; of the command line with -- before it: where to write it}.

A version that is not recorded itself takes what it had before or what the next recorded one has; what neither of them
takes is refused. Before the first and after the last one a field that nobody has on record is a warning.
"""

from __future__ import annotations

import functools
import json
import os
import re

from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, number
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import close_to, show
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import Version

SPEC = re.compile(r"(?P<type>[a-z]+(\[int\])?)( (?P<sign>>=?)?(?P<low>-?\d+)(\.\.(?P<to>\d+))?)?(?P<null>\?)?")
SWITCHES = ("true", "false", "yes", "no", "on", "off", "1", "0")
WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a string", "any": "a value",
         "dict": "a mapping", "model": "a mapping", "list": "a list", "list[int]": "a list of numbers"}  # fmt: skip
FILE, FLAGS = "config.content.", "arguments."


class Fields:
    """The fields of one engine. name: its file beside this one. label: the engine, for people."""

    def __init__(self, name, label):
        self.path = os.path.join(os.path.dirname(__file__), name)
        self.label = label

    @functools.cached_property
    def data(self):
        """What the file holds; read when it is first needed."""
        with open(self.path, encoding="utf-8") as stream:
            return json.load(stream)

    def check(self, where, content, version):
        """FleetError with all that a version refuses of a configuration file. Returns sentences on what it may refuse.

        content: the file's mapping. version: packaging's Version, None where it is not known; nothing but types is
        refused then.
        """
        return Check(self, where, version).run("", content)

    def check_flags(self, where, values, version):
        """The same for flags of the command line, {flag as written: value}."""
        given = {flag: value for flag, value in values.items() if value is not None and value is not False}
        return Check(self, where, version).run("--", given)

    def taken(self, table, name, version):
        """Whether a version takes a field, by the nearest recorded one at or below it; None without a version."""
        return None if version is None else bool(self.at(table, name, version))

    def at(self, table, name, version):
        """What a field takes in a version; None where it is gone, "" where it is not there yet or never was."""
        found = ""
        for since, spec in self.data["models"].get(table, {}).get(name, {}).items():
            if Version(since) <= version:
                found = spec
        return found


class Check:
    """One file against one version."""

    def __init__(self, fields, where, version):
        self.fields, self.where, self.version = fields, where, version
        self.mistakes, self.warnings = Mistakes(), []
        recorded = [Version(one) for one in fields.data["recorded"]]
        later = next((one for one in recorded if version and one > version), None)
        inside = version and version >= recorded[0]
        # The versions that count for this one, and whether there is one on either side of it.
        self.points = recorded if version is None else [version] if version in recorded else [
            *([version] if inside else []), *([later] if later else [])
        ]  # fmt: skip
        self.exact = version in recorded
        self.sure = self.exact or bool(inside and later)

    def run(self, table, content):
        self._mapping(table, "", content, FLAGS if table == "--" else FILE)
        self.mistakes.raise_any()
        return self.warnings

    def _mapping(self, table, path, content, prefix):
        """Check the keys of a mapping. path: of its fields' own tables. prefix: of the places that messages name."""
        chooser = self.fields.data["variants"].get(table)
        further = "%s.%s" % (table, content.get(chooser))
        for name in self.fields.data["required"].get(table, ()):
            if name not in content:
                self.mistakes.add(
                    "plan.config-key-missing",
                    "%s: %s lacks %s, without which %s refuses it. Add it.",
                    (self.where, prefix.rstrip("."), name, self.fields.label),
                )
        for key, value in content.items():
            name = str(key).replace("_", "-") if table == "--" else str(key)
            own = table if chooser in (None, name) else further
            specs = [self._spec(own, name, point) for point in self.points]
            if own == further and not any(self._known(further)):
                continue
            place = "%s%s" % (prefix, key)
            if any(specs):
                self._value(path + name, place, value, specs)
            else:
                self._unknown(own, name, path, place, specs)

    def _spec(self, table, name, point):
        """What a field takes in one of the versions that count."""
        return self.fields.at(table, name, point)

    def _known(self, table):
        """Fields of a table in the versions that count."""
        names = self.fields.data["models"].get(table, ())
        return [name for name in names if any(self.fields.at(table, name, point) for point in self.points)]

    def _meant(self, table, name):
        """The field that comes close to a name, or ""."""
        return close_to(name, self._known(table))

    def _unknown(self, table, name, path, place, specs):
        history = self.fields.data["models"][table].get(name, {})
        since = [Version(one) for one, spec in history.items() if spec]
        instead = self.fields.data["instead"].get(("--" if table == "--" else path) + name)
        instead = "Write %s instead" % instead if instead else ""
        gone = specs[0] is None and self.version is not None
        read = self._is_read(table)
        if gone:
            seen = sorted({*self.fields.data["recorded"], *history}, key=Version)
            last = [one for one in seen if self.fields.at(table, name, Version(one))][-1]
            self.mistakes.add(
                "plan.config-key-gone",
                "%s: %s %s does not take %s any more; the last release on record that does is %s. %s.",
                (self.where, self.fields.label, str(self.version), place, last, instead or "Remove it"),
            )
        elif self.sure and read and since:
            self.mistakes.add(
                "plan.config-key-too-new",
                "%s: %s %s does not take %s yet; the first release on record that does is %s. %s.",
                (self.where, self.fields.label, str(self.version), place, min(since),
                 instead or "Remove it, or take that release"),
            )  # fmt: skip
        elif self.sure and read:
            close = self._meant(table, name)
            self.mistakes.add(
                "plan.config-key-unknown",
                "%s: %s %s takes no %s%s. %s.",
                (self.where, self.fields.label, str(self.version), place,
                 " (did you mean %s?)" % close if close and not instead else "",
                 instead or "Correct or remove it"),
            )  # fmt: skip
        else:
            close = self._meant(table, name)
            self._warn("%s is not on record%s", place, " (did you mean %s?)" % close if close else "")

    def _is_read(self, table):
        """Whether all fields of a table are known in the versions that count."""
        opened = [Version(since) for since, tables in self.fields.data["open"].items() if table in tables]
        return not any(point >= since for point in self.points for since in opened)

    def _value(self, path, place, value, specs):
        fitting = self._judge(place, value, specs, [spec for spec in specs if spec], _fits)
        if any(_type(spec) == "model" for spec in fitting) and isinstance(value, dict):
            self._mapping(path, path + ".", value, place + ".")

    def _judge(self, place, value, specs, taking, fits):
        """What of `taking` takes the value; a mistake or a warning is noted. specs: of all versions that count."""
        fitting = [spec for spec in taking if fits(spec, value)]
        if not fitting:
            hard = any(isinstance(spec, str) for spec in taking)
            if hard or self.sure:
                self.mistakes.add(
                    "plan.config-value-invalid",
                    "%s: %s is %s; allowed in %s%s: %s. Correct it.",
                    (self.where, place, show(value), self.fields.label, " %s" % self.version if self.version else "",
                     self._allowed(taking)),
                )  # fmt: skip
            else:
                self._warn("%s %s is not on record", place, show(value))
        elif self.version is not None and (len(taking) < len(specs) or "?" in taking):
            self._warn("%s is taken by some of the releases around it on record%s", place, "")
        elif any(isinstance(spec, list) and "*" in spec and value not in spec for spec in fitting):
            self._warn("%s %s is not on record", place, show(value))
        return fitting

    def _allowed(self, specs):
        return _allowed(specs)

    def _warn(self, text, *values):
        name = "%s %s" % (self.fields.label, self.version) if self.version else self.fields.label
        self.warnings.append("%s, so %s may refuse it." % (text % values, name))


def _type(spec):
    return SPEC.fullmatch(spec)["type"] if isinstance(spec, str) and spec != "?" else ""


def _fits(spec, value):
    """Whether a field takes a value, as pydantic does: "8" is a number and 0 is false, but 8 is no string."""
    if isinstance(spec, list):
        words = [word.upper() if isinstance(word, str) else word for word in spec] if "~" in spec else spec
        return "*" in spec or (value.upper() if "~" in spec and isinstance(value, str) else value) in words
    if spec == "?":
        return True
    found = SPEC.fullmatch(spec)
    kind = found["type"]
    if value is None:
        return bool(found["null"])
    if kind in ("int", "float"):
        whole = kind == "int" and not (isinstance(value, float) and value.is_integer())
        value = number(value, whole)
        low = float(found["low"] or "-inf")
        return value is not None and value >= low and not (found["sign"] == ">" and value == low) and (
            value <= float(found["to"] or "inf")
        )  # fmt: skip
    if kind == "list[int]":
        return isinstance(value, list) and all(number(one) is not None for one in value)
    if kind == "bool":
        return str(value).lower() in SWITCHES
    kinds = {"str": str, "list": list, "dict": dict, "model": dict}
    return kind == "any" or isinstance(value, kinds[kind])


def _allowed(specs):
    """What fields take, for people."""
    found = {}
    for spec in specs:
        if isinstance(spec, list):
            found.update(dict.fromkeys("null" if one is None else str(one) for one in spec if one not in ("*", "~")))
            continue
        match = SPEC.fullmatch(spec)
        text = WORDS[match["type"]]
        if match["low"]:
            text += " %s %s" % ("above" if match["sign"] == ">" else "from", match["low"])
        text += " to %s" % match["to"] if match["to"] else ""
        found[text + (", or null" if match["null"] else "")] = None
    return ", ".join(found)
