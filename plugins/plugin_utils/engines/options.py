# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of engines by version: recorded data, and a strict check of command lines and configuration files.

The data is a JSON file; tools/engine_flags.py writes the options of command lines from the real parsers.

recorded: versions that were read completely, in order. sources: where. models: {"" for the file, "--" or the name of a
program for its command line, the path of a nested mapping: {option: {version from which on: allowed values}}}. open:
{version: mappings with further options that were not read}. variants: {mapping: the option whose value names a further
table}. required: {mapping: its required options}. instead: {option by its path, of the command line with --: what to
write}.

The allowed values of an option: null if the option is removed; "?" if unknown; a list of values, with null if null is
allowed, "*" if there are others, "~" if case does not matter; or a type, of a file with bounds ("int >=0", "float
0..1") and "?" if null is allowed: bool, int, float, str, list, list[int], dict, any, model (a mapping with a table). Of
command lines also "switch", "switch no" (with --no-NAME), "size" (4k, 8M), "size auto", "json", "str or json"; "..."
for several words and "=" for a value that may be missing. dict and model are JSON there.

A recorded version is checked strictly; a version between two recorded versions may use the options of either. For any
other version differences are warnings: the engine's parser on the node decides.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re

from ..base.checks import Mistakes, invalid, number
from ..base.words import SWITCHES, close_to, show

try:
    from packaging.version import Version
except ImportError:  # a dependency of ansible-core; the import test of ansible-test has none
    Version = None

SPEC = re.compile(
    r"(?P<type>switch no|switch|size auto|size|str or json|list\[int\]|[a-z]+)"
    r"( (?P<sign>>=?)?(?P<low>-?\d+)(\.\.(?P<high>\d+))?)?(?P<several>\.\.\.)?(?P<bare>=)?(?P<null>\?)?"
)
MARKS = ("...", "=", "~", "*")
FLAG = re.compile(r"--?[A-Za-z]")
SIZE = re.compile(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)")
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_SIZE = 10**15
SUFFIXED = re.compile(r'("(?:[^"\\]|\\.)*")|\b(\d+(?:\.\d+)?)[kKmMgGtT]\b')  # suffix of a bare number in JSON: 80m
CUTOFF = 0.7  # minimum similarity of an option to the suggested option
WORDS = {
    "switch": "true or false", "switch no": "true or false", "bool": "true or false", "int": "a whole number",
    "float": "a number", "size": "a whole number, also with k, K, m, M, g or G",
    "size auto": "auto, -1 or a whole number, also with k, K, m, M, g or G", "str": "a string", "json": "JSON",
    "str or json": "a string or a mapping", "list": "a list", "list[int]": "a list of numbers", "dict": "a mapping",
    "model": "a mapping", "any": "a value",
}  # fmt: skip


class Options:
    """The recorded options of an engine. name: the JSON file in this folder. label: the engine's name in messages."""

    def __init__(self, name, label):
        self.path, self.label = os.path.join(os.path.dirname(__file__), name), label

    @functools.cached_property
    def data(self):
        """Content of the file."""
        with open(self.path, encoding="utf-8") as stream:
            return json.load(stream)

    def at(self, table, name, version):
        """Return the allowed values of an option in a version:
        None if it is removed, "" if it is unknown or not added yet."""
        found = ""
        for since, spec in self.data["models"].get(table, {}).get(name, {}).items():
            if Version(since) <= version:
                found = spec
        return found

    def check_file(self, where, content, version):
        """Return warnings about a configuration file. Raises FleetError with all errors.
        version: packaging's, or None."""
        check = _Check(where, [Program(self, ("",), version)])
        check.mapping(check.programs[0], "", content, "config.content.")
        return check.end()

    def not_recorded(self, version):
        """Return [a warning] for a version that is not recorded."""
        recorded = self.data["recorded"]
        if str(version) in recorded:
            return []
        name = "%s %s" % (self.label, version) if version else "The release of %s is not known, so it" % self.label
        return [
            "%s is not on record: its options are checked in the plan by those of %s, and on the node by its parser "
            "before anything is stopped." % (name, ", ".join(recorded))
        ]


@dataclasses.dataclass(frozen=True)
class Program:
    """A program with options. tables: of Options. version: packaging's, or None. further: {option, or its path in an
    option's mapping: values} that a plugin of the engine adds."""

    options: Options
    tables: tuple
    version: object
    further: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def points(self):
        """Return the versions whose options apply:
        this version, and the next recorded version if this is not recorded."""
        recorded = [Version(one) for one in self.options.data["recorded"]]
        if self.version is None:
            return recorded[-1:]
        after = [one for one in recorded if one >= self.version][:1]
        return list(dict.fromkeys([*([self.version] if self.version >= recorded[0] else []), *after]))

    @property
    def sure(self):
        """Return whether an option that none of these versions accepts is an error."""
        return str(self.version) in self.options.data["recorded"] or len(self.points) > 1

    @property
    def label(self):
        """Return the engine and its version."""
        return "%s %s" % (self.options.label, self.version) if self.version else self.options.label

    def names(self, table):
        """Return all options of a table, of any version."""
        return self.options.data["models"].get(table, {})

    def find(self, name):
        """Return (table, option, whether it is negated) of a command line option in any version; None if unknown."""
        for one, negated in ((name, False), *([(name[3:], True)] if name.startswith("no-") else [])):
            for table in self.tables:
                if one in self.names(table):
                    return table, one, negated
        return None

    def spec(self, table, name):
        """Return the allowed values of an option."""
        specs = [one for one in (self.options.at(table, name, point) for point in self.points) if one]
        spec = specs[0] if specs else ""
        if isinstance(spec, list):
            specs = [one for one in specs if isinstance(one, list)]
            spec = list(dict.fromkeys(value for one in specs for value in one))
        path = name if table in self.tables else "%s.%s" % (table, name)
        return [*spec, *self.further.get(path, ())] if isinstance(spec, list) else spec


def check(where, programs, given):
    """Return warnings about a command line. Raises FleetError with all errors.

    programs: [Program]; the last program reports unknown options. given: [(place, option as written, value)].
    """
    return _checked(where, programs, given).end()


def notes(programs, words):
    """Return warnings about the words after a program, and about a version that is not recorded."""
    given = [("arguments." + name, name, value) for name, value in command_flags(words).items()]
    return [*programs[0].options.not_recorded(programs[0].version), *_checked("", programs, given).warnings]


def _checked(where, programs, given):
    found = _Check(where, programs)
    for place, option, value in given:
        if value is not None and value is not False:
            found.option(place, option, value)
    return found


class _Check:
    def __init__(self, where, programs):
        self.where, self.programs, self.mistakes, self.warnings = where, programs, Mistakes(), []

    def end(self):
        self.mistakes.raise_any()
        return self.warnings

    def option(self, place, option, value):
        """Check an option of the command line, which may name a part of its mapping after a dot."""
        base, _dot, rest = option.partition(".")
        base, rest = base.replace("_", "-"), rest.replace("-", "_")
        program = next((one for one in self.programs if one.find(base)), self.programs[-1])
        table, name, negated = program.find(base) or (program.tables[0], base, False)
        spec = program.spec(table, name)
        if negated and spec != "switch no":
            spec = ""
        if rest and spec:
            if spec == "model":
                self.mapping(program, name, _nested(rest, value), place[: -len(rest)])
        else:
            self._value(program, (table, name, name), place, value, spec, False)

    def mapping(self, program, table, content, prefix):
        """Check the keys of a mapping. prefix: of the places in messages."""
        data = program.options.data
        chooser = data["variants"].get(table)
        further = "%s.%s" % (table, content.get(chooser))
        missing = [name for name in data["required"].get(table, ()) if name not in content]
        if missing:
            self._refuse(program, prefix.rstrip("."), content, "a mapping with " + " and ".join(missing))
        for key, value in content.items():
            name = str(key)
            own = table if chooser in (None, name) else further
            if own == table or any(program.spec(own, one) for one in program.names(own)):
                path = "%s.%s" % (table, name) if table else name
                self._value(program, (own, name, path), prefix + name, value, program.spec(own, name), True)

    def _value(self, program, names, place, value, spec, strict):
        table, name, path = names
        if not spec:
            self._unknown(program, table, name, path, place)
        elif not fits(spec, value, strict):
            self._refuse(program, place, value, _allowed(spec, value))
        else:
            if spec == "?" or (isinstance(spec, list) and "*" in spec and value not in spec):
                self._warn(program, "%s %s is not on record" % (place, show(value)))
            content = value if strict else _json(value)
            if isinstance(spec, str) and spec.startswith("model") and isinstance(content, dict):
                self.mapping(program, path, content, place + ".")

    def _unknown(self, program, table, name, path, place):
        data, flag = program.options.data, table in program.tables and table != ""
        known = {one for other in self.programs for top in other.tables for one in other.names(top)}
        known = known if flag else {one for one in program.names(table) if program.spec(table, one)}
        instead, close = data["instead"].get("--" + name if flag else path), close_to(name, known, CUTOFF)
        history = program.names(table).get(name, {})
        takers = [one for one in sorted({*data["recorded"], *history}, key=Version)
                  if program.options.at(table, name, Version(one))]  # fmt: skip
        hint = " (did you mean %s?)" % close if close and not instead else ""
        if takers:
            hint = " (releases with it: %s)" % " to ".join(dict.fromkeys((takers[0], takers[-1])))
        opened = any(table in tables for since, tables in data["open"].items() if Version(since) <= program.points[-1])
        if program.sure and not opened:
            self.mistakes.add(
                "plan.config-key-unknown",
                self.where,
                program.label,
                place,
                hint,
                "Write %s instead" % instead if instead else "Correct or remove it",
            )
        else:
            self._warn(program, "%s is not on record%s" % (place, hint))

    def _refuse(self, program, place, value, allowed):
        if program.sure:
            self.mistakes.add("plan.config-value-invalid", self.where, place, show(value), program.label, allowed)
        else:
            self._warn(program, "%s %s is not on record" % (place, show(value)))

    def _warn(self, program, text):
        self.warnings.append("%s, so %s may refuse it." % (text, program.label))


def _nested(path, value):
    """Return the mapping that an option with dots stands for."""
    name, _dot, rest = path.partition(".")
    return {name: _nested(rest, value) if rest else value}


def fits(spec, value, strict=False):
    """Return whether an option accepts a value. strict: with the types of a file, like pydantic: "8" is a number and 0
    is false, but 8 is not a string and JSON is not a mapping."""
    if not strict and value is True:
        return spec[-1] == "=" or str(spec).startswith("switch")
    if not strict and isinstance(value, list):
        return "..." in spec and bool(value) and all(fits(spec, one) for one in value)
    if isinstance(spec, list):
        words = spec if strict else [text(one) for one in spec if one not in (*MARKS, None)]
        value = value if strict else text(value)
        folded = value.upper() if "~" in spec and isinstance(value, str) else value
        return "*" in spec or value in words or folded in words
    match = SPEC.fullmatch(spec)
    if spec == "?" or value is None:
        return spec == "?" or bool(match["null"])
    kind = match["type"]
    if kind in ("int", "float"):
        found = number(value, kind == "int")  # not 256.0, which no parser of a command line accepts
        low, high = float(match["low"] or "-inf"), float(match["high"] or "inf")
        return found is not None and low <= found <= high and not (match["sign"] == ">" and found == low)
    if kind in ("size", "size auto"):
        automatic = kind == "size auto" and str(value) in ("auto", "-1")
        return automatic or (not isinstance(value, (bool, dict, list)) and bool(SIZE.fullmatch(str(value).strip())))
    if kind in ("dict", "model"):
        return isinstance(value if strict else _json(value), dict)
    if kind == "json" or (kind == "str or json" and str(value).strip().startswith("{")):
        return not isinstance(value, str) or _json(value) is not None
    if kind == "bool":
        return str(value).lower() in SWITCHES
    if kind == "str":
        return isinstance(value, str) or not strict
    if kind.startswith("list"):
        return isinstance(value, list) and (kind == "list" or all(number(one) is not None for one in value))
    return kind in ("any", "str or json")


def _json(value):
    """Return an option's value parsed as JSON, None if it is not valid."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(SUFFIXED.sub(lambda match: match[1] or match[2], value))
    except ValueError:
        return None


def _allowed(spec, value):
    """Return the allowed values of an option as a sentence part. value: the refused value."""
    if isinstance(spec, list):
        return ", ".join("null" if one is None else text(one) for one in spec if one not in MARKS)
    match = SPEC.fullmatch(spec)
    found = WORDS[match["type"]]
    if match["low"]:
        found += " %s %s" % ("above" if match["sign"] == ">" else "from", match["low"])
    found += ", at most %s" % match["high"] if match["high"] else ""
    if match["type"] in ("int", "size", "size auto") and isinstance(value, float) and value.is_integer():
        found += " (%d; in a template with | int)" % value
    return found + (", or several" if match["several"] else "") + (", or null" if match["null"] else "")


def check_limit(key, value, spec):
    """Raises FleetError (of checks.invalid) if a value is not above 0 or not allowed. spec: of an option."""
    if not fits(spec, value) or (spec.startswith("size") and str(value) not in ("auto", "-1") and not size(value)):
        raise invalid(key, value, _allowed(spec, value))


def size(value):
    """Return a number of bytes or tokens such as 4096, "4K" or "1.5M"; None if it is not a whole number above 0."""
    match = SIZE.fullmatch(str(value).strip()) if not isinstance(value, (bool, float, list, dict)) else None
    found = float(match.group(1)) * SUFFIXES[match.group(2)] if match else 0
    return int(found) if 0 < found <= MAX_SIZE and found == int(found) else None


def command_flags(words):
    """Return {flag: its string, or True for a flag without a value} of the flags in a command."""
    values, index = {}, 0
    while index < len(words):
        word = words[index]
        index += 1
        if not FLAG.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = True
            if index < len(words) and not FLAG.match(words[index]):
                value = words[index]
                index += 1
        values[name] = value
    return values


def text(value):
    """Return a value as an engine reads it from argv or environment: strings unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
