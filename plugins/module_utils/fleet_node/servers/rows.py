# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's row in the result of a module."""

from __future__ import annotations

import datetime

from ..visible import visible
from .model import condition
from .observe import read_secrets, redactor_of

FAILED_LOG_LINES = 15
LONGEST_LINE = 4000  # characters of a log's line that are shown


def row(node, observed, action=None, check=False):
    """The result's line for one server. action: what was done with it, or would be (check)."""
    now = condition(observed)
    reason = now.reason
    if action is not None and check:
        reason = "would %s: %s" % (action.kind, action.reason)
    elif action is not None and action.repairs:
        reason = action.reason if action.kind == "record" else "restarted: " + action.reason
    return {
        "name": observed.name,
        "state": now.state,
        "ready": None,
        "since": utc(now.since),
        "restarts": now.restarts,
        "pid": now.pid,
        "hash": now.hash or (observed.entry or {}).get("hash"),
        "reason": reason and visible(reason),
        "log_tail": log_tail(node.paths, node.manager, observed.name, FAILED_LOG_LINES)
        if now.state == "failed"
        else [],
    }


def utc(epoch):
    """ISO 8601 in UTC, whole seconds; None for None."""
    if epoch is None:
        return None
    moment = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def log_tail(paths, manager, name, lines):
    """The last lines of the server's log without the values of its secrets, [str], what is unseen shown; of a very long
    line both ends."""
    text = "\n".join(manager.log_tail(name, lines))
    if not text:
        return []
    return [_shortened(visible(line)) for line in redactor_of(read_secrets(paths, name)).text(text).split("\n")]


def _shortened(line):
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else "%s … %s" % (line[:half], line[-half:])
