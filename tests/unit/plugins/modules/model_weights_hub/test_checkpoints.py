# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints that are not what they should be, and the draft heads beside them."""

from __future__ import annotations

import json
import os

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import draft_heads
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Content, Repository, gpt_oss, safetensors
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.weights import test_draft_heads as heads
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    DRAFT,
    REPO,
    SHARD,
    Node,
)


class TestWrongCheckpoint:
    """Refused by config.json, before a shard is asked for."""

    @pytest.mark.parametrize("made", [{"model_format": "bf16"}, {"model_type": "llama"}])
    def test_of_another_kind(self, capsys, tmp_path, made):
        with Hub([gpt_oss(REPO, 30_000, **made)]) as hub:
            node = Node(capsys, tmp_path, hub)
            node.refused("checkpoint.does-not-fit")
            assert [path for path in hub.counts().get(REPO, {}) if path.endswith("safetensors")] == []
            assert not node.destination.exists()

    def test_of_another_kind_once_it_is_there(self, node):
        node.run()
        for verify in ("quick", "full"):
            node.refused("checkpoint.does-not-fit", format="bf16", verify=verify)

    def test_small_files_that_do_not_come_in_check_mode(self, node, hub, monkeypatch):
        """That is a warning; what the hub refuses is an error."""
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        hub.fault("status", path="config.json", status=503, on=["get", "head", "redirect"])
        assert node.run(True)["message"].endswith("; how much is not known")
        assert "config.json" in warnings.pop()
        hub.mend()
        hub.fault("status", path="config.json", status=404, code="EntryNotFound", on=["get", "head", "redirect"])
        assert node.run(True)["code"] == "hub.not-found"
        assert not node.destination.exists() and not node.root.exists()


def draft_files(hidden_size=2880, vocab_size=201088):
    config = {"model_type": "llama", "hidden_size": hidden_size, "vocab_size": vocab_size}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors("fc.weight", 5000, 1).bytes()}


def head_files(tensors=None):
    """An EAGLE3 head for the model of these tests, by its header; its data are few."""
    config = {**heads.CONFIG, "hidden_size": 2880, "vocab_size": 201088, "draft_vocab_size": 201088}
    shapes = {
        name if name in heads.OUTER else "midlayer." + name: shape for name, shape in draft_heads.shapes(config).items()
    }
    entries = {
        name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 1 << 20]}
        for name, shape in {**shapes, **(tensors or {})}.items()
    }
    text = json.dumps(entries).encode()
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": Content(len(text).to_bytes(8, "little") + text, 1 << 20, 5),
    }


class TestDraft:
    def test_both_come_by_one_task(self, node):
        node.hub.add(Repository(DRAFT, draft_files()))
        draft = node.models / "draft"
        given = {"draft": str(draft), "draft_repo": DRAFT}
        check, applied = node.four_steps(**given)
        size = sum(map(len, draft_files().values()))
        assert check["to_fetch_bytes"] == size + sum(map(len, node.wanted().values()))
        assert (applied["draft"]["path"], applied["draft"]["commit"]) == (str(draft), node.hub.repositories[DRAFT].head)
        assert (draft / "model.safetensors").read_bytes() == draft_files()["model.safetensors"]
        assert node.found() == node.wanted()
        assert sorted(os.listdir(node.models)) == ["draft", "small"]

    @pytest.mark.parametrize("sizes", [{"hidden_size": 2048}, {"vocab_size": 7}])
    def test_one_that_does_not_fit_is_refused_before_the_model_comes(self, node, sizes):
        node.hub.add(Repository(DRAFT, draft_files(**sizes)))
        node.refused(
            "checkpoint.does-not-fit", check_too=False, draft=str(node.models / "draft"), draft_repo=DRAFT
        )  # fmt: skip
        assert node.hub.sent(REPO, SHARD) == 0

    def test_one_that_is_there_already_and_does_not_fit(self, node, tmp_path):
        draft = tmp_path / "draft"
        draft.mkdir()
        for name, content in draft_files(hidden_size=2048).items():
            (draft / name).write_bytes(content)
        node.refused("checkpoint.does-not-fit", check_too=False, draft=str(draft))
        assert node.hub.sent(REPO, SHARD) == 0

    def test_one_that_is_no_whole_checkpoint_on_the_hub_itself(self, node, hub):
        hub.add(Repository(DRAFT, {**draft_files(), "model.safetensors": b"x" * 5000}))
        node.refused("checkpoint.damaged", DRAFT, check_too=False, draft=str(node.models / "draft"), draft_repo=DRAFT)
        assert hub.sent(REPO, SHARD) == 0 and os.listdir(node.models) == [".draft.inference-fleet-new"]

    def test_a_head_that_the_engine_does_not_run(self, node, hub):
        hub.add(Repository(DRAFT, head_files({"eagle_norm.weight": [2880]})))
        given = {"draft": str(node.models / "draft"), "draft_repo": DRAFT, "draft_eagle3": True}
        failed = node.refused("neuron.draft-unsupported", check_too=False, **given)
        assert failed["faults"] == ["layer eagle_norm.weight is unknown to it"]
        assert hub.sent(REPO, SHARD) == 0
        hub.add(Repository(DRAFT, head_files()))
        assert node.run(refresh=True, **given)["draft"]["verified"] == "full"
        assert not node.run(**given)["changed"]

    def test_a_head_of_another_configuration(self, node, hub):
        hub.add(Repository(DRAFT, draft_files()))
        failed = node.run(draft=str(node.models / "draft"), draft_repo=DRAFT, draft_eagle3=True)
        assert failed["code"] == "neuron.draft-unsupported"
        assert hub.sent(DRAFT, "model.safetensors") == 0

    def test_another_model_at_the_destination_is_told_before_its_draft_comes(self, node):
        node.run()
        node.hub.add(Repository(DRAFT, draft_files()))
        node.refused(
            "weights.destination-occupied", REPO,
            repo="made-up/other", draft=str(node.models / "draft"), draft_repo=DRAFT,
        )  # fmt: skip
        assert node.hub.sent(DRAFT) == 0
