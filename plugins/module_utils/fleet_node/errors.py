# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Typed errors; they become fail_json only in a module's main()."""

from __future__ import annotations

from .visible import visible

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
