# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role model_weights for real against a simulated hub: it polls, it ends, it stays quiet, it keeps the token."""

from __future__ import annotations

import contextlib
import json
import sys
import threading

from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss, safetensors
from ansible_collections.inference.fleet.tests.runs import ansible_playbook
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until

REPO = "made-up/gpt-oss-small"
SHARD = "model-00003-of-00014.safetensors"
TOKEN = "hf_Zq7NotToBeSeenAnywhere"
PLAY = [
    {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "tasks": [{"name": "Weights", "ansible.builtin.include_role": {"name": "inference.fleet.model_weights"}}],
    }
]


class Site:
    """Plays of the role on this machine."""

    def __init__(self, folder, hub, source="huggingface"):
        self.folder = folder
        self.playbook = folder / "play.yml"
        self.playbook.write_text(json.dumps(PLAY))
        self.destination = folder / "models" / "small"
        self.variables = {
            "ansible_python_interpreter": sys.executable,
            "fleet_root": str(folder / "root"),
            "fleet_hf_token": TOKEN,
            "fleet_modelscope_token": TOKEN,
            "fleet_proxy_env": {"no_proxy": "*"},
            "fleet_deployment": {
                "model": {
                    "source": source, "repo": REPO, "format": "mxfp4", "path": str(self.destination),
                    "endpoint": hub.endpoint, "draft": None,
                }
            },
            "model_weights_poll_s": 1,
            "model_weights_retries": 0,
        }  # fmt: skip

    def play(self, *options, **variables):
        """(status, screen)."""
        given = self.folder / "variables.json"
        given.write_text(json.dumps({**self.variables, **variables}))
        run = ansible_playbook([self.playbook, "-i", "localhost,", "-e", "@%s" % given, *options])
        return run.status, run.output


def test_the_role_polls_and_keeps_the_token(tmp_path):
    with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])]) as hub:
        site = Site(tmp_path, hub)
        hub.fault("slow", path=SHARD, rate=8_000)
        status, screen = site.play("-vvv", "--diff")
        assert status == 0, screen
        assert "changed=1" in screen
        assert TOKEN not in screen
        assert (site.destination / SHARD).read_bytes() == hub.repositories[REPO].files[SHARD].bytes()
        assert hub.asked(REPO, SHARD) == 1
    status, screen = site.play("--check", "--diff")
    assert status == 0 and "changed=0" in screen, screen
    status, screen = site.play()
    assert status == 0 and "changed=0" in screen, screen


def test_what_one_play_began_another_one_of_the_run_waits_for(tmp_path):
    """Neither waits for the engine: the shard comes when the first is over."""
    include = PLAY[0]["tasks"][0]
    begun, before = tmp_path / "begun", []
    tasks = [
        {**include, "vars": {"model_weights_begin": True}},
        {"ansible.builtin.file": {"path": str(begun), "state": "touch"}},
    ]
    with Hub([gpt_oss(REPO, 30_000, tokens=[TOKEN])]) as hub:
        site = Site(tmp_path, hub)
        site.playbook.write_text(json.dumps([{**PLAY[0], "tasks": tasks}, *PLAY]))
        held = hub.fault("hold", path=SHARD, at=1000)

        def go_on():
            with contextlib.suppress(AssertionError):
                wait_until(begun.exists, 60)
            before.append(begun.exists())
            held.release()

        going_on = threading.Thread(target=go_on)
        going_on.start()
        status, screen = site.play()
        going_on.join()
        assert before == [True]
        assert status == 0 and "changed=2" in screen, screen  # the file, and the weights once
        assert hub.asked(REPO, SHARD) == 1
    status, screen = site.play()
    assert status == 0 and "changed=1" in screen, screen


def test_a_failure_ends_the_polling_with_one_message(tmp_path):
    with Hub([]) as hub:
        site = Site(tmp_path, hub)
        status, screen = site.play()
    assert status == 2
    message = (
        "Hugging Face (%s) has no repository for made-up/gpt-oss-small at revision main (HTTP 404), or hides it. "
        % hub.endpoint
    )
    assert screen.count(message) == 1, screen
    assert "RETRYING" not in screen


def test_a_draft_is_looked_at_as_the_engine_of_the_plan_needs_it(tmp_path):
    """Before the model comes, where NxD Inference is what serves it; another engine may run it."""
    draft = {"config.json": b'{"model_type": "qwen3"}', "model.safetensors": safetensors("fc.weight", 5000, 1)}
    with Hub([gpt_oss(REPO, 30_000), Repository("made-up/head", draft)]) as hub:
        site = Site(tmp_path, hub)
        site.variables["fleet_deployment"]["model"]["draft"] = {
            "method": "eagle3", "repo": "made-up/head", "path": str(tmp_path / "models" / "head")
        }  # fmt: skip
        servers = [{"environment": {}}, {"environment": {"VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference"}}]
        status, screen = site.play(fleet_servers=servers)
        assert status == 2 and "config.json is not an EAGLE3 head for NxD Inference" in screen, screen
        assert hub.sent(REPO, SHARD) == 0
        status, screen = site.play(fleet_servers=servers[:1])
        assert status == 0 and "changed=1" in screen, screen
