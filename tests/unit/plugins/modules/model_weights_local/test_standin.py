# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in: expanded, kept, made again, refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import standin
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    build_packed_standin,
    rot,
)
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_local.local_weights_calls import (
    PACKAGE,
    manifest_of,
    promised_by,
    snapshot,
)


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

    def test_check_mode_says_how_much_comes_and_how_much_is_free(self, stand_in):
        expected = {"model.safetensors": {"size": 3 << 20, "sha256": "0" * 64}}
        space = stand_in.run(check_mode=True, expected=expected)["space"]
        assert re.fullmatch(r"3.0 MiB to come, the file system of /\S+ has [0-9.]+ [GM]iB free", space)
        assert "space" not in stand_in.run()
        assert "space" not in stand_in.run(check_mode=True)

    def test_it_stands_in_for_weights_of_any_format(self, stand_in):
        assert stand_in.run(format="mxfp4")["changed"]
        assert not stand_in.run(format="mxfp4")["changed"]

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


# What the module inference.fleet.node does, without the mocks of operating.py: they import as much as a download does.
LOOK = """
import json, sys
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import called
from ansible_collections.inference.fleet.plugins.modules.node import validate
print(json.dumps(called.run("model_weights", json.load(sys.stdin), False, validate, set().update)[0]))
print(*sys.modules, file=sys.stderr)
"""


def test_a_quick_look_imports_little(copied):
    """What it takes as a process is what it imports; so whatever a look does not need comes where it is needed."""
    copied.run()
    ran = subprocess.run(
        [sys.executable, "-c", LOOK],
        input=json.dumps(copied.arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout)["message"] == "up to date"
    imported = {name.replace(PACKAGE + ".", "") for name in ran.stderr.split()}
    assert "weights.local" in imported
    of_a_job = {"cli", "weights.standin", "weights.download", "weights.http", "zipfile"}
    assert not imported & {*of_a_job, "concurrent.futures", "glob", "hmac", "http.client", "urllib.request"}
