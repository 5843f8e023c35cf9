# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of an engine's config file. A node has no YAML library, hence an emitter: block style, scalars as JSON."""

from __future__ import annotations

import json
import math
import re

_PLAIN_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"))
# what a YAML reader refuses or folds though JSON lets it stand
_UNFIT = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def config_text(config):
    """The text of an entry's config ({path, format, content}): YAML in block style or indented JSON, None for None."""
    if config is None:
        return None
    if config["format"] == "json":
        return json.dumps(config["content"], indent=2, ensure_ascii=False) + "\n"
    return "".join(line + "\n" for line in _yaml(config["content"], ""))


def _yaml(value, indent):
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _yaml_item(indent + _yaml_key(key) + ":", item, indent)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _yaml_item(indent + "-", item, indent)
    else:
        yield indent + _yaml_scalar(value)


def _yaml_item(head, value, indent):
    if isinstance(value, (dict, list)) and value:
        yield head
        yield from _yaml(value, indent + "  ")
    else:
        yield "%s %s" % (head, _yaml_scalar(value))


def _yaml_key(key):
    return key if _PLAIN_KEY.match(key) and key.lower() not in _WORDS else _yaml_scalar(key)


def _yaml_scalar(value):
    if isinstance(value, float):
        if math.isnan(value) or value in (float("inf"), float("-inf")):
            return {"inf": ".inf", "-inf": "-.inf"}.get(repr(value), ".nan")
        text = repr(value)  # YAML 1.1 wants a dot in the mantissa: 1e-05 would be read as a string
        return re.sub(r"^(-?[0-9]+)e", r"\1.0e", text)
    text = json.dumps(value, ensure_ascii=False)
    return _UNFIT.sub(lambda found: "\\u%04x" % ord(found.group()), text) if isinstance(value, str) else text
