# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a run has something to do on each host: what node_state found, for the plays that follow.

It is a file in the run's temporary folder, as the plan is (run_plan.py), with a line for each look.
"""

from __future__ import annotations

import contextlib
import json
import os

from ansible import constants as C

NAME = "inference-fleet-look.jsonl"
NOBODY = ["!all"]  # the hosts of a play for nobody: an empty list of patterns would be everybody
STEPS = ("preflight", "prepare", "weights", "serve")


def note(host, steps, first):
    """Keep which steps were looked at on a host, and the first that differs, None for none."""
    line = json.dumps({"host": host, "steps": steps, "first": first}) + "\n"
    stream = os.open(_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(stream, line.encode())  # one call: hosts that end together have a process each
    finally:
        os.close(stream)


def forget():
    """What was found is no longer true: another playbook begins."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path())


def due(hosts, step):
    """Those of the hosts that have something to do in this step or an earlier one, or were not looked at."""
    found, begun = _read(), STEPS[: STEPS.index(step) + 1]
    return [host for host in hosts if host not in found or found[host]["first"] in begun]


def unchanged(host):
    """Whether the servers of a host were looked at, and the run has nothing to do there."""
    found = _read().get(host)
    return found is not None and "serve" in found["steps"] and found["first"] is None


def _read():
    """{host: what note() kept last}."""
    try:
        with open(_path(), encoding="utf-8") as stream:
            return {one["host"]: one for one in map(json.loads, stream)}
    except FileNotFoundError:
        return {}


def _path():
    return os.path.join(C.DEFAULT_LOCAL_TMP, NAME)
