# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node below a temporary root for tests: plan entries of small engines, modules run for real, and a clean end.

Nothing outlives the tests: a watchdog kills what carries the root's markers, also when the tests are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import entry_hash
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import apply
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.supervisord import MARKER, Supervisord
from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tests.runs import wait_for as wait_until
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries
from ansible_collections.inference.fleet.tests.unit.operating import operate

# What a node is given to show a first sign, and a port to become free: here other work may come between.
apply.SETTLE_S = 60
ENGINE = str(pathlib.Path(__file__).parent / "small_engine.py")
BLOCK = 100
BLOCKS = range(20000, 24000, BLOCK)  # below what the kernel gives to outgoing connections

write = program._write


def copied(folder, files):
    """program._write(), compiled once for all nodes of a run of the tests."""
    made = _made(frozenset(files.items()))
    shutil.copytree(made, folder, dirs_exist_ok=True)
    path = pathlib.Path(folder, program.MANIFEST)
    known = json.loads(path.read_text(encoding="utf-8"))
    for records in known.values():
        records.update({name: program.record_of(os.path.join(folder, name), one[0]) for name, one in records.items()})
    path.write_text(json.dumps(known), encoding="utf-8")


@functools.cache
def _made(files):
    folder = tempfile.mkdtemp(prefix="fleet-made-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write(folder, dict(files))
    return folder


program._write = copied

WATCHDOG = """
import os, signal, sys
sys.stdin.read()
for turn in range(2):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = open("/proc/%s/environ" % pid, "rb").read().split(b"\\0")
        except OSError:
            continue
        if any(item.startswith((b"INFERENCE_FLEET_ROOT=", b"INFERENCE_FLEET_SUPERVISOR=")) and
               (item.split(b"=", 1)[1] + b"/").startswith(os.fsencode(sys.argv[1]) + b"/") for item in environ):
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
"""


@contextlib.contextmanager
def watched(folder):
    """Kills every process of roots below `folder` at the end, or when this process is killed."""
    watchdog = subprocess.Popen(
        [sys.executable, "-S", "-c", WATCHDOG, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        watchdog.stdin.close()
        watchdog.wait(30)


def port_block():
    """The first of BLOCK - 1 ports that are this process's: it keeps one before them, as other runs of the tests do."""
    for first in BLOCKS:
        keeper = socket.socket()
        try:
            keeper.bind(("127.0.0.1", first))
        except OSError:
            keeper.close()
            continue
        _KEPT.append(keeper)
        return first + 1
    raise RuntimeError("all ports of %s are taken" % BLOCKS)


_KEPT = []


@functools.cache
def _ports():
    first = port_block()
    return itertools.cycle(range(first, first + BLOCK - 1))


def free_port():
    """A port of this process that nobody listens on."""
    for port in itertools.islice(_ports(), BLOCK - 1):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def alive(pid):
    """Whether the process lives; a zombie does not."""
    found = processes.process(pid)
    return found is not None and found.state not in ("Z", "X")


def row(result, name):
    """What engine_servers says of a server."""
    return next(server for server in result["servers"] if server["name"] == name)


def pids(result):
    return {server["name"]: server["pid"] for server in result["servers"]}


def engine_environment(pid):
    """That of the engine, once the guard has become it."""
    return wait_until(lambda: (found := processes.environment_of(pid)) and b"SPT_NOENV" in found and found)


def rehash(entry, **changes):
    """The entry with changes, `launch` following `command`, and a true hash."""
    entry = dict(entry, **changes)
    if "command" in changes and "launch" not in changes:
        entry["launch"] = entry["command"]
    entry["hash"] = entry_hash(entry)
    return entry


def python_command(*arguments):
    """argv of this interpreter, started fast."""
    return [sys.executable, "-I", "-S", *arguments]


NEEDS = dict.fromkeys(("cpu_flags", "libraries", "host_memory_gib", "disk_gib"))  # of this machine: none is checked
SUPERVISED = {"serve_manager": "supervisord", "serve_toolkit": sys.prefix}


def host_variables(root, cores=2, **more):
    """A host of an inventory that is this machine below a root, with the recipe node-small."""
    return {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "fleet_recipe": "node-small",
        "fleet_recipe_paths": [str(CLONE / "tests/nodes/recipes")], "fleet_root": str(root),
        "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": cores}, **more,
    }  # fmt: skip


def copy_engine(folder):
    """tests/nodes/engine.py with what it runs; its path."""
    for path in (CLONE / "tests/nodes/engine.py", CLONE / "tests/unit/engines/scripted_engine.py"):
        shutil.copy(path, folder)
    return str(folder / "engine.py")


class SmallNode:
    """One node below `root`."""

    def __init__(self, root):
        self.root = str(root)
        self.paths = NodePaths(self.root)

    def entry(self, name, *extra, **changes):
        """A plan entry of a small engine; extra: its options."""
        port = changes.pop("port", None) or free_port()
        command = python_command(ENGINE, "--port", str(port), "--model", "small", *extra)
        entry = plan_entries.plan_entry(
            port, name, host="localhost", command=command, launch=command, environment={"OMP_NUM_THREADS": "1"},
            directories=self.paths.directories(name), model_id="small",
            health={"port": None, "path": "/health", "budget_s": 30, "poll_s": 0.1},
        )  # fmt: skip
        return rehash(entry, **changes)

    def module(self, name, servers, check=False, **params):
        """What the module returns, run in this process as Ansible would: {…, failed: …}."""
        args = {"servers": servers, "root": self.root, "manager": "supervisord", "toolkit": sys.prefix, **params}
        return operate(name, check, **args)

    def servers(self, entries, **params):
        """engine_servers, which must succeed."""
        result = self.module("engine_servers", entries, **params)
        assert not result.get("failed"), result
        return result

    def ready(self, entries, seconds=60):
        """engine_ready until it succeeds."""
        return wait_until(lambda: _success(self.module("engine_ready", entries)), seconds, "readiness")

    def serving(self, entries, **params):
        """servers(), and wait until all are ready."""
        result = self.servers(entries, **params)
        self.ready(entries)
        return result

    def running(self, name):
        """Pids of the server, from /proc."""
        return processes.marked_processes(self.root).get(name, [])

    def daemons(self):
        """Pids that carry supervisord's marker of this root: the daemon and its programs."""
        mark = os.fsencode(self.root)
        return [pid for pid in processes.process_table() if processes.environment_of(pid).get(MARKER.encode()) == mark]

    def end(self):
        """Kill all that runs of this node, and wait until nothing does."""
        deadline = time.monotonic() + 60
        while pids := [*self.daemons(), *itertools.chain(*processes.marked_processes(self.root).values())]:
            assert time.monotonic() < deadline, pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        folder = Supervisord(self.paths, sys.prefix).socket_folder
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _success(result):
    assert not result.get("final"), result
    return None if result.get("failed") else result
