# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for tensorrt_llm.llmapi.llm_args: as strict as pydantic's StrictBaseModel, by the fields of a release.

It knows nothing of how the collection checks: it reads the same data (plugins/plugin_utils/engines/trtllm_fields.json),
and has one truth for each release, that of the nearest one on record at or below it.

In an image it is tensorrt_llm/llmapi/llm_args.py, with trtllm_fields.json beside it and the release in
TENSORRT_LLM_VERSION; there TorchLlmArgs(**given) raises as the real one does. As a program: VERSION FILE.json prints
what is wrong and ends with 1.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
PLACES = (HERE / "trtllm_fields.json", HERE.parents[1] / "plugins" / "plugin_utils" / "engines" / "trtllm_fields.json")


def fields(path=None):
    """The data. path: of trtllm_fields.json where it is in none of PLACES."""
    found = next(one for one in ([pathlib.Path(path)] if path else PLACES) if one.exists())
    return json.loads(found.read_text(encoding="utf-8"))


def order(version):
    """A release as a tuple that sorts as PEP 440 has it: 1.1.0rc2.post1 < 1.1.0 < 1.1.0.post1. Other names are old."""
    found = re.fullmatch(r"(\d+(?:\.\d+)*)(?:rc(\d+))?(?:\.post(\d+))?", version)
    numbers, rc, post = found.groups() if found else ("0", None, None)
    return tuple(map(int, numbers.split("."))), int(rc) if rc else 10**6, int(post or 0)


def taken(data, version, table):
    """{name: what it takes} of a table in a release; one before the first on record has what that has."""
    found, release = {}, max(order(version), order(data["recorded"][0]))
    for name, history in data["models"].get(table, {}).items():
        for since, spec in history.items():
            if order(since) <= release:
                found[name] = spec
    return {name: spec for name, spec in found.items() if spec is not None}


def problems(version, content, data=None):
    """[(path, message, type, value)] of what a release refuses, as pydantic names it."""
    data = data or fields()

    def walk(table, path, given):
        chooser = data["variants"].get(table)
        known = taken(data, version, table)
        if chooser and given.get(chooser) in known.get(chooser, ()):
            further = taken(data, version, "%s.%s" % (table, given[chooser]))
            known = {**known, **(further or dict.fromkeys(given, "any?"))}
        for name in data["required"].get(table, ()):
            if name not in given:
                yield (*path, name), "Field required", "missing", given
        if chooser and given.get(chooser) not in known.get(chooser, ()):
            if chooser in given:
                yield (*path, chooser), "Invalid decoding type: %s" % given[chooser], "value_error", given[chooser]
            return
        for name, value in given.items():
            if name not in known:
                yield (*path, name), "Extra inputs are not permitted", "extra_forbidden", value
                continue
            wrong = misfit(known[name], value)
            if wrong:
                yield (*path, name), *wrong, value
            elif isinstance(value, dict) and str(known[name]).startswith("model"):
                yield from walk(".".join((*path, name)), (*path, name), value)

    return list(walk("", (), content))


def misfit(spec, value):
    """(message, type) where a value is none for a field, None where it is one."""
    if isinstance(spec, list):
        open_ended = "*" in spec
        words = [one for one in spec if one not in ("*", "~")]
        if open_ended or value in words or ("~" in spec and str(value).upper() in words):
            return None
        named = ["'%s'" % one for one in words if one is not None]
        return "Input should be %s or %s" % (", ".join(named[:-1]), named[-1]), "literal_error"
    kind, bounds = re.fullmatch(r"([a-z]*(?:\[int\])?|\?)(.*)", spec).groups()
    nullable, bounds = spec.endswith("?"), bounds.rstrip("?").strip()
    if kind in ("any", "?", "") or (value is None and nullable):
        return None
    if kind in ("int", "float"):
        try:
            number = float(value) if isinstance(value, str) else value + 0.0
        except (TypeError, ValueError):
            return "Input should be a valid %s" % ("integer" if kind == "int" else "number"), kind + "_type"
        if kind == "int" and number != int(number):
            return "Input should be a valid integer, got a number with a fractional part", "int_from_float"
        low, high = re.match(r"(>=?-?\d+|\d+)?(?:\.\.(\d+))?", bounds).groups()
        if low and low.startswith(">") and not low.startswith(">="):
            if number <= float(low[1:]):
                return "Input should be greater than %s" % low[1:], "greater_than"
        elif low and number < float(low.lstrip(">=")):
            return "Input should be greater than or equal to %s" % low.lstrip(">="), "greater_than_equal"
        if high and number > float(high):
            return "Input should be less than or equal to %s" % high, "less_than_equal"
        return None
    if kind == "bool":
        fits = isinstance(value, bool) or value in (0, 1) or str(value).lower() in (
            "true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "0", "1",
        )  # fmt: skip
        return None if fits else ("Input should be a valid boolean, unable to interpret input", "bool_parsing")
    kinds = {"str": (str, "string"), "list": (list, "list"), "list[int]": (list, "list"), "dict": (dict, "dictionary"),
             "model": (dict, "dictionary")}  # fmt: skip
    wanted, name = kinds[kind]
    return None if isinstance(value, wanted) else ("Input should be a valid %s" % name, name + "_type")


def report(version, content, data=None):
    """What pydantic prints; empty where nothing is wrong."""
    found = problems(version, content, data)
    lines = ["%d validation error%s for TorchLlmArgs" % (len(found), "" if len(found) == 1 else "s")]
    for path, message, kind, value in found:
        shown = repr(value)
        lines += [
            ".".join(path),
            "  %s [type=%s, input_value=%s, input_type=%s]" % (message, kind, shown[:50], type(value).__name__),
            "    For further information visit https://errors.pydantic.dev/2.11/v/%s" % kind,
        ]
    return "\n".join(lines) if found else ""


class TorchLlmArgs:
    """As the real one: fields by keyword, ValueError (of which pydantic's ValidationError is one) for what is wrong."""

    def __init__(self, **given):
        words = report(os.environ.get("TENSORRT_LLM_VERSION", "1.2.1"), given)
        if words:
            raise ValueError(words)
        self.given = given


def update_llm_args_with_extra_dict(llm_args, llm_args_dict, extra_llm_api_options=None):
    """The YAML over the command line."""
    return {**llm_args, **llm_args_dict}


if __name__ == "__main__":
    text = report(sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")))
    print(text or "fine")
    raise SystemExit(1 if text else 0)
