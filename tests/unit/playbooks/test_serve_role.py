# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of the role serve with modules that only write down how they were called: what follows from what."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import play

TASKS = Path(__file__).resolve().parents[3] / "roles" / "serve" / "tasks" / "main.yml"
MODULES = ("container_engine", "engine_servers", "engine_ready")
MODULE = """#!%s
# WANT_JSON
import json, sys
name, folder = sys.argv[0].rsplit("stand_in_", 1)[-1].split(".")[0], %r
arguments = json.load(open(sys.argv[1]))
with open(folder + "/calls", "a") as stream:
    keys = ("state", "engine", "restart", "only")
    stream.write(json.dumps({"module": name, **{key: arguments.get(key) for key in keys}}))
    stream.write("\\n")
changed = name in json.load(open(folder + "/changing"))
pending = {} if arguments.get("only") else json.load(open(folder + "/pending"))
print(json.dumps({"changed": changed, "answering": not changed, "pending": pending}))
"""
# What the role verify makes of it.
CHANGED = yaml.safe_load((TASKS.parents[2] / "verify/defaults/main.yml").read_text())["verify_servers_changed"]
VARIABLES = {
    "serve_manager": "auto", "serve_toolkit": "", "serve_secrets": {}, "serve_state": "started", "serve_only": [],
    "serve_engine_restart": "auto", "serve_drop_ins": "remove", "fleet_root": "", "serve_watchdog": False,
    "serve_start_on_boot": False, "serve_deployment": {}, "serve_reports_dir": "",
    "serve_log_rate": 10000, "serve_log_file_mb": 50, "serve_log_files": 4,
}  # fmt: skip


class Serve:
    """Plays of the tasks, with stand-ins in place of the modules."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "library").mkdir()
        for name in MODULES:
            module = folder / "library" / ("stand_in_%s.py" % name)
            module.write_text(MODULE % (sys.executable, str(folder)))
        for file in TASKS.parent.glob("*.yml"):
            text = file.read_text(encoding="utf-8")
            for name in MODULES:
                text = text.replace("inference.fleet.%s:" % name, "stand_in_%s:" % name)
            (folder / file.name).write_text(text)
        show = {"ansible.builtin.copy": {"content": CHANGED, "dest": str(folder / "verdict")}}
        tasks = [{"ansible.builtin.include_tasks": str(folder / TASKS.name)}, show]
        plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}]
        (folder / "play.yml").write_text(json.dumps(plays))

    def play(self, entries, changing=(), pending=(), **variables):
        """([modules that were called, with what matters of their arguments], whether the servers were changed)."""
        (self.folder / "pending").write_text(json.dumps(dict.fromkeys(pending, "it hangs")))
        (self.folder / "changing").write_text(json.dumps(list(changing)))
        (self.folder / "calls").write_text("")
        variables = {**VARIABLES, "serve_servers": entries, "ansible_python_interpreter": sys.executable, **variables}
        play(str(self.folder / "play.yml"), "localhost,", variables=variables).ok()
        calls = [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
        return calls, (self.folder / "verdict").read_text() == "True"


def entry(engine=None, address=None):
    container = engine and {"engine": engine, "address": address}
    return {"name": "server-0", "container": container, "health": {"budget_s": 1, "poll_s": 1}, "start": {"after": []}}


SERVERS = {"module": "engine_servers", "state": "started", "engine": None, "restart": None, "only": None}
READY = {"module": "engine_ready", "state": None, "engine": None, "restart": None, "only": None}
DOCKER = {"module": "container_engine", "state": "effective", "engine": "docker", "restart": "auto", "only": None}


@pytest.fixture
def serve(tmp_path):
    return Serve(tmp_path)


def test_docker_is_restarted_before_the_servers_which_are_waited_for_and_verified_in_full(serve):
    entries = [dict(entry(engine), name=str(engine)) for engine in ("docker", "podman", None)]
    assert serve.play(entries) == ([DOCKER, SERVERS], False)
    calls, changed = serve.play(entries, ["container_engine"], serve_engine_restart="always")
    assert (calls, changed) == ([dict(DOCKER, restart="always"), SERVERS, READY], True)


def test_what_prepare_did_to_docker_counts_as_well(serve):
    assert serve.play([entry("docker")], container_engine_result={"results": [{"changed": True}], "changed": True})[1]


def test_hosts_without_docker_and_named_servers_have_one_call_less(serve):
    for one in (entry(), entry("podman"), entry("docker", "unix:///run/other.sock")):
        assert serve.play([one]) == ([SERVERS], False)
    only = ["server-0"]
    assert serve.play([entry("docker")], serve_only=only) == ([dict(SERVERS, only=only)], False)
    assert serve.play([entry()], ["engine_servers"]) == ([SERVERS, READY], True)


def test_servers_that_hang_are_repaired_one_after_the_other(serve):
    """The module restarts the first of them; each of the others waits until those before it are ready."""
    entries = [dict(entry(), name="server-%d" % number) for number in range(4)]
    calls, changed = serve.play(entries, ["engine_servers"], pending=["server-1", "server-3"])
    assert calls == [
        SERVERS,
        dict(READY, only=["server-0", "server-2"]),
        dict(SERVERS, state=None, only=["server-1"]),
        dict(READY, only=["server-1"]),
        dict(SERVERS, state=None, only=["server-3"]),
        dict(READY, only=["server-3"]),
    ]
    assert changed
