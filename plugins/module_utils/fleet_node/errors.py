# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Typed errors; they become fail_json only in a module's main()."""

from __future__ import annotations

import re

SEVERAL = "several"


class FleetError(Exception):
    """An error with a remedy. The message contains the problem, its place, valid values and the remedy.

    code: stable, `area.what-is-wrong`, listed in docs/using/errors.md. message: a template for the tuple `values`, as
    in logging; invisible characters are replaced. details: JSON-ready values that a module adds to its result, with the
    code, in addition to `msg`.
    """

    def __init__(self, code, message, values=(), details=None):
        self.code = code
        self.values = values
        self.message = visible(message % values if values else message, lines=True)
        super().__init__(self.message)
        self.problems = (self,)
        self.details = dict(details or {}, code=code)

    @classmethod
    def together(cls, problems):
        """An error for several errors, with a line for each different message."""
        each = tuple({one.message: one for error in problems for one in error.problems}.values())
        if len(each) == 1:
            return each[0]
        codes = {one.code for one in each}
        found = cls(codes.pop() if len(codes) == 1 else SEVERAL, "\n".join(one.message for one in each))
        found.problems = each
        found.details["errors"] = [{"code": one.code, "message": one.message} for one in each]
        return found

    def within(self, where):
        """The same error with `where` before each line of its message."""
        return self.rewritten(lambda text: "\n".join(where + line for line in text.splitlines()))

    def rewritten(self, change):
        """The same error with change(message) for the message of each of its problems."""
        found = []
        for one in self.problems:
            new = FleetError(one.code, change(one.message), details=one.details)
            new.values = one.values
            found.append(new)
        return FleetError.together(found)


def argument_invalid(name, value, allowed):
    """The FleetError for an argument of an operation."""
    return FleetError("arguments.invalid", "%s is %r; allowed: %s. Correct the argument.", (name, value, allowed))


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
