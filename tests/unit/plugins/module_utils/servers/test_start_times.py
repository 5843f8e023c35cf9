# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.identity import start_times
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Observed

NOTHING = dict.fromkeys(("installed", "weights", "started", "ready", "artifact", "memory_mib"))


def marked(path, seconds):
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (seconds, seconds))


def test_times_are_those_of_the_files_that_the_steps_leave(tmp_path):
    paths = NodePaths(str(tmp_path))
    entry = {"name": "server-0", "container": None, "command": [str(tmp_path / "venv" / "bin" / "python"), "-m", "x"]}
    marked(tmp_path / "venv" / ".inference-fleet.json", 1000)
    for number in (1, 2):
        marked(tmp_path / ("model%d" % number) / ".inference-fleet-manifest.json", 2000 * number)
    marked(tmp_path / "run" / "inference-fleet" / "ready" / "server-0.json", 6000)
    weights = {str(tmp_path / one): "x" for one in ("model1", "model2", "gone")}
    state = {"pid": 1, "started": 5000.5, "weights": weights, "artifact": "compiles"}
    one = Observed("server-0", state=state, pids=[os.getpid()], was_ready=True)
    found = start_times(paths, entry, one)
    assert found.pop("memory_mib") > 0
    assert found == {
        "installed": "1970-01-01T00:16:40Z", "weights": "1970-01-01T01:06:40Z", "started": "1970-01-01T01:23:20Z",
        "ready": "1970-01-01T01:40:00Z", "artifact": "compiles",
    }  # fmt: skip
    # a file of another process says nothing about this one; a container's environment is its image
    one = Observed("server-0", state={"started": 5000.5}, was_ready=False)
    found = start_times(paths, {**entry, "container": {"image": "x"}}, one)
    assert found == {**NOTHING, "started": "1970-01-01T01:23:20Z"}


def test_what_is_not_known_is_null(tmp_path):
    entry = {"name": "server-0", "container": None, "command": ["engine"]}
    assert start_times(NodePaths(str(tmp_path)), entry, Observed("server-0")) == NOTHING
