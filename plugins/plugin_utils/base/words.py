# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How messages show user input: values, paths of keys, invisible characters, similar names."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata

from ...module_utils.fleet_node.host.redact import LOOSE_USER, URL_USER

TRUE = frozenset(("true", "yes", "on"))
FALSE = frozenset(("false", "no", "off"))
SWITCHES = TRUE | FALSE | {"1", "0"}
SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:(?:api|access|secret|private|auth)_?key|secret|passw(?:or)?d|passphrase|credentials?|authorization"
    r"|(?:hf|hub|api|auth|access|bearer|secret|github|gitlab|git|ngc|wandb|ms|modelscope|session|refresh|client|id)_?token)$"
)
TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|nvapi-[\w-]{16,}|gh[pousr]_\w{20,})|\b[Bb](?:earer|asic) +[^\s\"'$*]{6,}"
)
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,2})?")


def is_true(value):
    """Return whether a valid switch is on."""
    return str(value).strip().lower() in TRUE | {"1"}


def names_secret(name):
    """Return whether a flag, variable or key of this name contains a secret."""
    return bool(SECRET_NAME.search(str(name).replace("-", "_"))) or str(name).endswith("TOKEN")


def holds_secret(value):
    """Return whether a string contains a token, a header with a token, or a URL with a password."""
    urls = [who for login in (URL_USER, LOOSE_USER) for who in login.findall(value)]
    return bool(TOKEN.search(value)) or any(":" in who and not who.endswith(":") for who in urls)


def show(value, limit=80):
    """Return a value for a message, truncated.
    Invisible characters are escaped; passwords in URLs and tokens are masked."""
    text = TOKEN.sub("********", json.dumps(value, ensure_ascii=False, default=str))
    for login in (URL_USER, LOOSE_USER):
        text = login.sub("://********@", text)
    return visible(text if len(text) <= limit else text[: limit - 1] + "…")


def visible(text):
    """Return ``text`` with line breaks and invisible characters escaped."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in str(text))


def odd_characters(text):
    """Return the names of invisible and easily confused characters in ``text`` as " (it contains U+200B …)", or ""."""
    odd = dict.fromkeys(one for one in str(text) if not " " <= one <= "~")
    names = ["U+%04X %s" % (ord(one), unicodedata.name(one, "that is no letter")) for one in odd]
    return " (it contains %s; type it again)" % ", ".join(names[:3]) if names else ""


def path_text(path):
    """Return a path of keys and indexes as a string, such as servers[0].port."""
    text = ""
    for part in path:
        text += "[%d]" % part if isinstance(part, int) else (("." if text else "") + visible(part))
    return text


def some(names):
    """Return up to three names and the number of further names."""
    return ", ".join(names[:3]) + (" and %d more" % (len(names) - 3) if len(names) > 3 else "")


def natural(name):
    """Return a sort key: node-2 is before node-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(len(part.lstrip("0")), part) if number % 2 else (0, part) for number, part in enumerate(parts)]


def by_text(pairs):
    """Return {text: [names]} of [(text, name)], in order, to merge equal messages."""
    found = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return found


def close_to(name, known, cutoff=0.8):
    """Return the name in ``known`` that ``name`` probably stands for, or "". cutoff: required similarity, up to 1."""
    close = difflib.get_close_matches(name, sorted(known), 1, cutoff=cutoff)
    return close[0] if close else ""


def meant(name, known, form="'%s'", cutoff=0.6):
    """Return the part of a message with the name in ``known`` that ``name`` probably stands for, or ""."""
    close = close_to(name, known, cutoff)
    return "; did you mean %s?" % (form % close) if close else ""
