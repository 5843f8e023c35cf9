# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A converged node with two servers is changed while a client asks it twice a second: wrong changes, and a right one.

The deployment is the one of test_local.py, and is removed at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

MODEL = "gpt-oss-tiny-standin"
EVERY_S = 0.5


class Client:
    """Asks the servers in turn, and the other one where a server refuses the connection or says that it is going. What
    was accepted and not answered has failed."""

    def __init__(self, deployment):
        self.urls = ["http://127.0.0.1:%d/v1/chat/completions" % port for port in deployment.ports]
        self.key = deployment.api_keys[0]
        self.answered, self.failed = [0, 0], []
        self._end = threading.Event()
        self._threads = []

    def __enter__(self):
        self._ticker = threading.Thread(target=self._tick)
        self._ticker.start()
        return self

    def __exit__(self, *unused):
        self._end.set()
        self._ticker.join()
        for thread in self._threads:
            thread.join()

    def _tick(self):
        for first in itertools.cycle((0, 1)):
            if self._end.wait(EVERY_S):
                return
            self._threads.append(threading.Thread(target=self._ask, args=(first,)))
            self._threads[-1].start()

    def _ask(self, first):
        refused = []
        for number in (first, 1 - first):
            try:
                self._complete(self.urls[number])
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    self.failed.append("%d: HTTP %d" % (number, error.code))
                    return
                refused.append("%d: 503" % number)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    self.failed.append("%d: %r" % (number, error.reason))
                    return
                refused.append("%d: refused" % number)
            except (OSError, ValueError) as error:
                self.failed.append("%d: %r" % (number, error))
                return
            else:
                self.answered[number] += 1
                return
        self.failed.append(", ".join(refused))

    def _complete(self, url):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 8}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + self.key}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            if json.load(answer)["choices"][0]["finish_reason"] not in ("stop", "length"):
                raise ValueError("it was cut")


@contextlib.contextmanager
def asked(deployment):
    """A client that asks for the block; then every request must have been answered, by both servers."""
    with Client(deployment) as client:
        began = time.monotonic()
        yield client
        seconds = time.monotonic() - began
        deployment.wait_for(lambda: min(client.answered) > 0 or client.failed, 300, "an answer of each server")
    counts = (sum(client.answered), seconds, client.answered, len(client.failed))
    print("%d answered in %d s, %s by server, %d failed" % counts)
    assert client.failed == []


@pytest.fixture(scope="module")
def converged(deployment):
    deployment.site().ok()
    return deployment


def test_a_mistyped_flag_is_refused_before_anything_is_touched(converged):
    before = converged.pids()
    with asked(converged):
        run = converged.site(override={"arguments": {"max-num-sequence": 4}})
    run.failed("max-num-sequence", "max-num-seqs")
    assert converged.pids() == before


def test_a_change_that_the_engine_alone_refuses_is_put_back(converged):
    # vLLM reads this file when it is imported, and nobody before
    override, cause = {"environment": {"VLLM_LOGGING_CONFIG_PATH": "/nowhere/logging.json"}}, "server-0: "
    before = converged.pids()
    with asked(converged):
        run = converged.site(override=override)
    run.failed(
        "server-0 failed with the new definition", cause, "The old definition was restored and answers: server-0.",
        "Versions: server-0: old, rolled back; server-1: old.",
    )  # fmt: skip
    after = converged.pids()
    assert (after["server-1"], after["server-0"] != before["server-0"]) == (before["server-1"], True)
    run = converged.play("playbooks/verify.yml", "-e", "fleet_verify=full").ok()
    assert "2 of 2 servers verified" in (converged.reports / "verdict.html").read_text()
    assert converged.site().ok().count("changed") == 0


@pytest.mark.soak
def test_a_change_under_load_loses_no_request(converged):
    before = converged.pids()
    with asked(converged):
        run = converged.site("-vv", override={"arguments": {"max-num-seqs": 3}}).ok()
    # both were changed and verified in full
    assert all(pid != before[name] for name, pid in converged.pids().items())
    assert re.search(r"msg:\n +- server-0\n +- server-1\n", run.output)  # one after the other
    assert "2 of 2 servers verified" in (converged.reports / "verdict.html").read_text()


def test_purge_leaves_nothing(deployment):
    deployment.play("playbooks/stop.yml", "-e", "fleet_purge=true").ok()
    assert deployment.processes() == []
    left = [str(path) for path in Path(deployment.root).rglob("*") if not path.is_dir()]
    assert left == []
    run = deployment.play("playbooks/stop.yml", "-e", "fleet_purge=true").ok()
    assert run.count("changed") == 0
