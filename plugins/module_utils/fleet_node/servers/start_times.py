# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the steps of a server's start were done, and how much memory it has, by files that are there anyway."""

from __future__ import annotations

import os
import time

from ..node import processes
from ..node.python_environment import MARKER
from ..supervise.state import WEIGHT_MANIFEST


def of(paths, entry, observed):
    """{installed, weights, started, ready: UTC or None, artifact: "compiles", "loads" or None, memory_mib}.

    observed: Observed of the server. installed: when its environment was made or changed last; weights: when its
    checkpoints were complete; ready: when this process was first seen ready. memory_mib: of its processes, on the host.
    """
    state = observed.state if isinstance(observed.state, dict) else {}
    folders = state.get("weights") if isinstance(state.get("weights"), dict) else {}
    return {
        "installed": _moment(None if entry["container"] else _changed(_environment(entry), MARKER)),
        "weights": _moment(max(filter(None, (_changed(folder, WEIGHT_MANIFEST) for folder in folders)), default=None)),
        "started": _moment(state.get("started")),
        "ready": _moment(_changed(paths.ready(entry["name"])) if observed.was_ready else None),
        "artifact": state.get("artifact"),
        "memory_mib": processes.memory_mib(observed.pids),
    }


def _environment(entry):
    return os.path.dirname(os.path.dirname(entry["command"][0]))


def _changed(*parts):
    try:
        return os.stat(os.path.join(*parts)).st_mtime
    except OSError:
        return None


def _moment(seconds):
    return None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
