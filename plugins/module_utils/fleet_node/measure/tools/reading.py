# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of commands, and metrics by their paths in the files that a tool writes.

A template is a list of groups, each a string of words or a list of words:

  "--model ${model}"              the value of a placeholder
  "--request-rate ${rate}"        the group is omitted if a value is None or False
  "--ignore-eos ${ignore_eos}"    True is the bare flag
  "--url ${urls}"                 the group is repeated for each item of a list
  "--goodput ${*goodput}"         all items of a list as words

A metric is a path, with factors and divisors: "totals.0.rate", "ttft_s.p50 * 1000", "tokens / completed". The first *
in a latency is replaced by the tool's name of each statistic. Of several expressions the first with a number counts.
"""

from __future__ import annotations

import collections
import csv
import glob
import json
import math
import os
import re
from dataclasses import dataclass, field

from ...host import files
from ...host.http_client import cut
from .. import result

PLACEHOLDER = re.compile(r"\$\{(\*?)(\w+)\}")
OPERATOR = re.compile(r" ([*/]) ")
QUANTITY = re.compile(r"^(-?[0-9.]+(?:e[+-]?[0-9]+)?) ?(.*)$", re.IGNORECASE)
UNITS = {"ms": 1.0, "s": 1000.0, "us": 0.001, "token/s": 1.0, "req/s": 1.0}
PROGRESS = re.compile(r"(\d+)/(\d+) \[")  # of tqdm
MESSAGE = 300  # characters of an error
LATENCIES = result.LATENCIES


@dataclass
class Reading:
    """The numbers that a tool reports. completed, failed: as the tool counts them. errors: [{message, count}].
    metrics: as in a result, without those that are computed from others."""

    completed: int = 0
    failed: int = 0
    errors: list = field(default_factory=list)
    input_tokens: float | None = None
    output_tokens: float | None = None
    metrics: dict = field(default_factory=result.no_metrics)


def expand(template, values):
    """The words of a template."""
    return [word for group in template for word in _group(group.split() if isinstance(group, str) else group, values)]


def environment(spec, values):
    """The environment of a tool; None removes a variable."""
    given = spec.get("environment") or {}
    return {name: text and "".join(expand([[text]], values)) for name, text in given.items()}


def placeholders(words):
    """The names of the placeholders in these words."""
    return {match[2] for word in words for match in PLACEHOLDER.finditer(word)}


def _group(words, values):
    given = {name: values[name] for name in placeholders(words)}
    if any(value is None or value is False for value in given.values()):
        return []
    for star, name in (match for word in words for match in PLACEHOLDER.findall(word)):
        if not star and isinstance(given[name], (list, tuple)):
            return [word for item in given[name] for word in _group(words, {**values, name: item})]
    argv = []
    for word in words:
        match = PLACEHOLDER.fullmatch(word)
        if match and match[1]:
            argv += map(str, given[match[2]])
        elif not match or given[match[2]] is not True:
            argv.append(PLACEHOLDER.sub(lambda found: str(given[found[2]]), word))
    return argv


def load(folder, patterns):
    """The value in the newest file of each pattern, merged; None if a file is missing or damaged.

    A list becomes {index: item}, and a CSV file {first cell of a row: {column: cell}}.
    """
    merged = {}
    for pattern in patterns:
        paths = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
        value = _load(paths[-1]) if paths else None
        if isinstance(value, list):
            value = {str(index): item for index, item in enumerate(value)}
        if not isinstance(value, dict):
            return None
        merged.update(value)
    return merged


def _load(path):
    if not path.endswith(".csv"):
        return files.read_json(path)
    with open(path, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {next(iter(row.values())): {column: _cell(cell) for column, cell in row.items()} for row in rows}


def _cell(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def number(value):
    """The finite number of 3, or of "252.6 ms" in milliseconds; None for anything else."""
    if isinstance(value, str):
        match = QUANTITY.match(value.strip())
        return float(match[1]) * UNITS[match[2]] if match and match[2] in UNITS else None
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if valid else None


def measured(data, expressions):
    """The number of the first of these expressions that has one, else None."""
    for expression in [expressions] if isinstance(expressions, str) else expressions:
        path, *rest = OPERATOR.split(expression)
        value = number(_at(data, path))
        for sign, operand in zip(rest[::2], rest[1::2]):
            other = _cell(operand)
            other = number(_at(data, operand) if other is operand else other)
            value = None if value is None or not other else value * other if sign == "*" else value / other
        if value is not None:
            return value
    return None


def _at(data, path):
    for key in path.split("."):
        if isinstance(data, list) and key.isdigit() and int(key) < len(data):
            data = data[int(key)]
        elif isinstance(data, dict) and key in data:
            data = data[key]
        else:
            return None
    return data


def latency(metrics, name, statistic, words):
    """The expressions of a statistic of a latency. words: {statistic: the tool's names of it}."""
    if "%s.%s" % (name, statistic) in metrics:
        return metrics["%s.%s" % (name, statistic)]
    pattern, given = metrics.get(name, ""), words.get(statistic, statistic)
    return [pattern.replace("*", word, 1) for word in ([given] if isinstance(given, str) else given)]


def read(metrics, data, words, reading):
    """Fill a Reading from the data of a tool. metrics: {metric: expression}."""
    reading.completed = int(measured(data, metrics["completed"]) or 0)
    reading.failed = int(measured(data, metrics.get("failed", "")) or 0)
    if not reading.completed:  # zeros of a run without answers were not measured
        return reading
    for name in LATENCIES:
        for statistic in result.STATISTICS:
            reading.metrics[name][statistic] = measured(data, latency(metrics, name, statistic, words))
    for name in result.RATES:
        reading.metrics[name] = measured(data, metrics.get(name, ""))
    reading.input_tokens = measured(data, metrics.get("input_tokens", ""))
    reading.output_tokens = measured(data, metrics.get("output_tokens", ""))
    known = [reading.metrics["requests_per_s"], reading.input_tokens, reading.metrics["output_tokens_per_s"]]
    if reading.metrics["total_tokens_per_s"] is None and None not in known:
        reading.metrics["total_tokens_per_s"] = known[0] * known[1] + known[2]
    return reading


def counted(messages):
    """[{message, count}] of the messages of failed requests, the most frequent first."""
    return [{"message": text, "count": count} for text, count in collections.Counter(messages).most_common()]


def short(text):
    """A message of one line, cut."""
    return cut(str(text), MESSAGE)


def progress(log):
    """(finished, all) requests of the last progress bar of a log, or (None, None)."""
    found = PROGRESS.findall(log.replace("\r", "\n"))
    return tuple(map(int, found[-1])) if found else (None, None)


def json_lines(path):
    """The mappings in a file of JSON lines; a line that a killed writer left is ignored."""
    found = []
    for line in (files.read_text(path) or "").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
