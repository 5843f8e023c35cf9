# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/dynamo_outages.py: what it counts as back, and what its table says."""

from __future__ import annotations

import json
import signal
import subprocess
import threading

import pytest
from ansible_collections.inference.fleet.tools import dynamo_outages


@pytest.fixture
def victim(tmp_path):
    """(root, process, a function that writes another pid) of a server of its own."""
    process = subprocess.Popen(["sleep", "600"])
    file = tmp_path / "run/inference-fleet/servers/decode-0.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"pid": process.pid}))
    yield tmp_path, process, lambda: file.write_text(json.dumps({"pid": process.pid + 1}))
    process.kill()
    process.wait()


def test_a_server_is_back_when_a_new_process_answers_steadily(victim, monkeypatch):
    monkeypatch.setattr(dynamo_outages.time, "sleep", lambda seconds: None)
    root, process, restart = victim
    said = iter(["200", "503", "503", "404", "200", "503", "200", "200", "200"])

    def look():
        found = next(said)
        if found == "404":
            restart()
        return found

    seen, back = dynamo_outages.outage(root, "decode-0", look)
    assert process.wait(10) == -signal.SIGKILL
    assert [found for _second, found in seen] == ["200", "503", "404", "200", "503", "200"]
    assert next(said, None) is None and back >= 0


def test_answers_of_the_old_process_do_not_count(victim, monkeypatch):
    monkeypatch.setattr(dynamo_outages.time, "sleep", lambda seconds: None)
    root, _process, _restart = victim
    with pytest.raises(RuntimeError, match="no steady answers after 0 s"):
        dynamo_outages.outage(root, "decode-0", lambda: "200", limit=0)


def test_a_service_is_begun_again_though_chats_hang(monkeypatch):
    """Answers before that do not count, whatever they are."""
    monkeypatch.setattr(dynamo_outages.time, "sleep", lambda seconds: None)
    done, begun = [], threading.Event()
    said = iter(["200"] * 3 + ["hangs", "503"] + ["200"] * 3)

    def look():
        found = next(said)
        if found == "hangs":
            assert begun.wait(60)
        return found

    def begin():
        done.append("begun")
        begun.set()

    seen, back = dynamo_outages.away(0.1, lambda: done.append("ended"), begin, look, calm=0)
    assert done == ["ended", "begun"]
    assert [found for _second, found in seen] == ["200", "hangs", "503", "200"]
    assert next(said, None) is None and back >= 0.1


def test_the_row():
    assert dynamo_outages.row("`decode-0`", [(0.0, "503"), (10.5, "404"), (99.0, "200")], 99.0) == (
        "| `decode-0` | 503 from 0 s, 404 from 10.5 s | 99 s |"
    )
    assert dynamo_outages.row("`decode-0`", [(0.0, "200")], 2.0) == "| `decode-0` | nothing | 2 s |"
