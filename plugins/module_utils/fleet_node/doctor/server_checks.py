# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the servers of a node: drift, starts, logs and sampling."""

from __future__ import annotations

import json
import os
import time

from ..engines.registry import engine_of
from ..errors import FleetError
from ..host.files import readable_json
from ..servers import causes
from ..servers.observe import log_tail
from ..servers.readiness import CAUSE_LINES, waiting_since
from ..supervise.state import read_record
from .findings import NotChecked, advised

LOOP_STARTS, LOOP_S = 3, 3600
OVERRIDES = ("override-generation-config", "override_generation_config")


def drift(case):
    """How servers differ from the plan; see playbooks/status.yml."""
    for row in case.rows:
        for one in row["differences"] or ():
            yield FleetError(
                "doctor.server-differs",
                "%s: %s. Run site.yml, which repairs most differences; docs/using/operations.md lists the others.",
                (row["name"], one["text"]),
                {"server": row["name"]},
            )


def restarts(case):
    """Servers that end again and again."""
    for name in case.entries:
        record = read_record(case.paths.server_state(name))
        recent = [one for one in record.get("starts") or () if one > time.time() - LOOP_S]
        if len(recent) >= LOOP_STARTS:
            yield FleetError(
                "doctor.restart-loop",
                "%s was started %d times in the last hour (%s). See playbooks/logs.yml for the reason, correct it, and "
                "run site.yml.",
                (name, len(recent), record.get("reason") or record.get("phase") or "no reason is recorded"),
                {"server": name},
            )


def logs(case):
    """Known causes in the logs of servers that do not run or do not answer."""
    asked = False
    for row in case.rows:
        entry = case.entries.get(row["name"])
        if entry is None or row["ready"]:
            continue
        asked = True
        lines = log_tail(case.paths, case.node().manager, row["name"], CAUSE_LINES)
        budget_s = entry["health"]["budget_s"]
        began = waiting_since(read_record(case.paths.server_state(row["name"])), budget_s)
        late = began is not None and time.time() - began > budget_s
        cause = causes.log_cause(lines, engine_of(entry).inner(entry), late)
        if cause:
            yield FleetError(
                "doctor.log",
                "The log of %s shows that %s. See playbooks/logs.yml for the lines; %s.",
                (row["name"], *advised(cause)),
                {"server": row["name"]},
            )
    if not asked:
        raise NotChecked("every server is ready")


def sampling(case):
    """Defaults that make the model repeat itself: gpt-oss requires top_p 1."""
    for name, entry in case.entries.items():
        found = {}
        if entry.get("family"):  # other models have other defaults
            continue
        for folder in entry["weights"][:1]:
            path = os.path.join(folder, "generation_config.json")
            found[path] = readable_json(path)
        for key in OVERRIDES:
            found[key] = _mapping(entry["arguments"].get(key))
        for where, value in found.items():
            top_p = value.get("top_p") if isinstance(value, dict) else None
            if isinstance(top_p, (int, float)) and top_p < 1:
                yield FleetError(
                    "doctor.sampling",
                    "%s answers with top_p %g by default (%s), with which the model repeats itself and does not stop. "
                    "Set top_p to 1 there, or send it with each request.",
                    (name, top_p, where),
                    {"server": name},
                )


def _mapping(value):
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


CHECKS = {"servers": drift, "restarts": restarts, "logs": logs, "sampling": sampling}
