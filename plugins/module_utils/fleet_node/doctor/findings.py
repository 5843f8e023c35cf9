# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of doctor.yml: what is wrong on a node, why, and what to do."""

from __future__ import annotations

import re

from ..errors import FleetError

PAGE = "docs/using/errors.md#%s"
SENTENCE = re.compile(r"(?<=[^\s.]{2})\.\s+(?=[A-Z`'])")  # the end of a message's first sentence


class NotChecked(Exception):
    """Why a check is not possible on this node."""


def findings(check, run):
    """[row()] of a check: one for each problem, or a single one with ok true, or with null and the reason if the check
    is not possible.

    run: a function that yields a FleetError for each problem, with the detail `server` for the problem of a server. A
    check that fails is a problem as well, so that the other checks run on a node in any state.
    """
    found = []
    try:
        for error in run():
            found += _rows(check, error)
    except NotChecked as reason:
        found.append(row(check, None, cause=str(reason)))
    except FleetError as error:
        found += _rows(check, error)
    except Exception as error:  # the node may be in any state, and the other checks follow
        unknown = FleetError(
            "doctor.check-failed",
            "The check %s ended with %s: %s. Run doctor.yml with -e fleet_bundle=PATH, and report this with that file.",
            (check, type(error).__name__, error),
        )
        found += _rows(check, unknown)
    return found or [row(check, True)]


def row(check, ok, cause=None, remedy=None, code=None, server=None):
    """A finding. page: what the documentation has on its code."""
    page = PAGE % re.sub(r"[^a-z0-9-]", "", code) if code else None
    return {"check": check, "ok": ok, "cause": cause, "remedy": remedy, "code": code, "page": page, "server": server}


def _rows(check, error):
    problems = [(one["check"], one["message"], error.code) for one in error.details.get("problems") or ()]
    for name, message, code in problems or [(None, one.message, one.code) for one in error.problems]:
        cause, *more = SENTENCE.split(" ".join(message.split()), maxsplit=1)
        shown = "%s: %s" % (check, name) if name else check
        yield row(shown, False, cause.rstrip("."), more[0] if more else None, code, error.details.get("server"))


def advised(cause):
    """(the cause, its remedy) of a sentence of servers/causes.py or of an engine."""
    words, _colon, remedy = cause.partition(": ")
    return words, remedy or "restart the server with playbooks/restart.yml if it does not recover"
