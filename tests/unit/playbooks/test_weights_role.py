# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role model_weights for real against a simulated hub: it polls, it ends, it stays quiet, it keeps the token."""

from __future__ import annotations

import contextlib
import json
import threading

from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss, safetensors
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, tasks_play
from ansible_collections.inference.fleet.tests.unit.weights_node import REPO, SHARD, TOKEN

INCLUDE = {"name": "Weights", "ansible.builtin.include_role": {"name": "inference.fleet.model_weights"}}


class Site:
    """Plays of the role on this machine."""

    def __init__(self, folder, hub, source="huggingface"):
        self.folder = folder
        self.plays(tasks_play([INCLUDE]))
        self.destination = folder / "models" / "small"
        model = {"source": source, "repo": REPO, "format": "mxfp4", "path": str(self.destination), "draft": None,
                 "endpoint": hub.endpoint}  # fmt: skip
        self.variables = {
            **LOCAL, "fleet_root": str(folder / "root"), "fleet_hf_token": TOKEN, "fleet_modelscope_token": TOKEN,
            "fleet_proxy_env": {"no_proxy": "*"}, "fleet_deployment": {"model": model}, "model_weights_poll_s": 1,
            "model_weights_retries": 0,
        }  # fmt: skip

    def plays(self, *plays):
        (self.folder / "play.yml").write_text(json.dumps(plays))

    def play(self, *options, **variables):
        return play(self.folder / "play.yml", "localhost,", *options, variables={**self.variables, **variables})


def test_the_role_polls_and_keeps_the_token(tmp_path):
    with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])]) as hub:
        site = Site(tmp_path, hub)
        hub.fault("slow", path=SHARD, rate=8_000)
        run = site.play("-vvv", "--diff").ok()
        assert run.count("changed") == 1
        assert TOKEN not in run.output
        assert (site.destination / SHARD).read_bytes() == hub.repositories[REPO].files[SHARD].bytes()
        assert hub.asked(REPO, SHARD) == 1
    assert site.play("--check", "--diff").ok().count("changed") == 0


def test_what_one_play_began_another_one_of_the_run_waits_for(tmp_path):
    """Neither waits for the engine: the shard comes when the first is over."""
    begun, before = tmp_path / "begun", []
    tasks = [
        {**INCLUDE, "vars": {"model_weights_begin": True}},
        {"ansible.builtin.file": {"path": str(begun), "state": "touch"}},
    ]
    with Hub([gpt_oss(REPO, 30_000, tokens=[TOKEN])]) as hub:
        site = Site(tmp_path, hub)
        site.plays(tasks_play(tasks), tasks_play([INCLUDE]))
        held = hub.fault("hold", path=SHARD, at=1000)

        def go_on():
            with contextlib.suppress(AssertionError):
                wait_until(begun.exists, 60)
            before.append(begun.exists())
            held.release()

        going_on = threading.Thread(target=go_on)
        going_on.start()
        run = site.play()
        going_on.join()
        assert before == [True]
        assert run.ok().count("changed") == 2  # the file, and the weights once
        assert hub.asked(REPO, SHARD) == 1
    assert site.play().ok().count("changed") == 1


def test_a_failure_ends_the_polling_with_one_message(tmp_path):
    with Hub([]) as hub:
        run = Site(tmp_path, hub).play().failed()
    assert run.output.count("has no repository for %s at revision main (HTTP 404)" % REPO) == 1
    assert "RETRYING" not in run.output


def test_a_draft_is_looked_at_as_the_engine_of_the_plan_needs_it(tmp_path):
    """Before the model comes, where NxD Inference is what serves it; another engine may run it."""
    draft = {"config.json": b'{"model_type": "qwen3"}', "model.safetensors": safetensors("fc.weight", 5000, 1)}
    with Hub([gpt_oss(REPO, 30_000), Repository("made-up/head", draft)]) as hub:
        site = Site(tmp_path, hub)
        site.variables["fleet_deployment"]["model"]["draft"] = {
            "method": "eagle3", "repo": "made-up/head", "path": str(tmp_path / "models" / "head")
        }  # fmt: skip
        servers = [{"environment": {}}, {"environment": {"VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference"}}]
        site.play(fleet_servers=servers).failed("config.json is not an EAGLE3 head for NxD Inference")
        assert hub.sent(REPO, SHARD) == 0
        assert site.play(fleet_servers=servers[:1]).ok().count("changed") == 1
