# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that a server's Python runs so that its imports take less time."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import quick_imports

HEAVY = "import gc\nDURING = gc.isenabled()\n"
SERVER = """
import gc, json, multiprocessing, sys
import heavy

def told():
    print(json.dumps([__name__, sys.argv[1:], heavy.DURING, gc.isenabled(), gc.get_freeze_count() > 0]), flush=True)

if __name__ == "__main__":
    told()
    import engine
    child = multiprocessing.get_context("spawn").Process(target=engine.run)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
ENGINE = "import server\n\ndef run():\n    server.told()\n"


@pytest.fixture
def run(tmp_path):
    for name, text in {
        quick_imports.MODULE: inspect.getsource(quick_imports),
        "heavy": HEAVY,
        "server": SERVER,
        "engine": ENGINE,
    }.items():
        (tmp_path / (name + ".py")).write_text(text)

    def call(*words):
        argv = [sys.executable, "-W", "error::RuntimeWarning", "-m", quick_imports.MODULE, *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=100, check=False)

    return call


def test_a_server_and_its_spawned_process_import_without_garbage_collection_and_run_with_it(run):
    done = run("server", "--port", "1")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["__main__", ["--port", "1"], False, True, True],
        ["server", ["--port", "1"], False, True, True],
    ], done.stderr
    assert done.returncode == 0


def test_a_module_that_is_missing_ends_the_server_with_its_name(run):
    done = run("no_such_server")
    assert done.returncode == 1 and "No module named 'no_such_server'" in done.stderr
