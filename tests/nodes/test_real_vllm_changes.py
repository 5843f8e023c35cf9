# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A converged node with two servers of real vLLM in containers is changed while a client sends two requests a second.

Wrong changes are refused or rolled back, a valid one is rolled out, and every request is answered.
"""

from __future__ import annotations

import contextlib
import os

import pytest
from ansible_collections.inference.fleet.tests.nodes.conftest import created
from ansible_collections.inference.fleet.tests.nodes.test_real_vllm_in_containers import ROWS, Real

pytestmark = pytest.mark.soak
SERVERS = ("server-0", "server-1")
MISSING = "vllm/vllm-openai:v0.32.9"  # a tag that the registry lacks
BROKEN = "vllm/vllm-openai:v0.32.1"  # its engine ends when it starts
PROGRAM = "#!/bin/sh\\necho libcudart.so.13: cannot open shared object file >&2\\nexit 127\\n"


@pytest.fixture(scope="module")
def real(nodes, tmp_path_factory):
    """Two verified servers."""
    name, folder = "changes-%d" % os.getpid(), tmp_path_factory.mktemp("changes")
    with created([name], ROWS["nvidia"]["platform"], ["venv"]) as (node,):
        node.ssh(ROWS["nvidia"]["before"])
        made = Real(node, ROWS["nvidia"], folder, servers=2)
        node.ssh("cp /usr/local/bin/vllm /usr/local/bin/vllm.sound && printf '%s' > /usr/local/bin/vllm" % PROGRAM)
        made.make_image(BROKEN)
        node.ssh("mv /usr/local/bin/vllm.sound /usr/local/bin/vllm")
        made.play("site.yml", fleet_verify="full").ok()
        yield made


@contextlib.contextmanager
def load(real):
    """Two requests a second until the end of the block; then all of them must have been answered."""
    real.start_client(8000, 8001)
    try:
        real.wait_for_answers(2, "an answer of each server")
        yield
        real.wait_for_answers(2, "an answer of each server afterwards")
    finally:
        real.end_client()
    answered, failed = real.counts()
    print("%d answered, failed: %s" % (answered, failed))
    assert failed == []


def pids(real):
    return {name: real.state(name)["pid"] for name in SERVERS}


def with_change(real, section, key, value):
    """Variables of a run whose recipe differs in one key."""
    override = real.override()
    override[section][key] = value
    return {"fleet_override": override}


def with_image(real, name):
    return with_change(real, "container", "image", "127.0.0.1:5000/" + name)


def test_a_wrong_change_is_refused_and_touches_no_server(real):
    before = pids(real)
    with load(real):
        real.play("site.yml", **with_image(real, MISSING)).failed("images.", "v0.32.9")
        real.play("site.yml", **with_change(real, "arguments", "max-num-sequence", 4)).failed("max-num-seqs")
    assert pids(real) == before


def test_an_image_whose_engine_does_not_start_is_rolled_back(real):
    before = pids(real)
    with load(real):
        run = real.play("site.yml", **with_image(real, BROKEN))
    run.failed("The old definition was restored and answers: server-0. Changed before: none.")
    after = pids(real)
    assert (after["server-1"], after["server-0"] != before["server-0"]) == (before["server-1"], True)
    assert real.play("site.yml", fleet_verify="full").ok().count("changed") == 0


def test_a_valid_change_loses_no_request(real):
    before = pids(real)
    with load(real):
        real.play("site.yml", **with_change(real, "arguments", "max-num-seqs", 4)).ok()
    assert all(pid != before[name] for name, pid in pids(real).items())
