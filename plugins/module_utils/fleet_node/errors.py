# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Typed errors; they become fail_json only in a module's main(). Their catalogue is errors.json."""

from __future__ import annotations

import functools
import itertools
import json
import pkgutil
import re
import string

CATALOGUE = "errors.json"
SEVERAL = "several"


class FleetError(Exception):
    """An error with a remedy. The message contains the problem, its place, valid values and the remedy.

    code: stable, `area.what-is-wrong`, of the catalogue. values: those of the placeholders in the code's template, in
    the order in which the placeholders first appear; invisible characters are replaced. The only value of a code that
    the catalogue does not have, such as a vendor's in another collection, is its message. details: JSON-ready values
    that a module adds to its result, with the code, in addition to `msg`.
    """

    def __init__(self, code, *values, details=None):
        self.code = code
        self.values = values
        self.message = visible(message_of(code, values), lines=True)
        super().__init__(self.message)
        self.problems = (self,)
        self.details = dict(details or {}, code=code)

    @classmethod
    def written(cls, code, message, values=(), details=None):
        """An error whose message is already written."""
        found = cls(None, message, details=details)
        found.code = found.details["code"] = code
        found.values = values
        return found

    @classmethod
    def together(cls, problems):
        """An error for several errors, with a line for each different message."""
        each = tuple({one.message: one for error in problems for one in error.problems}.values())
        if len(each) == 1:
            return each[0]
        codes = {one.code for one in each}
        found = cls.written(codes.pop() if len(codes) == 1 else SEVERAL, "\n".join(one.message for one in each))
        found.problems = each
        found.details["errors"] = [{"code": one.code, "message": one.message} for one in each]
        return found

    def within(self, where):
        """The same error with `where` before each line of its message."""
        return self.rewritten(lambda text: "\n".join(where + line for line in text.splitlines()))

    def rewritten(self, change):
        """The same error with change(message) for the message of each of its problems."""
        return FleetError.together(
            [FleetError.written(one.code, change(one.message), one.values, one.details) for one in self.problems]
        )


@functools.cache
def catalogue():
    """{code: {"problem": template, "remedy": template}} of all errors of this collection."""
    return json.loads(pkgutil.get_data(__package__, CATALOGUE))


def placeholders(code):
    """The names of a code's placeholders, in the order of their values."""
    return list(dict.fromkeys(name for _text, name, _spec, _as in string.Formatter().parse(template_of(code)) if name))


def template_of(code):
    """The problem of a code and its remedy, on the same line unless the problem ends a line."""
    problem, remedy = catalogue()[code]["problem"], catalogue()[code]["remedy"]
    return problem + (" " if remedy and not problem.endswith("\n") else "") + remedy


def message_of(code, values):
    """The message of an error."""
    if code not in catalogue():
        return " ".join(map(str, values))
    return template_of(code).format(**dict(itertools.zip_longest(placeholders(code), values, fillvalue="?")))


def argument_invalid(name, value, allowed):
    """The FleetError for an argument of an operation."""
    return FleetError("arguments.value-invalid", name, value, allowed)


# ---- strings of servers, logs and programs


# Control characters except tab and line feed, marks of direction, zero-width characters, line separators, surrogates.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    # joiners, except within emoji and scripts that need them
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)


def visible(text, lines=False):
    """A string with invisible characters replaced: control characters by their picture, others by their number.

    lines: whether it may have several lines; otherwise line feeds and tabs are replaced too.
    """
    if text.isascii() and text.isprintable():
        return text
    text = UNSEEN.sub(_picture, text.replace("\r\n", "\n"))
    return text if lines else text.replace("\n", "\u240a").replace("\t", "\u2409")


def cut(text, limit):
    """`text` on one line of at most `limit` characters, with an ellipsis if it is longer."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def visible_all(value):
    """A JSON value with all strings in it, keys too, as visible() of several lines shows them."""
    if isinstance(value, str):
        return visible(value, lines=True)
    if isinstance(value, dict):
        return {visible_all(key): visible_all(one) for key, one in value.items()}
    return [visible_all(one) for one in value] if isinstance(value, (list, tuple)) else value


def _picture(match):
    number = ord(match.group())
    if number < 0x20:
        return chr(0x2400 + number)
    return "\u2421" if number == 0x7F else "\u27e8U+%04X\u27e9" % number
