# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hubs, checkpoints, drafts and arguments that are refused: an error with its code, and nothing changed."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, pipeline
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import staging_of
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss, safetensors
from ansible_collections.inference.fleet.tests.unit.operating import Operation
from ansible_collections.inference.fleet.tests.unit.weights_node import REPO, SHARD, TOKEN, HubWeights

DRAFT = "made-up/gpt-oss-small-eagle3"
INVALID, PATTERNS, OCCUPIED = "weights.argument-invalid", "hub.patterns-invalid", "weights.destination-occupied"
OTHER_SUM = "%s  %s" % ("0" * 64, SHARD)
UNFIT, UNSUPPORTED = "checkpoint.does-not-fit", "neuron.draft-unsupported"


@pytest.mark.parametrize(
    ("code", "said", "changes"),
    [
        ("hub.not-found", ["v9"], {"revision": "v9"}),
        (PATTERNS, ["include", "*.bin2"], {"include": ["*.bin2"]}),
        (PATTERNS, ["exclude", "orginal/*"], {"exclude": ["orginal/*"]}),
        (PATTERNS, ["config.json, tokenizer.json"], {"include": ["*.safetensors", "*index.json"]}),
        ("weights.checksum-differs", [SHARD], {"sums": OTHER_SUM}),
        (PATTERNS, ["model-00014-of-00014.safetensors"], {"exclude": ["*-00014-of-*", "original/*", "metal/*"]}),
        *((INVALID, [], changes) for changes in (
            {"endpoint": "ftp://hub"}, {"endpoint": "http://hub:80a"}, {"repo": "gpt-oss"}, {"repo": "a/../b"},
            {"workers": 0}, {"destination": "/"}, {"draft_repo": DRAFT}, {"ca_bundle": "ca.pem"},
            {"ca_bundle": "/none/ca.pem"}, {"ca_bundle": __file__})),
    ],
)  # fmt: skip
def test_arguments(node, code, said, changes):
    failed = node.refused(code, *said, **changes)
    assert code != "hub.not-found" or failed["problem"] == "revision"
    assert node.hub.sent(REPO, SHARD) == 0 and (code != INVALID or node.hub.requests == [])


@pytest.mark.parametrize(
    "changes",
    [
        *({"endpoint": text % TOKEN} for text in ("https://me:%s@mirror", "me:%s@mirror", "https://%s@mirror")),
        *({"endpoint": "https://mirror/" + text % TOKEN} for text in ("?token=%s", "a?access_token=%s&b=1")),
        {"environment": {"HF_TOKEN": TOKEN}},
        {"environment": {"https_proxy": "http://me:%s@proxy" % TOKEN}, "workers": 0},
        {"environment": {"https_proxy": "http://me:a#b/%s?@proxy" % TOKEN}, "workers": 0},
        {"environment": {"https_proxy": "http://me:%s\0@proxy" % TOKEN}},
        {"environment": {"MY_AUTH": TOKEN}},
        {"environment": {"A\0B": "x"}},
        {"environment": {"AB": "x\0"}},
        *({"token": text} for text in (TOKEN[:9] + "\n" + TOKEN[9:], "\0" + TOKEN, TOKEN + "é")),
        {"revision": "main\0"},
        {"destination": "/models/a\nb"},
        {"repo": "a/b\n"},
        {"include": ["*\0"]},
    ],
)
def test_secrets_in_the_wrong_place(capsys, node, changes):
    """Not in what -vvv shows either, where the arguments are left out."""
    with patch_module_args({**node.arguments, **changes}), pytest.raises(SystemExit):
        Operation("model_weights").main()
    said = json.loads(capsys.readouterr().out)
    assert said["failed"] and said["invocation"] == {"module_args": {}}
    assert TOKEN not in json.dumps(said) and TOKEN[9:] not in said["msg"] and "Traceback" not in json.dumps(said)


def test_files_of_unknown_origin_and_other_models(node):
    node.models.mkdir()
    node.destination.write_text("no folder")
    assert node.run()["code"] == OCCUPIED
    node.destination.unlink()
    node.destination.mkdir()
    config = node.wanted()["config.json"]  # also of others, whose shards are another model's
    for name, content in (("thesis.txt", b"three years"), ("config.json", config), (SHARD, b"x" * node.size())):
        (node.destination / name).write_bytes(content)
    node.refused(OCCUPIED, "thesis.txt", SHARD)
    shutil.rmtree(node.destination)
    node.run()
    node.refused(OCCUPIED, REPO, "made-up/other", repo="made-up/other")
    node.refused("weights.checksum-differs", SHARD, sums=OTHER_SUM)
    node.refused(OCCUPIED, REPO, **with_draft(node, draft_files(), repo="made-up/other"))  # it does not come either
    assert node.hub.sent(DRAFT) == 0
    for verify in ("quick", "full"):
        node.refused(UNFIT, format="bf16", verify=verify)


def test_a_mirror_that_gives_its_own_head_for_every_commit(node):
    mirror = node.hub.add(gpt_oss(known.GPT_OSS_120B.repo, 30_000))
    mirror.resolve = lambda revision: mirror.head
    node.refused("hub.response-invalid", mirror.head, repo=mirror.name, revision=known.GPT_OSS_120B.commit)
    assert not node.destination.exists()


@pytest.mark.parametrize("made", [{"model_format": "bf16"}, {"model_type": "llama"}])
def test_a_checkpoint_of_another_kind_is_refused_before_its_shards_come(tmp_path, made):
    with Hub([gpt_oss(REPO, 30_000, **made)]) as hub:
        node = HubWeights(tmp_path, hub)
        node.refused(UNFIT)
        staging = pathlib.Path(staging_of(str(node.destination)))
        assert not staging.exists()
        staging.mkdir(0o700)
        (staging / ("f" * 40)).touch()  # of another checkpoint's download, which continues after the mistake
        node.refused(UNFIT)
        assert [path.name for path in staging.iterdir()] == ["f" * 40]
        assert [path for path in hub.counts().get(REPO, {}) if path.endswith("safetensors")] == []
        assert not node.destination.exists()
        node.repository.commit(gpt_oss(REPO, 30_000).files)  # the branch is looked up again
        assert node.run()["changed"] and node.found() == node.wanted()


def draft_files(hidden_size=2880, vocab_size=201088, **files):
    config = {"model_type": "llama", "hidden_size": hidden_size, "vocab_size": vocab_size}
    shard = safetensors("fc.weight", 5000, 1).bytes()
    return {"config.json": json.dumps(config).encode(), "model.safetensors": shard, **files}


def with_draft(node, files, **more):
    """Adds the draft's files to the hub; the arguments that request it."""
    node.hub.add(Repository(DRAFT, files))
    return {"draft": str(node.models / "draft"), "draft_repo": DRAFT, **more}


def test_a_model_and_its_draft(node):
    files = draft_files()
    check, applied = node.four_steps(**with_draft(node, files))
    assert check["to_fetch_bytes"] == sum(map(len, files.values())) + sum(map(len, node.wanted().values()))
    draft = node.models / "draft"
    assert (applied["draft"]["path"], applied["draft"]["commit"]) == (str(draft), node.hub.repositories[DRAFT].head)
    assert (draft / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert node.found() == node.wanted()
    assert sorted(os.listdir(node.models)) == ["draft", "small"]


@pytest.mark.parametrize(
    ("files", "more", "code"),
    [
        (draft_files(hidden_size=2048), {}, UNFIT),
        (draft_files(vocab_size=7), {}, UNFIT),
        (draft_files(**{"model.safetensors": b"x" * 5000}), {}, "checkpoint.damaged"),
        (draft_files(), {"draft_eagle3": True}, UNSUPPORTED),
    ],
)
def test_a_draft_is_refused_before_its_model_comes(node, files, more, code):
    node.refused(code, check_too=False, **with_draft(node, files, **more))
    assert node.hub.sent(REPO, SHARD) == 0
    assert code != UNSUPPORTED or node.hub.sent(DRAFT, "model.safetensors") == 0  # by its configuration


def test_a_destination_that_cannot_be_read(node, monkeypatch):
    """The error comes before a draft is downloaded."""

    def refuse(destination, *_more, **_options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), destination)

    monkeypatch.setattr(pipeline, "own_manifest", refuse)
    node.refused("weights.cannot-install", "Permission denied", check_too=False, **with_draft(node, draft_files()))
    assert node.hub.sent(DRAFT) == 0
