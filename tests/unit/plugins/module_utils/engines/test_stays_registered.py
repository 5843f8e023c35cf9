# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker whose registration in a folder is gone ends; one that has it, or never had one, does not."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import dynamo, stays_registered

ADDRESS = "127.0.0.1:8160"
# A worker that registers, and whose card somebody else removes; without the watch it sleeps on.
WORKER = """
import json, os, pathlib, sys, time
print(json.dumps([__name__, sys.argv[1:]]), flush=True)
cards = pathlib.Path(os.environ["DYN_FILE_KV"], "v1", "mdc")
cards.mkdir(parents=True)
(cards / "card").write_text('{"path": "http://127.0.0.1:8160/v1/metadata"}')
time.sleep(1)
(cards / "card").unlink()
time.sleep(SECONDS)
"""
FRONTEND = """
import os, pathlib, shutil, time
time.sleep(1)
folder = pathlib.Path(os.environ["DYN_FILE_KV"])
shutil.rmtree(folder)
if AGAIN:
    (folder / "v1" / "mdc").mkdir(parents=True)
    (folder / ".inference-fleet-folder").write_text("two")
time.sleep(60)
"""


def card(folder, address, seconds=100):
    path = folder / "v1" / "mdc" / address.replace(":", "-")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"card_json": {"path": "http://%s/v1/metadata/dynamo/backend" % address}}))
    os.utime(path, (seconds, seconds))


def test_registered_is_whose_card_has_this_address_and_is_of_this_process(tmp_path):
    assert not stays_registered.is_registered(tmp_path, ADDRESS, 100)
    card(tmp_path, "127.0.0.1:81600")
    card(tmp_path, "127.0.0.1:8100")
    assert not stays_registered.is_registered(tmp_path, ADDRESS, 100)
    card(tmp_path, ADDRESS)
    assert stays_registered.is_registered(tmp_path, ADDRESS, 100)
    assert not stays_registered.is_registered(tmp_path, ADDRESS, 101)


@pytest.mark.parametrize(
    ("seen", "looks"),
    [([True, False, False], 3), ([False, False, False, True, False, True, False, False], 8)],
    ids=["lost", "late-and-once-missed"],
)
def test_it_ends_when_the_registration_was_there_and_is_missed_twice(seen, looks):
    rest, ended = iter(seen), []
    stays_registered.watch(lambda: next(rest), lambda: ended.append(True), pause=lambda _seconds: None)
    assert ended == [True] and next(rest, "none left") == "none left" and len(seen) == looks


def run(tmp_path, seconds, program="worker", **environment):
    (tmp_path / "worker.py").write_text(WORKER.replace("SECONDS", str(seconds)))
    (name,) = [name for name, module in dynamo.ENGINE.modules if module is stays_registered]
    text = inspect.getsource(stays_registered).replace("POLL_S = 2", "POLL_S = 0.1")
    (tmp_path / (name + ".py")).write_text(text)
    found = {"DYN_FILE_KV": str(tmp_path / "kv"), "DYN_SYSTEM_HOST": "127.0.0.1", "DYN_SYSTEM_PORT": "8160"}
    argv = [sys.executable, "-m", name, program, "--model", "m"]
    given = {key: value for key, value in {**os.environ, **found, **environment}.items() if value is not None}
    return subprocess.run(argv, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=100, check=False)


def test_a_worker_that_lost_its_registration_ends_and_says_so(tmp_path):
    done = run(tmp_path, 60, DYN_DISCOVERY_BACKEND="file")
    assert json.loads(done.stdout) == ["__main__", ["--model", "m"]], done.stderr
    assert done.returncode == -15
    assert "inference_fleet_stays_registered: no longer registered in the folder of discovery" in done.stderr


@pytest.mark.parametrize("again", [False, True], ids=["removed", "and another one made"])
def test_a_frontend_whose_folder_was_removed_ends(tmp_path, again):
    """It watches a folder that nobody writes to any more, also where workers made another one at its path."""
    folder = tmp_path / "kv"
    (folder / "v1" / "mdc").mkdir(parents=True)
    (folder / stays_registered.MARK).write_text("one")
    (tmp_path / "frontend.py").write_text(FRONTEND.replace("AGAIN", str(again)))
    done = run(tmp_path, 0, program="frontend", DYN_DISCOVERY_BACKEND="file", DYN_SYSTEM_PORT=None)
    assert done.returncode == -15 and "no longer registered" in done.stderr


def test_discovery_elsewhere_is_not_watched(tmp_path):
    done = run(tmp_path, 1, DYN_DISCOVERY_BACKEND="etcd")
    assert (done.returncode, done.stderr) == (0, "")
