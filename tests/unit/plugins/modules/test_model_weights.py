# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights brought, looked at, mended and refused, with tiny checkpoints."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.plugins.module_utils.node import directories as node_layout
from ansible_collections.inference.fleet.plugins.module_utils.node import files
from ansible_collections.inference.fleet.plugins.module_utils.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.weights import checkpoints, standin
from ansible_collections.inference.fleet.plugins.module_utils.weights import ensure as model_weights
from ansible_collections.inference.fleet.plugins.module_utils.weights import local as local_weights
from ansible_collections.inference.fleet.plugins.module_utils.weights import lock as weight_lock
from ansible_collections.inference.fleet.plugins.module_utils.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.weights import staging as weight_staging
from ansible_collections.inference.fleet.plugins.module_utils.weights.hub import jobs, known
from ansible_collections.inference.fleet.plugins.module_utils.weights.lock import WeightLock
from ansible_collections.inference.fleet.plugins.module_utils.weights.sources import path as path_source
from ansible_collections.inference.fleet.plugins.module_utils.weights.sources import standin as standin_source
from ansible_collections.inference.fleet.plugins.modules import model_weights as module
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    HIDDEN,
    VOCABULARY,
    build_checkpoint,
    build_encodings,
    build_packed_standin,
    four_steps,
    rot,
    run_module,
    weights_came,
)
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.platforms.neuron import test_eagle3 as heads

PACKAGE = local_weights.__name__.rpartition(".weights.")[0]
SHARD = "model-00001-of-00002.safetensors"
REPO = "openai/gpt-oss-tiny"


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose sha256 is taken."""
    names = []
    real = files.sha256_file

    def sha256_file(path, *arguments, **options):
        names.append(os.path.basename(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(files, "sha256_file", sha256_file)
    return names


def manifest_of(folder):
    return json.loads((folder / weight_manifest.MANIFEST).read_text())


def promised_by(packed):
    return json.loads(Path(packed, "standin.json").read_text())["files"]


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None


class Weights:
    """Runs of the module with the same arguments."""

    def __init__(self, capsys, destination, **arguments):
        self.capsys = capsys
        self.destination = destination
        self.arguments = dict(arguments, destination=str(destination))

    def run(self, check_mode=False, **changes):
        return run_module(self.capsys, module, check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps(self.capsys, module, **{**self.arguments, **changes})


@pytest.fixture
def stand_in(tmp_path, capsys):
    encodings = build_encodings(tmp_path / "o200k_base.tiktoken")
    packed = build_packed_standin(tmp_path / "packed", standin.expand, encodings)
    return Weights(
        capsys,
        tmp_path / "models" / "standin",
        source="standin",
        repo="inference-fleet/gpt-oss-tiny-standin",
        revision="1",
        format="bf16",
        packed=str(packed),
        encodings_file=str(encodings),
    )


@pytest.fixture
def shared(tmp_path):
    """A checkpoint on a share, with what does not belong to it."""
    folder = build_checkpoint(tmp_path / "share")
    (folder / ".cache").mkdir()
    (folder / "original").mkdir()
    (folder / "original" / "model.bin").write_text("the same weights once more")
    (folder / ".gitattributes").write_text("hidden")
    return folder


@pytest.fixture
def copied(tmp_path, capsys, shared):
    return Weights(
        capsys, tmp_path / "models" / "copy", source="path", repo=REPO, path=str(shared), copy=True, format="mxfp4"
    )


@pytest.fixture
def in_place(capsys, shared):
    return Weights(capsys, shared, source="path", repo=REPO, path=str(shared))


NAMES = [
    "config.json",
    "model-00000-of-00002.safetensors",
    SHARD,
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


class TestStandin:
    def test_made_checked_and_left_alone(self, stand_in):
        check, applied = stand_in.four_steps()
        assert check["message"] == "would bring inference-fleet/gpt-oss-tiny-standin in %s" % stand_in.destination
        assert check["diff"] == applied["diff"]
        assert applied["diff"]["before"] == ""
        promised = promised_by(stand_in.arguments["packed"])
        assert applied["diff"]["after"] == "".join(
            "%s %d bytes sha256 %s\n" % (name, record["size"], record["sha256"])
            for name, record in sorted(promised.items())
        )
        assert (applied["format"], applied["hidden_size"], applied["verified"]) == ("bf16", 8, "full")
        manifest = manifest_of(stand_in.destination)
        for name, record in manifest["files"].items():
            content = (stand_in.destination / name).read_bytes()
            mtime = (stand_in.destination / name).stat().st_mtime_ns
            sha256 = hashlib.sha256(content).hexdigest()
            assert record == {"size": len(content), "sha256": sha256, "mtime_ns": mtime}
        del manifest["files"]
        assert manifest == {"schema": 1, "source": "standin", "repo": stand_in.arguments["repo"], "revision": "1"}
        assert os.listdir(stand_in.destination.parent) == ["standin"]

    def test_check_mode_makes_nothing(self, stand_in):
        assert stand_in.run(check_mode=True)["verified"] is None
        assert not stand_in.destination.parent.exists()

    def test_a_quick_rerun_reads_no_weights(self, stand_in, hashed):
        stand_in.run()
        hashed.clear()
        assert stand_in.run()["verified"] == "quick"
        assert hashed == []

    def test_a_full_run_reads_all(self, stand_in, hashed):
        stand_in.run()
        hashed.clear()
        again = stand_in.run(verify="full")
        assert (again["changed"], again["verified"]) == (False, "full")
        assert sorted(hashed) == sorted(manifest_of(stand_in.destination)["files"])

    def test_rot_is_found_by_full_and_mended(self, stand_in):
        stand_in.run()
        good = snapshot(stand_in.destination)
        rot(stand_in.destination / standin.SHARDS[0])
        assert not stand_in.run()["changed"]
        was = hashlib.sha256(good[standin.SHARDS[0]]).hexdigest()
        now = hashlib.sha256((stand_in.destination / standin.SHARDS[0]).read_bytes()).hexdigest()
        check, applied = stand_in.four_steps(verify="full")
        assert check["message"] == "would repair in %s: %s has sha256 %s, had %s" % (
            stand_in.destination, standin.SHARDS[0], now, was
        )  # fmt: skip
        assert check["repaired"] == applied["repaired"] == [standin.SHARDS[0]]
        assert now in check["diff"]["before"] and check["diff"] == applied["diff"]
        mended = snapshot(stand_in.destination)
        assert {**mended, weight_manifest.MANIFEST: 0} == {**good, weight_manifest.MANIFEST: 0}
        assert os.listdir(stand_in.destination.parent) == ["standin"]

    @pytest.mark.parametrize("damage", ["missing", "shorter", "touched and other"])
    def test_quick_finds_what_shows(self, stand_in, damage):
        stand_in.run()
        file = stand_in.destination / standin.SHARDS[1]
        content = file.read_bytes()
        file.unlink()
        if damage == "shorter":
            file.write_bytes(content[:-1])
        elif damage == "touched and other":
            file.write_bytes(content[:-1] + b"?")
        _check, applied = stand_in.four_steps()
        assert applied["repaired"] == [standin.SHARDS[1]]
        assert file.read_bytes() == content

    def test_new_times_alone_are_no_change_and_cost_one_look(self, stand_in, hashed):
        stand_in.run()
        note = guard_state.weights_note(str(stand_in.destination))
        os.utime(stand_in.destination / "config.json", ns=(1, 1))
        hashed.clear()
        assert not stand_in.run(check_mode=True)["changed"]
        assert not stand_in.run()["changed"]
        assert hashed == ["config.json"] * 2
        assert not stand_in.run()["changed"]
        assert hashed == ["config.json"] * 2
        assert guard_state.weights_note(str(stand_in.destination)) == note  # no server restarts for it

    def test_a_newer_one_replaces_an_older(self, stand_in, tmp_path):
        stand_in.run()
        (stand_in.destination / "kept").write_text("")
        newer = build_packed_standin(tmp_path / "newer", standin.expand, stand_in.arguments["encodings_file"], seed=2)
        check, applied = stand_in.four_steps(packed=str(newer), revision="2")
        assert check["message"] == "would update inference-fleet/gpt-oss-tiny-standin in %s" % stand_in.destination
        assert check["diff"] == applied["diff"] and check["diff"]["before"] != check["diff"]["after"]
        assert manifest_of(stand_in.destination)["revision"] == "2"
        assert (stand_in.destination / "kept").exists()

    def test_another_revision_of_the_same_files(self, stand_in):
        stand_in.run()
        stand_in.four_steps(revision="1.1")

    def test_the_packed_form_is_asked_for_when_it_is_needed(self, stand_in):
        promised = promised_by(stand_in.arguments["packed"])
        assert stand_in.run(packed=None, expected=promised) == {"changed": False, "packed_needed": True}
        assert stand_in.run(check_mode=True, packed=None, expected=promised)["changed"]
        assert stand_in.run(expected=promised)["changed"]
        again = stand_in.run(packed=None, expected=promised)
        assert (again["changed"], again["message"]) == (False, "up to date")
        (stand_in.destination / "tokenizer.json").unlink()
        assert stand_in.run(packed=None, expected=promised) == {"changed": False, "packed_needed": True}

    def test_without_the_encoding(self, stand_in):
        assert stand_in.run(encodings_file="/nowhere/o200k_base.tiktoken")["msg"] == (
            "The stand-in's tokenizer is made from the encoding o200k_base, and encodings_file "
            "/nowhere/o200k_base.tiktoken is not there. Run the role tiktoken_encodings before this one."
        )
        assert stand_in.run(check_mode=True, encodings_file=None)["changed"]

    def test_a_damaged_packed_form(self, stand_in, tmp_path):
        (tmp_path / "packed" / "weights.safetensors").write_bytes(b"")
        failed = stand_in.run()
        assert failed["msg"].startswith("Cannot make the stand-in: %s/packed/weights.safetensors: " % tmp_path)
        assert not stand_in.destination.parent.exists()

    def test_a_wrong_format_is_refused_before_it_is_seen(self, stand_in):
        assert "is in format bf16, the recipe needs mxfp4." in stand_in.run(format="mxfp4")["msg"]
        assert not stand_in.destination.parent.exists()

    def test_readable_by_the_service(self, stand_in, copied):
        for weights in (stand_in, copied):
            old = os.umask(0o077)
            try:
                weights.run()
            finally:
                os.umask(old)
            assert weights.destination.parent.stat().st_mode & 0o777 == 0o755
            assert weights.destination.stat().st_mode & 0o777 == 0o755
            assert {path.stat().st_mode & 0o777 for path in weights.destination.iterdir()} == {0o644}

    def test_a_link_to_another_disk(self, stand_in, tmp_path):
        disk = tmp_path / "disk"
        disk.mkdir()
        stand_in.destination.parent.mkdir()
        stand_in.destination.symlink_to(disk)
        assert stand_in.run()["changed"]
        assert stand_in.destination.is_symlink() and (disk / "config.json").exists()


def test_a_quick_look_imports_little(copied):
    """What it takes as a process is what it imports; so whatever a look does not need comes where it is needed."""
    copied.run()
    code = (
        "import sys\n"
        "from ansible_collections.inference.fleet.plugins.modules.model_weights import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": copied.arguments}),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout)["message"] == "up to date"
    imported = {name.replace(PACKAGE + ".", "") for name in ran.stderr.split()}
    assert "weights.local" in imported
    of_a_job = {"supervise.guard", "weights.standin", "zipfile"}
    of_a_job |= {"weights.hub." + name for name in ("huggingface", "modelscope", "plain", "worker")}
    assert not imported & {*of_a_job, "concurrent.futures", "glob", "hmac", "http.client", "urllib.request"}


class TestJob:
    """Where gigabytes are to be copied or read, a job of its own does it."""

    @pytest.fixture(autouse=True)
    def small_is_large(self, monkeypatch, tmp_path, copied, in_place):
        monkeypatch.setattr(model_weights, "JOB_FROM", 1)
        for weights in (copied, in_place):
            weights.arguments.update(root=str(tmp_path / "root"), wait_s=60)

    def test_copied_by_a_job(self, copied):
        _check, applied = copied.four_steps()
        assert (applied["finished"], applied["progress"]["phase"]) == (True, "done")
        size = sum(record["size"] for record in manifest_of(copied.destination)["files"].values())
        assert (applied["progress"]["bytes_done"], applied["progress"]["bytes_total"]) == (size, size)
        assert sorted(path.name for path in copied.destination.iterdir()) == [weight_manifest.MANIFEST, *NAMES]

    def test_polled(self, copied):
        first = copied.run(wait_s=0)
        assert (first["changed"], first["finished"]) == (False, False)
        result = first
        while not result["finished"]:
            result = copied.run(wait_s=1)
        assert result["changed"] and not copied.run(wait_s=0)["changed"]

    @pytest.mark.parametrize("verify", ["quick", "full"])
    def test_an_end_that_nobody_saw_is_worth_what_lies_there(self, copied, tmp_path, verify):
        assert not copied.run(wait_s=0, caller="first")["finished"]
        wait_until(lambda: weights_came(tmp_path / "root"))
        shutil.rmtree(copied.destination)
        result = copied.run(verify=verify, caller="second")
        assert (result["changed"], result["finished"]) == (True, True)
        assert manifest_of(copied.destination)

    def test_a_byte_that_rotted_unseen(self, copied, tmp_path):
        copied.run(wait_s=0, verify="full", caller="first")
        wait_until(lambda: weights_came(tmp_path / "root"))
        rot(copied.destination / SHARD)
        assert copied.run(verify="full", caller="second")["repaired"] == [SHARD]

    def test_a_quick_look_needs_no_job(self, copied, tmp_path):
        copied.run()
        shutil.rmtree(tmp_path / "root")
        assert "finished" not in copied.run()
        assert not (tmp_path / "root").exists()

    def test_read_in_full_by_a_job(self, copied):
        copied.run()
        rot(copied.destination / SHARD)
        assert copied.run(verify="full")["repaired"] == [SHARD]
        again = copied.run(verify="full")
        assert (again["changed"], again["finished"], again["verified"]) == (False, True, "full")

    def test_recorded_by_a_job(self, in_place, shared):
        assert in_place.run()["finished"]
        rot(shared / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]

    def test_what_it_refuses_it_refuses_in_the_same_words(self, copied, shared):
        (shared / "config.json").write_text('{"model_type": "llama"}')
        assert copied.run()["msg"] == (
            '%s/config.json: model_type is "llama", allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only." % shared
        )
        assert not copied.destination.exists()


class TestTwoAtOnce:
    """Two runs of any size, of one fleet_root or two: the second waits, and finds what the first has brought."""

    @pytest.fixture
    def other(self, tmp_path, monkeypatch):
        """hold(weights, source): a process that brings these weights, in the middle, until `go` is called."""
        begun, going = tmp_path / "begun", tmp_path / "go"
        monkeypatch.setattr(weight_lock, "POLL_S", 0.01)

        def hold(weights, source):
            self.child = os.fork()
            if not self.child:
                status = 1
                try:
                    real = source.fetch

                    def fetch(*given):
                        made = real(*given)
                        begun.touch()
                        wait_until(going.exists)
                        return made

                    source.fetch = fetch
                    local_weights.ensure(local_weights.from_parameters(weights.arguments))
                    status = 0
                finally:
                    os._exit(status)
            wait_until(begun.exists)
            return "%s (process %d, since " % (os.uname().nodename, self.child)

        def go():
            going.touch()
            assert os.waitpid(self.child, 0)[1] == 0

        return SimpleNamespace(hold=hold, go=go)

    def test_small_copies(self, copied, shared, other, tmp_path):
        copied.arguments["root"] = str(tmp_path / "root")
        holder = other.hold(copied, path_source)
        told = wait_until(lambda: "waiting" in (found := copied.run(wait_s=0))["message"] and found)
        assert (told["changed"], told["finished"]) == (False, False)
        assert told["progress"]["phase"].startswith("waiting for " + holder)
        assert told["message"] == "%s to bring %s from %s" % (told["progress"]["phase"], REPO, shared)
        other.go()
        ended = copied.run(wait_s=300)
        assert (ended["changed"], ended["message"], ended["finished"]) == (False, "up to date", True)
        assert sorted(os.listdir(copied.destination)) == [weight_manifest.MANIFEST, *NAMES]
        assert os.listdir(copied.destination.parent) == ["copy"]

    def test_the_stand_in(self, stand_in, other, monkeypatch):
        holder = other.hold(stand_in, standin_source)
        monkeypatch.setattr(model_weights, "PATIENCE_S", 0.1)
        text = stand_in.run()["msg"]
        assert text.startswith("Weights are brought to %s by %s" % (stand_in.destination, holder))
        assert text.endswith("UTC) already. Wait until that has ended, or end it; then run again.")
        other.go()
        assert stand_in.run()["message"] == "up to date"
        assert os.listdir(stand_in.destination.parent) == ["standin"]

    def test_a_look_waits_for_nobody(self, copied):
        copied.run()
        with WeightLock(str(copied.destination)):
            assert copied.run()["message"] == copied.run(check_mode=True)["message"] == "up to date"


class TestCarried:
    """A directory that was fetched elsewhere, manifest and all."""

    @pytest.fixture
    def carried(self, shared):
        names = [*NAMES, ".gitattributes"]
        records = {
            name: {
                "size": (shared / name).stat().st_size,
                "sha256": hashlib.sha256((shared / name).read_bytes()).hexdigest(),
                "oid": None,
            }
            for name in names
        }
        identity = {"source": "huggingface", "repo": REPO, "revision": "main", "commit": "c" * 40, "at": "c" * 40}
        weight_manifest.write_manifest(str(shared), records, **identity, include=[], exclude=[])
        return shared

    def test_copied_by_its_manifest(self, copied, carried):
        (carried / "notes.txt").write_text("not part of it")
        check, _applied = copied.four_steps()
        assert "not known yet" not in check["diff"]["after"]
        assert sorted(path.name for path in copied.destination.iterdir()) == sorted(
            [weight_manifest.MANIFEST, *NAMES, ".gitattributes"]
        )

    def test_rot_on_the_way_is_not_copied(self, copied, carried):
        good = hashlib.sha256((carried / SHARD).read_bytes()).hexdigest()
        rot(carried / SHARD)
        failed = copied.run()
        assert failed["msg"] == (
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced."
            % (SHARD, hashlib.sha256((carried / SHARD).read_bytes()).hexdigest(), good)
        )
        assert not copied.destination.exists()

    def test_a_file_that_was_cut_on_the_way(self, copied, carried):
        (carried / SHARD).write_bytes(b"cut")
        failed = copied.run()
        assert failed["msg"] == (
            "%s is not what its manifest says: %s is 3 bytes long, was %d. Bring those files back, or remove %s/%s if "
            "the change was meant."
            % (carried, SHARD, json.loads((carried / weight_manifest.MANIFEST).read_text())["files"][SHARD]["size"],
               carried, weight_manifest.MANIFEST)
        )  # fmt: skip
        assert not copied.destination.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_one_that_leads_elsewhere(self, copied, carried, tmp_path, check_mode):
        (tmp_path / "payload").write_text("* * * * * root evil")
        manifest = manifest_of(carried)
        manifest["files"]["../payload"] = {
            **manifest["files"]["config.json"], "size": 19,
            "sha256": hashlib.sha256(b"* * * * * root evil").hexdigest(),
        }  # fmt: skip
        (carried / weight_manifest.MANIFEST).write_text(json.dumps(manifest))
        assert copied.run(check_mode)["msg"] == (
            '%s is no manifest that this collection wrote: "../payload" is no path of a file there. Nothing was done '
            "with the files there. Remove it, or the whole directory, and run again."
            % (carried / weight_manifest.MANIFEST)
        )
        assert not copied.destination.parent.exists()

    def test_another_models_directory(self, copied, carried):
        assert copied.run(repo="openai/other")["msg"] == (
            "%s holds another model, %s (source huggingface), and openai/other (source path) is wanted there; it is "
            "left as it is. Choose another destination, or remove it." % (carried, REPO)
        )

    def test_served_in_place(self, in_place, carried):
        before = manifest_of(carried)
        assert not in_place.run()["changed"] and not in_place.run(revision="c" * 40)["changed"]
        os.utime(carried / SHARD, ns=(1, 1))
        assert not in_place.run(verify="full")["changed"]
        before["files"][SHARD]["mtime_ns"] = 1
        assert manifest_of(carried) == before
        rot(carried / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]


class TestCopy:
    def test_copied_checked_and_left_alone(self, copied, shared, hashed):
        check, _applied = copied.four_steps()
        assert hashed == []
        assert check["diff"]["after"].startswith("config.json %d bytes sha256 not known yet\n" % (
            (shared / "config.json").stat().st_size
        ))  # fmt: skip
        assert sorted(path.name for path in copied.destination.iterdir()) == [weight_manifest.MANIFEST, *NAMES]
        for name in NAMES:
            content = (shared / name).read_bytes()
            assert (copied.destination / name).read_bytes() == content
            assert manifest_of(copied.destination)["files"][name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert weight_manifest.MANIFEST not in os.listdir(shared)

    def test_the_source_may_go_away(self, copied, shared):
        copied.run()
        shutil.rmtree(shared)
        assert not copied.run(verify="full")["changed"]
        rot(copied.destination / SHARD)
        failed = copied.run(verify="full")
        assert failed["rotted"] == [SHARD]
        assert failed["msg"].startswith("In %s %s has sha256 " % (copied.destination, SHARD))
        assert failed["msg"].endswith(", and %s is not there to copy from again; mount it, or check path." % shared)

    def test_only_what_rotted_is_copied_again(self, copied, monkeypatch):
        copied.run()
        asked = []
        real = path_source.fetch
        monkeypatch.setattr(path_source, "fetch", lambda *given: asked.append(given[1]) or real(*given))
        rot(copied.destination / SHARD)
        copied.four_steps(verify="full")
        assert asked == [[SHARD]]

    def test_rot_in_the_source_does_not_spread(self, copied, shared):
        copied.run()
        good = (shared / SHARD).read_bytes()
        rot(shared / SHARD)
        rot(copied.destination / SHARD)
        rotten = snapshot(copied.destination)
        failed = copied.run(verify="full")
        assert failed["msg"] == (
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced."
            % (SHARD, hashlib.sha256((shared / SHARD).read_bytes()).hexdigest(), hashlib.sha256(good).hexdigest())
        )
        assert snapshot(copied.destination) == rotten
        assert os.listdir(copied.destination.parent) == ["copy"]

    def test_a_newer_source_is_copied(self, copied, shared):
        copied.run()
        (shared / "config.json").write_text((shared / "config.json").read_text() + "\n")
        (shared / "README.md").write_text("new")
        copied.four_steps()
        (shared / "README.md").unlink()
        check, _applied = copied.four_steps()
        assert "README.md" in check["diff"]["before"] and "README.md" not in check["diff"]["after"]
        assert not (copied.destination / "README.md").exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_source_that_is_not_whole(self, copied, shared, check_mode):
        (shared / SHARD).unlink()
        assert copied.run(check_mode)["msg"] == (
            "The checkpoint in %s is incomplete, missing: %s. Fetch or copy it again." % (shared, SHARD)
        )
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_source_of_another_kind(self, copied, shared, check_mode):
        (shared / "config.json").write_text('{"model_type": "llama"}')
        assert copied.run(check_mode)["msg"] == (
            '%s/config.json: model_type is "llama", allowed: "gpt_oss". '
            "This collection serves gpt-oss checkpoints only." % shared
        )
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_a_wrong_format(self, copied, shared, check_mode):
        assert copied.run(check_mode, format="bf16")["msg"] == (
            "The checkpoint in %s is in format mxfp4, the recipe needs bf16. Serve another checkpoint or choose a "
            "recipe that takes this one." % shared
        )
        assert not copied.destination.parent.exists()

    def test_no_source_directory(self, copied):
        assert copied.run(path="/nowhere/model")["msg"] == (
            "There is no checkpoint directory /nowhere/model on this node; check the path, or mount it."
        )

    def test_a_source_that_grows_while_it_is_copied(self, copied, shared, monkeypatch):
        real = path_source.file_statuses

        def too_early(folder):
            statuses = dict(real(folder))
            statuses[SHARD] = SimpleNamespace(st_size=5, st_mtime_ns=1)
            return statuses

        monkeypatch.setattr(path_source, "file_statuses", too_early)
        assert copied.run()["msg"] == "%s changed while it was copied: %s. Try again." % (shared, SHARD)
        assert not copied.destination.parent.exists()

    def test_what_a_killed_run_left(self, copied):
        half = copied.destination.parent / ".copy.inference-fleet-new"
        half.mkdir(parents=True)
        (half / "config.json").write_text("half")
        copied.four_steps()
        assert os.listdir(copied.destination.parent) == ["copy"]

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_too_little_space(self, copied, tmp_path, monkeypatch, check_mode):
        monkeypatch.setattr(model_weights, "JOB_FROM", 1 << 60)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        monkeypatch.setattr(path_source, "file_statuses", lambda folder: {
            name: SimpleNamespace(st_size=65248893184 if name == SHARD else 0, st_mtime_ns=1) for name in NAMES
        })  # fmt: skip
        failed = copied.run(check_mode)
        assert failed["msg"] == (
            "Not enough space for the weights: %s needs 60.8 GiB, and the file system of %s has 0.0 MiB free. "
            "Free some, or choose another destination."
            % (copied.destination, tmp_path if check_mode else copied.destination.parent)
        )
        assert (failed["needed_bytes"], failed["free_bytes"]) == (65248893184, 1000)
        assert not copied.destination.parent.exists()

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_what_a_killed_run_left_is_room(self, copied, shared, monkeypatch, check_mode):
        half = copied.destination.parent / ".copy.inference-fleet-new"
        half.mkdir(parents=True)
        (half / SHARD).write_bytes(b"x" * 5000)
        needed = sum((shared / name).stat().st_size for name in NAMES)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 5000))
        assert copied.run(check_mode)["changed"]
        assert half.exists() is check_mode

    def test_how_much_is_to_come(self, copied, shared):
        size = {name: (shared / name).stat().st_size for name in NAMES}
        check, applied = copied.four_steps()
        assert check["to_fetch_bytes"] == applied["to_fetch_bytes"] == sum(size.values())
        assert copied.run()["to_fetch_bytes"] == 0
        rot(copied.destination / SHARD)
        assert copied.run(check_mode=True, verify="full")["to_fetch_bytes"] == size[SHARD]

    def test_a_link_to_a_folder_that_is_not_there_yet(self, copied, tmp_path, monkeypatch):
        """Where it leads is what has to have room."""
        copied.destination.parent.mkdir()
        disk = tmp_path / "disk"
        disk.mkdir()
        copied.destination.symlink_to(disk / "model")
        free = {str(disk): 1 << 40}
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 0)))
        assert copied.run(check_mode=True)["changed"] and copied.run()["changed"]
        assert copied.destination.is_symlink() and (disk / "model" / "config.json").exists()

    def test_a_mount_of_a_folder_of_the_same_file_system(self, copied, tmp_path, monkeypatch):
        """os.path.ismount does not see it, and the kernel lets nothing take its place."""
        copied.destination.mkdir(parents=True)
        mounts, real = tmp_path / "mounts", os.rename
        mounts.write_text("1 2 0:1 /x %s rw - ext4 /dev/x rw\n" % copied.destination)

        def rename(old, new):
            if str(new) == str(copied.destination):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), old, None, new)
            real(old, new)

        monkeypatch.setattr(node_layout, "MOUNTS", str(mounts))
        monkeypatch.setattr(os, "rename", rename)
        copied.four_steps()
        assert sorted(os.listdir(copied.destination)) == [weight_manifest.MANIFEST, *NAMES]


class TestRefused:
    def test_files_of_unknown_origin(self, copied, stand_in):
        for weights in (copied, stand_in):
            weights.destination.mkdir(parents=True)
            (weights.destination / "config.json").write_text("{}")
            for check_mode in (True, False):
                assert weights.run(check_mode)["msg"] == (
                    "%s holds files that this collection did not put there (config.json); they are left as they are. "
                    "Choose another destination, or remove them." % weights.destination
                )
            assert snapshot(weights.destination) == {"config.json": b"{}"}

    @pytest.mark.parametrize("garbled", [False, True])
    def test_the_promised_files_whose_manifest_is_lost(self, copied, stand_in, garbled):
        for weights in (copied, stand_in):
            weights.run()
            before = manifest_of(weights.destination)["files"].keys()
            manifest = weights.destination / weight_manifest.MANIFEST
            manifest.write_text("{") if garbled else manifest.unlink()
            weights.four_steps()
            assert manifest_of(weights.destination)["files"].keys() == before
            manifest.unlink()
            with open(weights.destination / "config.json", "a") as stream:
                stream.write(" ")
            assert "holds files that this collection did not put there" in weights.run()["msg"]

    def test_another_model(self, copied, stand_in):
        copied.run()
        before = snapshot(copied.destination)
        for check_mode in (True, False):
            assert stand_in.run(check_mode, destination=str(copied.destination))["msg"] == (
                "%s holds another model, %s (source path), and inference-fleet/gpt-oss-tiny-standin (source standin) "
                "is wanted there; it is left as it is. Choose another destination, or remove it."
                % (copied.destination, REPO)
            )
        assert snapshot(copied.destination) == before

    def test_a_file(self, stand_in):
        stand_in.destination.parent.mkdir()
        stand_in.destination.write_text("")
        assert stand_in.run()["msg"] == (
            "%s is not a directory; remove it or choose another destination." % stand_in.destination
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"path": None},
                "source is path, but path is not set; name the directory that holds the checkpoint.",
            ),
            (
                {"path": "/a", "destination": "/b"},
                "Without copy the weights are served from path /a, but servers load destination /b. "
                "Set copy to true, or both to the same directory.",
            ),
            (
                {"path": "/a", "destination": "/a", "copy": True},
                "copy is true, but path and destination are the same directory /a.",
            ),
            (
                {"source": "standin", "destination": "models"},
                "destination is 'models'; it must be the absolute path of a directory.",
            ),
        ],
    )
    def test_arguments_that_contradict_each_other(self, in_place, arguments, message):
        assert in_place.run(**arguments)["msg"] == message

    def test_a_draft_that_is_not_there(self, in_place, tmp_path):
        draft = tmp_path / "draft"
        assert in_place.run(draft=str(draft))["msg"] == (
            "There is no draft model in %s: config.json is missing. Put it there, or take the draft out of the recipe."
            % draft
        )
        draft.mkdir()
        (draft / "config.json").write_text("{}")
        assert in_place.run(draft=str(draft))["msg"] == (
            "The draft model in %s is incomplete, missing: model.safetensors. Fetch or copy it again." % draft
        )


class TestDraft:
    """A draft that is on the node is checked as the model is, whatever the model's source."""

    @pytest.fixture(params=["in_place", "copied", "stand_in"])
    def weights(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture
    def draft(self, tmp_path, weights):
        sizes = (HIDDEN, VOCABULARY) if weights.arguments["source"] == "standin" else (16, 100)
        config = {"hidden_size": sizes[0], "vocab_size": sizes[1], "draft_vocab_size": None}
        weights.arguments["draft"] = heads.write(tmp_path / "draft", shards=3, **config)
        return tmp_path / "draft"

    def test_recorded_compared_and_never_changed(self, weights, draft, hashed):
        before = snapshot(draft)
        check, applied = weights.four_steps()
        assert "would record the files of the draft model in %s" % draft in check["message"]
        assert applied["draft"] == {
            "path": str(draft), "repo": None, "revision": None, "commit": None, "changed": True, "verified": "structure"
        }  # fmt: skip
        assert (
            "recorded the files of the draft model in %s as they are; nothing is known to compare them with" % draft
        ) in applied["message"]
        assert {
            name: content for name, content in snapshot(draft).items() if name != weight_manifest.MANIFEST
        } == before
        hashed.clear()
        again = weights.run()
        assert (again["changed"], again["draft"]["verified"], hashed) == (False, "quick", [])
        rot(draft / "model-00002-of-00003.safetensors")
        assert not weights.run().get("failed")
        failed = weights.run(verify="full")
        assert failed["rotted"] == ["model-00002-of-00003.safetensors"]
        assert failed["msg"].startswith("The checkpoint in %s is not what it was when it was recorded: " % draft)

    @pytest.mark.parametrize("check_mode", [True, False])
    def test_one_that_lacks_a_shard_is_refused_before_anything_comes(self, weights, draft, check_mode):
        before = weights.destination.exists() and snapshot_files(weights.destination)
        (draft / "model-00002-of-00003.safetensors").unlink()
        assert weights.run(check_mode, verify="full")["msg"] == (
            "The draft model in %s is incomplete, missing: model-00002-of-00003.safetensors. Fetch or copy it again."
            % draft
        )
        (draft / "model-00002-of-00003.safetensors").write_bytes((draft / "config.json").read_bytes())
        assert weights.run(check_mode)["msg"].startswith("The draft model in %s is damaged: model-00002-of" % draft)
        assert (weights.destination.exists() and snapshot_files(weights.destination)) == before

    def test_a_head_that_the_engine_does_not_run(self, weights, draft):
        config = json.loads((draft / "config.json").read_text())
        heads.write(draft, {**heads.names(), "d2t": [96]}, shards=3, **config, draft_vocab_size=None)
        before = weights.destination.exists() and snapshot_files(weights.destination)
        failed = weights.run(draft_eagle3=True)
        assert failed["msg"].startswith(
            "The draft model in %s is no EAGLE3 head that NxD Inference runs: layer " % draft
        )
        assert failed["layers"]
        assert (weights.destination.exists() and snapshot_files(weights.destination)) == before
        assert weights.run()["changed"]

    def test_in_the_form_of_pytorch(self, in_place, tmp_path):
        draft = tmp_path / "draft"
        draft.mkdir()
        (draft / "config.json").write_text("{}")
        (draft / "pytorch_model.bin").write_bytes(b"")
        assert in_place.run(draft=str(draft))["msg"] == (
            "The draft model in %s is damaged: pytorch_model.bin is empty. Fetch or copy it again." % draft
        )
        (draft / "pytorch_model.bin").write_bytes(b"x")
        assert in_place.run(draft=str(draft))["draft"]["changed"]

    def test_one_that_a_hub_brought_elsewhere(self, in_place, tmp_path):
        """It keeps its name, and its manifest is believed."""
        draft = Path(heads.write(tmp_path / "draft", hidden_size=16, vocab_size=100))
        records = {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in snapshot(draft).items()
        }
        weight_manifest.write_manifest(
            str(draft), records, source="huggingface", repo="a/head", revision="main", commit="c" * 40, at="c" * 40
        )
        assert in_place.run(draft=str(draft))["draft"]["verified"] == "quick"
        rot(draft / "model.safetensors")
        assert in_place.run(draft=str(draft), verify="full")["rotted"] == ["model.safetensors"]


class TestPublished:
    """Directories that say they are a checkpoint whose files are known."""

    COMMIT = "b" * 40

    @pytest.fixture(autouse=True)
    def known_now(self, monkeypatch, shared):
        files = {
            name: (len(content), hashlib.sha256(content).hexdigest())
            for name, content in snapshot_files(shared).items()
            if not name.startswith(".")
        }
        monkeypatch.setattr(known, "KNOWN", (known.Known("huggingface", REPO, self.COMMIT, files),))
        self.sha256 = {name: sha256 for name, (_size, sha256) in files.items()}

    @pytest.mark.parametrize("revision", [None, COMMIT])
    @pytest.mark.parametrize("verify", ["quick", "full"])
    def test_served_in_place_or_copied(self, in_place, copied, revision, verify):
        for weights in (copied, in_place):
            applied = weights.run(revision=revision, verify=verify)
            assert (applied["changed"], applied["verified"]) == (True, "full"), applied
            assert "nothing is known" not in applied["message"]

    @pytest.mark.parametrize("revision", [None, COMMIT])
    def test_a_byte_that_was_wrong_from_the_start(self, in_place, copied, shared, revision):
        rot(shared / SHARD)
        now = hashlib.sha256((shared / SHARD).read_bytes()).hexdigest()
        failed = in_place.run(revision=revision)
        assert failed["rotted"] == [SHARD]
        assert failed["msg"] == (
            "%s does not hold what %s commit %s is known to have: %s has sha256 %s, known is %s. Bring these files "
            "again; if it is another version, set revision to the name of that."
            % (shared, REPO, self.COMMIT, SHARD, now, self.sha256[SHARD])
        )
        assert weight_manifest.MANIFEST not in os.listdir(shared)
        assert copied.run(revision=revision)["msg"] == (
            "%s came with sha256 %s, expected %s; its source is damaged or another version. Nothing was replaced."
            % (SHARD, now, self.sha256[SHARD])
        )
        assert not copied.destination.exists()

    def test_where_no_manifest_can_be_kept_a_job_is_believed_without_one(self, in_place, tmp_path, monkeypatch):
        real, tasks = os.access, []

        def advance(job, task, *more):
            tasks.append(task)
            return {"state": "running"}

        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
        monkeypatch.setattr(model_weights, "JOB_FROM", 1)
        monkeypatch.setattr(jobs.Job, "advance", advance)
        assert not in_place.run(verify="full", root=str(tmp_path / "root"))["finished"]
        assert tasks[0].differs(strict=False) == ""
        monkeypatch.setattr(os, "access", real)
        assert tasks[0].differs(strict=False) == "no manifest is in %s" % in_place.destination

    def test_one_that_was_recorded_before_it_was_known(self, in_place, copied, shared, monkeypatch):
        rot(shared / SHARD)
        with monkeypatch.context() as before:
            before.setattr(known, "KNOWN", ())
            assert copied.run()["verified"] == in_place.run()["verified"] == "structure"
        assert in_place.run()["rotted"] == copied.run()["rotted"] == [SHARD]
        assert "nothing is known" not in in_place.run(revision="ours")["message"]

    def test_another_version_is_compared_with_nothing(self, in_place, shared):
        rot(shared / SHARD)
        assert in_place.run(revision="ours")["verified"] == "structure"

    def test_a_checkpoint_that_was_cut_into_other_files_is_not_taken_for_it(self, capsys, tmp_path):
        other = build_checkpoint(tmp_path / "other", shards=2)
        weights = Weights(capsys, other, source="path", repo=REPO, path=str(other))
        assert weights.run()["verified"] == "structure"

    def test_what_people_change_is_warned_of(self, in_place, copied, shared, monkeypatch):
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        (shared / "tokenizer.json").write_text("[]")
        text = " does not hold what %s commit %s is known to have: tokenizer.json has sha256 " % (REPO, self.COMMIT)
        for weights in (in_place, copied):
            warnings.clear()
            assert weights.run()["changed"]
            assert len(warnings) == 1 and text in warnings[0]
        assert text in in_place.run(revision=self.COMMIT)["msg"]

    def test_where_no_manifest_can_be_kept_full_compares_all_the_same(self, in_place, shared, monkeypatch):
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
        request = local_weights.from_parameters(
            {"repo": REPO, "source": "path", "path": str(shared), "destination": str(shared)}
        )
        assert local_weights.effort(request, "quick") == 0
        assert local_weights.effort(request, "full") == sum((shared / name).stat().st_size for name in NAMES)
        assert in_place.run()["verified"] == "structure"
        assert in_place.run(verify="full")["verified"] == "full"
        with monkeypatch.context() as nothing_known:
            nothing_known.setattr(known, "KNOWN", ())
            assert (local_weights.effort(request, "full"), in_place.run(verify="full")["verified"]) == (0, "structure")
        rot(shared / SHARD)
        assert in_place.run(verify="full")["rotted"] == [SHARD]


class TestDiskOfItsOwn:
    """The destination is a file system: files move into it one by one."""

    @pytest.fixture(autouse=True)
    def mounted(self, monkeypatch, copied):
        copied.destination.mkdir(parents=True)
        (copied.destination / "lost+found").mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(copied.destination))

    def steps(self, copied, kill_at):
        """How many steps a run in a process of its own has made when it is killed before the step `kill_at`."""
        counts = Path(str(copied.destination) + ".steps")
        child = os.fork()
        if not child:
            made = 0

            def counted(real):
                def step(*given, **named):
                    nonlocal made
                    made += 1
                    counts.write_text(str(made))
                    if made == kill_at:
                        os._exit(9)
                    return real(*given, **named)

                return step

            for name in ("rename", "unlink", "rmdir"):
                setattr(os, name, counted(getattr(os, name)))
            try:
                local_weights.ensure(local_weights.from_parameters(copied.arguments))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return int(counts.read_text())

    def test_killed_between_any_two_steps(self, copied, shared):
        wanted = {name: (shared / name).read_bytes() for name in NAMES}
        kill_at, told = 0, set()
        while True:
            kill_at += 1
            shutil.rmtree(copied.destination)
            copied.destination.mkdir()
            if self.steps(copied, kill_at) < kill_at:
                break
            seen = set(os.listdir(copied.destination))
            assert "config.json" not in seen or set(NAMES) <= seen
            finished = copied.run()
            assert not finished.get("failed"), (kill_at, finished)
            told.add(finished["changed"])
            assert {
                path.name: path.read_bytes() for path in copied.destination.iterdir() if path.name in NAMES
            } == wanted
            assert not copied.run(verify="full")["changed"]
        assert kill_at > len(NAMES) and told == {True, False}

    def test_what_an_install_that_was_cut_had_of_another_version_goes(self, copied, shared):
        identity = {"source": "path", "repo": REPO, "revision": None}
        staging = copied.destination / weight_manifest.INNER_STAGING
        staging.mkdir()
        weight_staging._begin(str(staging), str(copied.destination), ["model-00007-of-00008.safetensors"], identity)
        (copied.destination / "model-00007-of-00008.safetensors").write_text("of the other")
        assert weight_manifest.read_manifest(str(copied.destination)) is None
        copied.four_steps()
        assert set(os.listdir(copied.destination)) == {"lost+found", weight_manifest.MANIFEST, *NAMES}

    def test_files_of_others_stay_refused(self, copied):
        (copied.destination / "thesis.txt").write_text("three years")
        assert "holds files that this collection did not put there (thesis.txt)" in copied.run()["msg"]


class TestInPlace:
    def test_recorded_checked_and_left_alone(self, in_place, shared):
        before = snapshot_files(shared)
        check, applied = in_place.four_steps()
        text = " the files of %s in %s as they are; nothing is known to compare them with" % (REPO, shared)
        assert (check["message"], applied["message"]) == ("would record" + text, "recorded" + text)
        assert (applied["verified"], applied["format"]) == ("structure", "mxfp4")
        assert sorted(manifest_of(shared)["files"]) == NAMES
        after = snapshot_files(shared)
        del after[weight_manifest.MANIFEST]
        assert after == before

    def test_a_quick_rerun_reads_no_weights(self, in_place, hashed):
        in_place.run()
        hashed.clear()
        assert in_place.run()["verified"] == "quick"
        assert hashed == []

    def test_rot_is_named_and_nothing_is_changed(self, in_place, shared):
        in_place.run()
        was = manifest_of(shared)["files"][SHARD]["sha256"]
        rot(shared / SHARD)
        before = snapshot_files(shared)
        failed = in_place.run(verify="full")
        assert failed["rotted"] == [SHARD]
        now = hashlib.sha256((shared / SHARD).read_bytes()).hexdigest()
        assert failed["msg"] == (
            "The checkpoint in {0} is not what it was when it was recorded: {1} has sha256 {2}, had {3}. Bring those "
            "files back, or, if the change was meant, remove {0}/.inference-fleet-manifest.json and run again."
        ).format(shared, SHARD, now, was)
        assert snapshot_files(shared) == before
        (shared / weight_manifest.MANIFEST).unlink()
        in_place.four_steps()

    def test_what_is_not_whole_is_refused(self, in_place, shared):
        (shared / SHARD).unlink()
        assert "is incomplete, missing: %s." % SHARD in in_place.run()["msg"]
        assert weight_manifest.MANIFEST not in os.listdir(shared)

    def test_another_model_is_refused(self, in_place, shared):
        in_place.run()
        assert in_place.run(repo="openai/other")["msg"] == (
            "%s holds another model, %s (source path), and openai/other (source path) is wanted there; "
            "it is left as it is. Choose another destination, or remove it." % (shared, REPO)
        )

    def test_a_copy_may_be_served_in_place_later(self, copied, stand_in):
        copied.run()
        there = str(copied.destination)
        assert not copied.run(path=there, copy=False)["changed"]
        stand_in.run()
        there = str(stand_in.destination)
        assert not stand_in.run(source="path", path=there)["changed"]

    def test_new_times_alone_are_no_change(self, in_place, shared, hashed):
        in_place.run()
        os.utime(shared / SHARD, ns=(1, 1))
        hashed.clear()
        assert not in_place.run()["changed"]
        assert not in_place.run()["changed"]
        assert hashed == [SHARD]

    def test_another_revision_is_recorded(self, in_place):
        in_place.run()
        in_place.four_steps(revision="b5c939de")

    def test_a_directory_that_cannot_be_written_to(self, in_place, shared, monkeypatch, hashed):
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        result = in_place.run()
        assert (result["changed"], result["verified"], hashed) == (False, "structure", [])
        assert warnings == [
            "%s cannot be written to, so no manifest is kept there: only the structure of the checkpoint was checked, "
            "not the content of its files." % shared
        ]
        assert weight_manifest.MANIFEST not in os.listdir(shared)


def snapshot_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_manifest_is_no_part_of_a_checkpoint(in_place, shared, tmp_path):
    in_place.run()
    assert checkpoints.inspect(str(shared))["num_layers"] == 3
    assert weight_manifest.MANIFEST not in path_source.file_statuses(str(shared))
