# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of engines' programs by version, and a strict check of a command line by them.

The data is a file of versioned_fields.py, which tools/engine_flags.py writes from the real parsers. What an option
takes: a list of values, or a type: "switch" (bare), "switch no" (also as --no-NAME), "str", "int", "float", "size"
(4k, 8M), "size auto", "json", "dict" (JSON), "model" (JSON with a table of its own), "str or json" (JSON where it
begins with a brace). Behind it, or in the list: "..." for several words, "=" where it may be without a value.
"""

from __future__ import annotations

import dataclasses
import json
import re

from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, number
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import close_to
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.base import SIZE, command_flags, text
from ansible_collections.inference.fleet.plugins.plugin_utils.engines.versioned_fields import Check

KIND = re.compile(r"(switch no|switch|size auto|size|str or json|str|int|float|json|dict|model)(\.\.\.)?(=)?")
MARKS = ("...", "=", "~", None)
SUFFIXED = re.compile(r'("(?:[^"\\]|\\.)*")|\b(\d+(?:\.\d+)?)[kKmMgGtT]\b')  # of a bare number in JSON: 80m
CUTOFF = 0.7  # how close an option must come to be what was meant
WORDS = {
    "switch": "true or false", "switch no": "true or false", "size": "a whole number, also with k, K, m, M, g or G",
    "size auto": "auto, -1 or a whole number, also with k, K, m, M, g or G", "str or json": "a string or a mapping",
    "str": "a string", "int": "a whole number", "float": "a number", "json": "JSON", "dict": "a mapping or JSON of one",
    "model": "a mapping or JSON of one",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Source:
    """Options that a program takes. fields: versioned_fields.Fields. tables: of it. version: packaging's, or None.

    further: {option, or its path in an option's mapping: values} that a plugin of the engine adds."""

    fields: object
    tables: tuple
    version: object
    further: dict = dataclasses.field(default_factory=dict)


def check(where, sources, given):
    """FleetError with all that a program refuses of its options.

    sources: [Source], the engine's own last. given: [(place, option as it is written, value)].
    """
    mistakes = Mistakes()
    for line in _held(where, sources, given):
        for error in line.mistakes.errors:
            mistakes.keep(error)
    mistakes.raise_any()


def notes(sources, words):
    """Sentences on what a program may refuse of the words behind it, and on a version that is not on record."""
    given = [("arguments." + name, name, value) for name, value in command_flags(words).items()]
    found = [warning for line in _held("", sources, given) for warning in line.warnings]
    return [*_unrecorded(sources[0].fields, sources[0].version), *found]


def _held(where, sources, given):
    """A line for each source, with what is wrong with its options."""
    names = sorted({name for source in sources for table in source.tables
                    for name in source.fields.data["models"].get(table, ())})  # fmt: skip
    lines = [_Line(source, where, names) for source in sources]
    for place, option, value in given:
        if value is not None and value is not False:
            base, _dot, rest = option.partition(".")
            base = base.replace("_", "-")
            line = next((one for one in lines if one.find(base)), lines[-1])
            line.option(place, base, rest.replace("-", "_"), value)
    return lines


def _unrecorded(fields, version):
    """A sentence on a version that is not on record, in a list."""
    recorded = fields.data["recorded"]
    if str(version) in recorded:
        return []
    name = "%s %s" % (fields.label, version) if version else "The release of %s is not known, so it" % fields.label
    return [
        "%s is not on record: its options are checked in the plan by those of %s, and on the node by its own parser "
        "before anything is stopped." % (name, ", ".join(recorded))
    ]


class _Line(Check):
    """The options of one source against a version."""

    def __init__(self, source, where, names):
        super().__init__(source.fields, where, source.version)
        self.source, self.names = source, names

    def find(self, name):
        """(table, name of the option, whether it is negated) as far as any release has it; None elsewhere."""
        models = self.fields.data["models"]
        for one, negated in ((name, False), *([(name[3:], True)] if name.startswith("no-") else [])):
            for table in self.source.tables:
                if one in models.get(table, ()):
                    return table, one, negated
        return None

    def option(self, place, name, rest, value):
        table, base, negated = self.find(name) or (self.source.tables[0], name, False)
        specs = [self._spec(table, base, point) for point in self.points]
        if negated:
            specs = [spec if spec == "switch no" else "" for spec in specs]
        taking = [spec for spec in specs if spec]
        if not taking:
            self._unknown(table, name if negated else base, "", place, specs)
        elif rest:
            if any(spec == "model" for spec in taking):
                self._mapping(base, base + ".", _nested(rest, value), place[: -len(rest)])
        else:
            self._judge(place, value, specs, taking, fits)
            content = _json(value)
            if "model" in taking and isinstance(content, dict):
                self._mapping(base, base + ".", content, place + ".")

    def _spec(self, table, name, point):
        spec = super()._spec(table, name, point)
        path = name if table in self.source.tables else "%s.%s" % (table, name)
        return [*spec, *self.source.further.get(path, ())] if isinstance(spec, list) else spec

    def _meant(self, table, name):
        if table in self.source.tables:
            return close_to(name, self.names, CUTOFF)
        return super()._meant(table, name)

    def _allowed(self, specs):
        found = {}
        for spec in specs:
            if isinstance(spec, list):
                found.update(dict.fromkeys(text(one) for one in spec if one not in MARKS))
            elif KIND.fullmatch(spec):
                match = KIND.fullmatch(spec)
                found[WORDS[match[1]] + (", or several" if match[2] else "")] = None
            else:
                return super()._allowed(specs)
        return ", ".join(found)


def _nested(path, value):
    """The mapping that an option with dots stands for."""
    name, _dot, rest = path.partition(".")
    return {name: _nested(rest, value) if rest else value}


def fits(spec, value):
    """Whether an option takes a value as the recipe has it."""
    if isinstance(spec, list):
        kind, several, bare = None, "..." in spec, "=" in spec
    else:
        kind, several, bare = KIND.fullmatch(spec).groups()
    if value is True:
        return bool(bare) or kind in ("switch", "switch no")
    if isinstance(value, list):
        return bool(several) and bool(value) and all(_fits_word(spec, kind, one) for one in value)
    return _fits_word(spec, kind, value)


def _fits_word(spec, kind, value):
    if kind is None:
        words = [text(one) for one in spec if one not in MARKS]
        return text(value) in words or ("~" in spec and text(value).upper() in words)
    if kind in ("int", "float"):
        return number(value, kind == "int") is not None
    if kind in ("size", "size auto"):
        automatic = kind == "size auto" and str(value) in ("auto", "-1")
        return automatic or (not isinstance(value, (bool, dict)) and bool(SIZE.fullmatch(str(value).strip())))
    if kind == "str or json" and isinstance(value, str) and value.strip().startswith("{"):
        return _json(value) is not None
    if kind == "json":
        return not isinstance(value, str) or _json(value) is not None
    if kind in ("dict", "model"):
        return isinstance(_json(value), dict)
    return kind in ("str", "str or json")


def _json(value):
    """What an option's value is as JSON, None where it is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(SUFFIXED.sub(lambda match: match[1] or match[2], value))
    except ValueError:
        return None
