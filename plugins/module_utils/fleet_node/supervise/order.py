# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of starts: a server waits until those before it are healthy."""

from __future__ import annotations

import os
import time

from ..engines import health_request as asking
from ..node.processes import process
from ..node.server_spec import health_port, read_entry
from .state import read_record, read_secrets, say

REQUEST_S = 5.0


def wait_for(leader, options, state, needless):
    """Wait until the server `leader` answers its health path with 200. False when its start budget is over.

    needless: a function that says whether there is nothing to wait for any more.
    """
    began = time.monotonic()
    reported = False
    while True:
        if needless():
            return True
        entry = read_entry(os.path.join(os.path.dirname(options.entry), leader + ".json"))
        health = (entry or {}).get("health", {})
        beside = [os.path.join(os.path.dirname(path), leader + ".json") for path in (options.state, options.secrets)]
        if entry is not None and is_healthy(entry, *beside):
            return True
        if not reported:
            reported = True
            say("waiting for %s" % leader)
            state.write("waiting for " + leader, None if entry else "%s is not deployed on this node" % leader)
        budget = health.get("budget_s", 300)
        if time.monotonic() - began > budget:
            say("%s was not healthy within its %d s" % (leader, budget))
            return False
        time.sleep(health.get("poll_s", 2))


def is_healthy(entry, state_path, secrets_path=None):
    """Whether the server answers 200 on its health path; one without any port is healthy when its engine runs.

    secrets_path: of the server's secrets, for a health path that asks for its API key.
    """
    if health_port(entry) is None:
        state = read_record(state_path)
        found = process(state.get("pid") or 0)
        return state.get("phase") == "running" and found is not None and found.ticks == state.get("ticks")
    return asking.health(entry, REQUEST_S, read_secrets(secrets_path) if secrets_path else {}).healthy
