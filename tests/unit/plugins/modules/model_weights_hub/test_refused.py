# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hub, node or operator refuse: an error with its code, and nothing changed."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss, gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    DRAFT,
    REPO,
    SHARD,
    TOKEN,
    Node,
    both,
)


def test_an_unknown_revision(node):
    assert node.refused("hub.not-found", "v9", revision="v9")["problem"] == "revision"


@both
def test_a_gated_repository(capsys, tmp_path, source):
    with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
        node = Node(capsys, tmp_path, hub, source)
        assert node.refused("hub.access", "HTTP 401")["problem"] == "access"
        assert node.run(token=TOKEN)["changed"]
        assert node.found() == node.wanted()


def test_no_room(node):
    files = node.hub.repositories[REPO].files
    node.hub.fault("listing", sizes={SHARD: 1 << 50})
    others = [path for path in files if path != SHARD and not path.startswith(("original/", "metal/"))]
    total = (1 << 50) + sum(files[path].size for path in others)
    failed = node.refused("weights.disk-full", check_too=False)
    assert failed["needed_bytes"] == total > failed["free_bytes"]
    assert not node.destination.exists()


def test_another_model(node):
    node.run()
    node.refused("weights.destination-occupied", REPO, "made-up/other", repo="made-up/other")


def test_files_of_unknown_origin(node):
    node.destination.mkdir(parents=True)
    (node.destination / "thesis.txt").write_text("three years")
    node.refused("weights.destination-occupied", "thesis.txt")


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        (("include", "*.bin2"), {"include": ["*.bin2"]}),
        (("exclude", "orginal/*"), {"exclude": ["orginal/*"]}),
        (("config.json, tokenizer.json",), {"include": ["*.safetensors", "*index.json"]}),
        (("model-00014-of-00014.safetensors",), {"exclude": ["*-00014-of-*", "original/*", "metal/*"]}),
    ],
)
def test_patterns(node, said, changes):
    node.refused("hub.patterns-invalid", *said, **changes)
    assert node.hub.sent(REPO, SHARD) == 0


def test_a_listing_that_lied_is_not_kept(node):
    node.hub.fault("listing", sha256={SHARD: "a" * 64})
    node.refused("weights.wrong-data", SHARD, "a" * 64, check_too=False)
    node.hub.mend()
    node.hub.forget()
    assert node.run()["changed"] and node.found() == node.wanted()
    assert node.hub.sent(REPO, "config.json") == 0


def test_a_mirror_that_gives_its_own_head_for_every_commit(node):
    mirror = node.hub.add(gpt_oss(known.GPT_OSS_120B.repo, 30_000))
    mirror.resolve = lambda revision: mirror.head
    node.refused("hub.response-invalid", mirror.head, repo=mirror.name, revision=known.GPT_OSS_120B.commit)
    assert not node.destination.exists()


def test_files_of_another_commit_are_replaced(node):
    node.run()
    commit = node.hub.repositories[REPO].commit(gpt_oss_files(30_000, seed=9))
    manifest = node.manifest()
    (node.destination / weight_manifest.MANIFEST).write_text(json.dumps({**manifest, "revision": commit}))
    assert node.run(revision=commit)["commit"] == commit
    assert node.found() == node.wanted()


def test_a_kept_listing_of_another_commit_is_requested_again(node):
    repository = node.hub.repositories[REPO]
    held = node.hub.fault("hold", path=SHARD, at=1000)
    node.run(wait_s=0, revision=repository.head)
    wait_until(lambda: node.phase() == "downloading" and held.happened)
    node.kill()
    record = node.models / ".small.inference-fleet-new" / weight_manifest.LISTING
    record.write_text(json.dumps({**json.loads(record.read_text()), "commit": "a" * 40}))
    assert node.finish(revision=repository.head)["commit"] == repository.head
    assert node.found() == node.wanted()


def test_a_listing_without_a_checksum(node, hub):
    hub.fault("listing", path="*", sha256={SHARD: "", "metal/model.bin": ""})
    node.refused("hub.response-invalid", SHARD)
    assert hub.sent() == 0
    hub.mend()
    hub.fault("listing", path="*", sha256={"metal/model.bin": ""})
    assert node.run()["changed"] and node.found() == node.wanted()


@pytest.mark.parametrize(
    "changes",
    [{"endpoint": "ftp://hub"}, {"endpoint": "https://me:pw@hub"}, {"repo": "gpt-oss"}, {"repo": "a/../b"},
     {"environment": {"HF_TOKEN": TOKEN}}, {"workers": 0}, {"retries": -1}, {"destination": "/"},
     {"draft_repo": DRAFT}],
)  # fmt: skip
def test_wrong_options(node, changes):
    node.refused("weights.argument-invalid", **changes)
