# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server is started with, line by line, as pages set it beside a vendor's guide."""

from __future__ import annotations

import json


def variables(values):
    """{name: NAME=value}."""
    return {name: "%s=%s" % (name, value) for name, value in values.items()}


def by_key(words, content, program):
    """{flag, or key of the YAML: its line} of the words of a command and of its configuration; "" has the words of the
    program, which `program` counts."""
    found = {"": " ".join(words[:program])}
    words = words[program:]
    for number, word in enumerate(words):
        if word.startswith("--"):
            value = words[number + 1] if number + 1 < len(words) and not words[number + 1].startswith("--") else None
            if value and value.startswith("{"):
                value = json.dumps(json.loads(value), separators=(",", ":"))
            found[word] = word if value is None else "%s %s" % (word, value)
    for key, value in content.items():
        for inner, item in value.items() if isinstance(value, dict) else [("", value)]:
            name = "%s.%s" % (key, inner) if inner else key
            found[name] = "%s: %s" % (name, json.dumps(item).strip('"'))
    return found
