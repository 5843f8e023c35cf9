# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights of a simulated hub: downloaded, checked, repaired and updated; check mode, tokens, proxies, certificates."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import jobs, manifest
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss, gpt_oss_files
from ansible_collections.inference.fleet.tests.unit.engines import certificates
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot
from ansible_collections.inference.fleet.tests.unit.weights_node import REPO, SHARD, TOKEN, HubWeights, both

FILES = gpt_oss_files(30_000, seed=3)
FIRST = "model-00000-of-00014.safetensors"


@both
def test_downloaded_checked_and_left_alone(tmp_path, hub, source, monkeypatch):
    node = HubWeights(tmp_path, hub, source)
    wanted = node.wanted()
    check, applied = node.four_steps()
    assert (check["to_fetch_bytes"], check["fetched"]) == (sum(map(len, wanted.values())), sorted(wanted))
    assert node.found() == wanted
    assert os.listdir(node.models) == ["small"]
    head = node.repository.head
    assert (applied["commit"], applied["verified"], applied["finished"]) == (head, "full", True)
    assert len(applied["shards"]) == 15 and applied["hidden_size"] == 2880
    assert (applied["progress"]["phase"], applied["progress"]["percent"]) == ("done", 100.0)
    found = node.manifest()
    for name, record in found.pop("files").items():
        status = (node.destination / name).stat()
        assert record["sha256"] == node.repository.files[name].sha256
        assert (record["size"], record["mtime_ns"]) == (len(wanted[name]), status.st_mtime_ns)
        assert status.st_mode & 0o777 == 0o644
    assert found == {
        "schema": 1, "source": source, "repo": REPO, "revision": node.arguments["revision"], "commit": head,
        "at": head if source == "huggingface" else "master", "include": [], "exclude": ["metal/*", "original/*"],
    }  # fmt: skip
    hub.stop()
    assert not node.run(verify="full")["changed"]
    monkeypatch.setattr(jobs.Job, "advance", lambda *_given: pytest.fail("a job"))
    monkeypatch.setattr(manifest, "hash_files", lambda *_given: pytest.fail("reading"))
    for check_mode in (True, False):
        again = node.run(check_mode)
        assert (again["changed"], again["verified"], again["finished"]) == (False, "quick", True)


def test_new_times_alone_are_no_change_and_rot_is_named_by_full_and_that_file_alone_comes_again(node):
    node.run()
    note = guard_state.weights_note(str(node.destination))
    os.utime(node.destination / SHARD, ns=(1, 1))
    node.hub.stop()
    assert node.run()["message"] == "up to date"
    assert node.manifest()["files"][SHARD]["mtime_ns"] == 1
    assert guard_state.weights_note(str(node.destination)) == note  # no server restarts for it
    node.hub.start()
    rot(node.destination / SHARD)
    assert not node.run()["changed"]
    node.hub.forget()
    check, applied = node.four_steps(verify="full")
    assert (check["repaired"], check["to_fetch_bytes"]) == ([SHARD], node.size())
    assert (applied["fetched"], node.found()) == ([SHARD], node.wanted())
    assert node.hub.counts() == {REPO: {SHARD: {"requests": 1, "sent": node.size()}}}
    assert guard_state.weights_note(str(node.destination)) != note


def test_patterns(node):
    node.run(include=["*.json", "*.safetensors"], exclude=["original/*", "metal/*", "tokenizer_config.json"])
    assert "README.md" not in node.found() and "tokenizer_config.json" not in node.found()
    _check, applied = node.four_steps()
    assert "README.md" in applied["fetched"] and SHARD not in applied["fetched"]
    assert node.found() == node.wanted()
    node.run(include=["*.json", "*.safetensors"])
    assert "README.md" not in node.found()


OTHERS = gpt_oss_files(30_000, seed=9)


@pytest.mark.parametrize(
    ("files", "past", "repaired"),
    [
        (OTHERS, True, True),
        (OTHERS, False, False),
        ({**FILES, "README.md": b"new"}, False, True),
    ],
)
def test_rot_after_a_branch_of_modelscope_moved_on(tmp_path, hub, files, past, repaired):
    """The file is requested from the commit that it was of, or it is the same on the branch."""
    node = HubWeights(tmp_path, hub, "modelscope")
    first, good = node.run()["commit"], node.found()
    node.repository.commit(files)
    if not past:
        del node.repository.commits[first]
    rot(node.destination / SHARD)
    rotten = node.found()
    hub.forget()
    result = node.run(verify="full")
    sent = hub.counts().get(REPO, {})
    if repaired:
        assert (result["repaired"], result["fetched"], node.found()) == ([SHARD], [SHARD], good)
        assert list(sent) == [SHARD]
    else:
        assert (result["code"], node.found()) == ("weights.rotted-and-unrepaired", rotten)
        assert sent.get(SHARD, {}).get("sent", 0) <= 3 * len(rotten[SHARD])
        assert node.run(refresh=True)["changed"] and node.found() == node.wanted()


def test_a_branch_is_resolved_once_and_an_update_replaces_what_differs(node):
    first = node.run()["commit"]
    assert not node.run(revision=first)["changed"]
    (node.destination / "kept").write_text("not ours")
    files = {**FILES, FIRST: gpt_oss_files(30_000, seed=4)[FIRST],
             "config.json": gpt_oss_files(vocab_size=5)["config.json"]}  # fmt: skip
    del files["USAGE_POLICY"]
    second = node.repository.commit(files)
    again = node.run(verify="full")
    assert (again["changed"], again["commit"]) == (False, first)
    foreseen = node.run(check_mode=True, refresh=True)
    assert (foreseen["changed"], foreseen["fetched"]) == (True, ["config.json", FIRST])
    updated = node.run(refresh=True)
    assert (updated["commit"], updated["fetched"]) == (second, ["config.json", FIRST])
    assert node.found() == {**node.wanted(), "kept": b"not ours"}
    assert not node.run(refresh=True)["changed"]
    commit = node.repository.commit(OTHERS)  # files of another commit than the manifest says
    (node.destination / manifest.MANIFEST).write_text(json.dumps({**node.manifest(), "revision": commit}))
    assert node.run(revision=commit)["commit"] == commit
    assert node.found() == {**node.wanted(), "kept": b"not ours"}


@both
def test_check_mode_and_a_token_that_is_nowhere(tmp_path, source):
    with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])], page=10) as hub:
        node = HubWeights(tmp_path, hub, source)
        foreseen = node.run(True, token=TOKEN)
        assert (foreseen["fetched"], foreseen["commit"]) == (sorted(node.wanted()), node.repository.head)
        assert foreseen["to_fetch_bytes"] == sum(map(len, node.wanted().values()))
        assert node.run(True)["problem"] in ("repository", "access")
        assert node.run(True, token=TOKEN, revision="v9")["problem"] == "revision"
        assert not node.destination.exists() and not node.root.exists()
        hub.fault("hold", path=SHARD, at=1000)
        said = [node.begin(token=TOKEN)]
        argv = Path("/proc/%d/cmdline" % node.pid()).read_bytes()
        said.append(node.finish(token=TOKEN))
        assert said[-1]["changed"], said[-1]
        said += [node.run(token=TOKEN, verify="full"), node.run(token=TOKEN + "x", refresh=True)]
        assert said[-1]["problem"] in ("access", "repository")
        assert TOKEN not in json.dumps(said) and TOKEN.encode() not in argv
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
        assert [entry for entry in hub.requests if entry.get("on_cdn") and entry.get("token")] == []


@pytest.mark.parametrize(
    "fault",
    [
        None,
        {"path": "*", "status": 429, "retry_after": 300, "on": ["info", "list"]},
        {"path": "config.json", "status": 503, "on": ["get", "head", "redirect"]},
    ],
)
def test_check_mode_does_not_wait_for_a_hub(node, hub, fault):
    if fault:
        hub.fault("status", **fault)
    else:
        hub.stop()
    assert node.run(True, retries=5)["code"] == "hub.unavailable"
    assert not node.destination.exists() and not node.root.exists()


def test_through_a_proxy_whose_password_is_nowhere(tmp_path, hub, node):
    ways = {"endpoint": "http://hub.example.org", "environment": {"HTTP_PROXY": hub.endpoint, "NO_PROXY": ""}}
    assert node.run(True, **ways)["fetched"] == sorted(node.wanted())
    assert node.run(**ways)["changed"]
    assert {entry["proxied"] for entry in hub.requests if entry["kind"] == "list"} == {True}
    node = HubWeights(tmp_path / "other", hub)
    environment = {"http_proxy": "http://me:s3cr3tProxy@127.0.0.1:9", "no_proxy": ""}
    failed = node.run(environment=environment)
    assert failed["failed"] and "s3cr3tProxy" not in json.dumps(failed)
    for path in node.root.rglob("*"):
        assert not path.is_file() or b"s3cr3tProxy" not in path.read_bytes(), path


def test_a_private_ca(tmp_path):
    certificate, context = tmp_path / "ca.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path, text in zip((certificate, tmp_path / "key"), certificates.made()):
        path.write_text(text)
    context.load_cert_chain(certificate, tmp_path / "key")
    with Hub([gpt_oss(REPO, 30_000)], context=context) as hub:
        node = HubWeights(tmp_path, hub)
        failed = node.run()
        assert failed["problem"] == "network" and "certificate" in failed["msg"].lower()
        assert len(node.run(True, ca_bundle=str(certificate))["fetched"]) == 26
        assert node.run(ca_bundle=str(certificate))["changed"]
        assert node.found() == node.wanted()
