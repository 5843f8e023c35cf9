# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules in an engine's environment: quick imports, torchvision replaced, NIXL waits, the end without a
registration."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import (
    dynamo,
    nixl_waits,
    quick_imports,
    stays_registered,
    text_only,
    vllm,
)

ADDRESS = "127.0.0.1:8160"
CARD = '{"card_json": {"path": "http://%s/v1/metadata/dynamo/backend"}}'
PRELUDE = "import json, os, pathlib, shutil, sys, time\n"
# A worker that registers, and whose card somebody else removes; without the watch it sleeps on.
WORKER = """
print(json.dumps([__name__, sys.argv[1:]]), flush=True)
cards = pathlib.Path(os.environ["DYN_FILE_KV"], "v1", "mdc")
cards.mkdir(parents=True, exist_ok=True)
(cards / "card").write_text('CARD')
time.sleep(1)
(cards / "card").unlink()
time.sleep(SECONDS)
"""
FRONTEND = """
time.sleep(1)
folder = pathlib.Path(os.environ["DYN_FILE_KV"])
shutil.rmtree(folder)
if AGAIN:
    (folder / "v1" / "mdc").mkdir(parents=True)
    (folder / ".inference-fleet-folder").write_text("two")
time.sleep(60)
"""
IMPORTS = """
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
print(json.dumps([__name__, sys.argv[1:], smart_resize]))
"""
# As NIXL 1.4.1 has it: the config is made and filled by the constructor of an agent.
NIXL = """
import types
class Config:
    pass
nixlBind = types.SimpleNamespace(nixlAgentConfig=Config)
class nixl_agent:
    def __init__(self):
        self.config = nixlBind.nixlAgentConfig()
        self.config.useProgThread = True
        self.config.pthrDelay = 0
        self.config.lthrDelay = 0
"""
AGENT = """
import inference_fleet_nixl_waits
from vllm.distributed.nixl_utils import NixlWrapper
extension = inference_fleet_nixl_waits.Waits
print(json.dumps([[name for name in dir(extension) if not name.startswith("__")], vars(NixlWrapper().config)]))
"""
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
IMPORTED = {
    "server.py": SERVER,
    "heavy.py": "import gc\nDURING = gc.isenabled()\n",
    "engine.py": "import server\n\ndef run():\n    server.told()\n",
}


@pytest.fixture
def run(tmp_path):
    """run(module, texts, *arguments, **environment): Python's -m with the installed copy of the module in a folder."""

    def call(module, texts, *arguments, **environment):
        name = module.MODULE
        assert (name, module) in (*dynamo.ENGINE.modules, *vllm.ENGINE.modules)
        source = inspect.getsource(module).replace("POLL_S = 2", "POLL_S = 0.1")
        for path, text in {name + ".py": source, **texts}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text if path == name + ".py" else PRELUDE + text)
        found = {"DYN_FILE_KV": str(tmp_path / "kv"), "DYN_SYSTEM_HOST": "127.0.0.1", "DYN_SYSTEM_PORT": "8160"}
        given = {key: value for key, value in {**os.environ, **found, **environment}.items() if value is not None}
        argv = [sys.executable, "-m", *(word or name for word in arguments)]
        return subprocess.run(argv, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=100, check=False)

    return call


def test_a_server_and_its_spawned_process_import_without_garbage_collection_and_run_with_it(run):
    done = run(quick_imports, IMPORTED, None, "server", "--port", "1", PYTHONWARNINGS="error::RuntimeWarning")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["__main__", ["--port", "1"], False, True, True],
        ["server", ["--port", "1"], False, True, True],
    ], done.stderr
    assert done.returncode == 0


def test_the_import_of_image_processing_is_replaced(run):
    absent = {"transformers/models/qwen2_vl/image_processing_qwen2_vl.py": "import torchvision.none_such\n"}
    texts = {**absent, "worker/__main__.py": IMPORTS}
    assert "ModuleNotFoundError" in run(text_only, texts, "worker", "--model", "m").stderr
    done = run(text_only, texts, None, "worker", "--model", "m")
    assert json.loads(done.stdout) == ["__main__", ["--model", "m"], None], done.stderr


def test_the_progress_thread_of_agents_waits(run):
    wrapper = {"api.py": NIXL, "vllm/distributed/nixl_utils.py": "from api import nixl_agent as NixlWrapper\n"}
    done = run(nixl_waits, {**wrapper, "agent.py": AGENT}, "agent")
    assert json.loads(done.stdout) == [[], {"useProgThread": True, "pthrDelay": 10000, "lthrDelay": 0}], done.stderr


@pytest.mark.parametrize("seen", [[True, False, False], [False, False, False, True, False, True, False, False]])
def test_it_ends_when_the_registration_was_there_and_is_missed_twice(seen):
    rest, ended = iter(seen), []
    stays_registered.watch(lambda: next(rest), lambda: ended.append(True), pause=lambda _seconds: None)
    assert ended == [True] and next(rest, "none left") == "none left"


@pytest.mark.parametrize(("backend", "seconds", "status"), [("file", 60, -15), ("etcd", 1, 0)])
def test_a_worker_that_lost_its_registration_in_a_folder_ends_and_says_so(run, tmp_path, backend, seconds, status):
    """Cards of other addresses, and of an earlier process, are not its own."""
    cards = tmp_path / "kv" / "v1" / "mdc"
    cards.mkdir(parents=True)
    for address, changed in ((ADDRESS, 100), (ADDRESS + "0", 2**32), (ADDRESS[:-1], 2**32)):
        (cards / address).write_text(CARD % address)
        os.utime(cards / address, (changed, changed))
    texts = {"worker.py": WORKER.replace("SECONDS", str(seconds)).replace("CARD", CARD % ADDRESS)}
    done = run(stays_registered, texts, None, "worker", "--model", "m", DYN_DISCOVERY_BACKEND=backend)
    assert json.loads(done.stdout) == ["__main__", ["--model", "m"]], done.stderr
    assert (done.returncode, "no longer registered in the folder of discovery" in done.stderr) == (status, bool(status))


@pytest.mark.parametrize("again", [False, True], ids=["removed", "and another one made"])
def test_a_frontend_whose_folder_was_removed_ends(run, tmp_path, again):
    """It watches a folder that nobody writes to any more, also where workers made another one at its path."""
    (tmp_path / "kv" / "v1" / "mdc").mkdir(parents=True)
    (tmp_path / "kv" / stays_registered.MARK).write_text("one")
    texts = {"frontend.py": FRONTEND.replace("AGAIN", str(again))}
    done = run(stays_registered, texts, None, "frontend", DYN_DISCOVERY_BACKEND="file", DYN_SYSTEM_PORT=None)
    assert done.returncode == -15 and "no longer registered" in done.stderr
