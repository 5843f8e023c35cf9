# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How messages show what people wrote: values, paths of keys, characters that cannot be seen, names that come close."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata

from ansible_collections.inference.fleet.plugins.module_utils.node.redact import LOOSE_USER, URL_USER

TRUE = frozenset(("true", "yes", "on"))
FALSE = frozenset(("false", "no", "off"))
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,2})?")


def show(value, limit=80):
    """A value as a person reads it in a message, cut. What cannot be seen is escaped, passwords in URLs are masked."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    for login in (URL_USER, LOOSE_USER):
        text = login.sub("://********@", text)
    return visible(text if len(text) <= limit else text[: limit - 1] + "…")


def visible(text):
    """``text`` with line breaks and characters that cannot be seen as escapes."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in str(text))


def odd_characters(text):
    """Names of the characters in ``text`` that look like others or like nothing, " (it holds U+200B …)", or ""."""
    odd = dict.fromkeys(one for one in str(text) if not " " <= one <= "~")
    names = ["U+%04X %s" % (ord(one), unicodedata.name(one, "that is no letter")) for one in odd]
    return " (it holds %s; type it again)" % ", ".join(names[:3]) if names else ""


def path_text(path):
    """A path of keys and indexes as a string: servers[0].port."""
    text = ""
    for part in path:
        text += "[%d]" % part if isinstance(part, int) else (("." if text else "") + visible(part))
    return text


def some(names):
    """Up to three names, and how many more there are."""
    return ", ".join(names[:3]) + (" and %d more" % (len(names) - 3) if len(names) > 3 else "")


def close_to(name, known):
    """The one of ``known`` that ``name`` was probably meant to be, or ""."""
    close = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.8)
    return close[0] if close else ""
