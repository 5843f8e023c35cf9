# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that the release before deployed: fixtures/deployed/supervisord_schema_1.json holds all files that it
wrote under supervisord, its guard among them, with @…@ in place of what is this machine's."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import entry_hash
from ansible_collections.inference.fleet.plugins.module_utils.services.supervisord import Supervisord
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    ENGINE,
    SmallNode,
    alive,
    rehash,
    wait_until,
    watched,
)

FILES = pathlib.Path(__file__).parents[2] / "fixtures" / "deployed" / "supervisord_schema_1.json"
ENTRY = "etc/inference-fleet/servers/server-0.json"
SECRETS = {"token": "s3cret-value"}


@pytest.fixture
def node():
    """Its socket lies in the root, as it did where the files were recorded: the root has a short name."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="old-"))
    with watched(folder):
        node = SmallNode(folder / "r")
        yield node
        node.end()
    shutil.rmtree(folder)


def planned(node):
    config = {"path": node.root + "/etc/inference-fleet/config/server-0.yml", "format": "yaml",
              "content": {"a": [1, 1e-05], "b": {"on": True}}}  # fmt: skip
    return node.entry("server-0", config=config, secrets={"TOKEN": "token"}, secret_versions={"TOKEN": "1"},
                      start={"after": [], "units": []})  # fmt: skip


def deploy_old(node, entry):
    """Put the recorded files on the node and start what they define; the pid of the engine."""
    values = {"@ROOT@": node.root, "@PYTHON@": entry["command"][0], "@ENGINE@": ENGINE, "@PORT@": str(entry["port"])}

    def filled(text):
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    files = json.loads(FILES.read_text(encoding="utf-8"))
    old = json.loads(filled(files[ENTRY]["text"]))
    assert old["schema"] == 1
    values["@HASH@"] = entry_hash(old)
    for name, file in files.items():
        path = pathlib.Path(node.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = filled(file["text"])
        path.write_text(text if os.getuid() == 0 else text.replace("\nuser=root", ""), encoding="utf-8")
        path.chmod(int(file["mode"], 8))
    for folder in ["run/inference-fleet/servers", "var/log/inference-fleet", *entry["directories"].values()]:
        pathlib.Path(node.root, folder).mkdir(parents=True, exist_ok=True)
    os.symlink(shutil.which("python3"), node.paths.lib + "/lib/python3")
    Supervisord(node.paths, sys.prefix)._start_daemon()
    state = wait_until(lambda: _running(node), what="the start")
    assert state["hash"] == values["@HASH@"] != entry["hash"]
    return state["pid"]


def _running(node):
    path = pathlib.Path(node.paths.server_state("server-0"))
    state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return state if state.get("phase") == "running" else None


def test_what_the_release_before_deployed_runs_on_and_is_as_planned(node):
    entry = planned(node)
    pid = deploy_old(node, entry)
    node.ready([entry])

    first = node.servers([entry], secrets=SECRETS)
    assert {action["kind"] for action in first["actions"]} <= {"redefine"}, first["actions"]
    assert first["servers"][0]["pid"] == pid
    assert first["servers"][0]["hash"] == entry["hash"]
    changed = [line for line in first["diff"]["after"].splitlines() if line.endswith("as this collection has it")]
    assert any("/lib/guard.py" in line for line in changed)

    second = node.servers([entry], secrets=SECRETS)
    assert (second["changed"], second["servers"][0]["pid"]) == (False, pid)
    (row,) = node.module("engine_servers_info", [entry], secrets=SECRETS)["servers"]
    assert row["drift"] is None

    os.kill(pid, signal.SIGKILL)  # started again by this release, of the entry that lies there
    wait_until(lambda: not alive(pid), what="the end")
    node.ready([entry])
    again = node.servers([entry], secrets=SECRETS)
    assert (again["changed"], again["servers"][0]["restarts"]) == (False, 1)

    other = rehash(entry, environment={"OMP_NUM_THREADS": "2"})
    assert [action["kind"] for action in node.servers([other], secrets=SECRETS)["actions"]] == ["change"]
    written = json.loads(pathlib.Path(node.paths.entry("server-0")).read_text(encoding="utf-8"))
    assert (written["schema"], written["hash"]) == (entry["schema"], other["hash"])
