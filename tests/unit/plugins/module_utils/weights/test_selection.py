# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns, listings and manifests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, selection
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import progress as progress_module
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import (
    Listing,
    Wanted,
    default_revision,
)
from huggingface_hub.utils import filter_repo_objects
from hypothesis import assume, given
from hypothesis import strategies as st

WANTED = Wanted("huggingface", "a/b", "main", "/m/b", endpoint="https://hub")
SIZE = {"size": 1, "sha256": None, "oid": None}
NAMES = st.text("ab.-/*?[]!", min_size=1, max_size=8).filter(lambda name: not name.startswith("/"))
PATTERNS = st.lists(st.text("ab.-/*?", min_size=1, max_size=6), max_size=3)


def files(*names):
    return dict.fromkeys(names, SIZE)


def refused(call, *arguments):
    with pytest.raises(FleetError) as error:
        call(*arguments)
    return error.value.message


class TestPatterns:
    @given(st.sets(NAMES, min_size=1, max_size=6), PATTERNS, PATTERNS)
    def test_they_mean_what_they_mean_to_the_hubs_client(self, names, include, exclude):
        wanted = replace(WANTED, include=tuple(include), exclude=tuple(exclude))
        expected = set(filter_repo_objects(names, allow_patterns=include or None, ignore_patterns=exclude))
        assume(all(any(selection.matches(name, pattern) for name in names) for pattern in [*include, *exclude]))
        if expected:
            assert set(selection.select(wanted, files(*names))) == expected
        else:
            assert "they leave no file" in refused(selection.select, wanted, files(*names))

    @pytest.mark.parametrize("option", ["include", "exclude"])
    def test_one_that_matches_nothing_is_named(self, option):
        assert "'b*'" in refused(selection.select, replace(WANTED, **{option: ("a*", "b*")}), files("a", "c"))

    def test_the_default_ones_may_name_nothing(self):
        assert selection.select(replace(WANTED, exclude=("original/*", "metal/*")), files("a")) == files("a")


class TestListings:
    WHOLE = files("config.json", "tokenizer.json", "model.safetensors")

    @pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", "a//b", "", None, "a\\b", "a\nb"])
    def test_paths(self, path):
        assert json.dumps(path) in refused(selection.check_listing, WANTED, Listing("c", "c", {path: SIZE}))

    @pytest.mark.parametrize("size", [None, -1, "7"])
    def test_sizes(self, size):
        refused(selection.check_listing, WANTED, Listing("c", "c", {"a": {**SIZE, "size": size}}))

    def test_nothing(self):
        refused(selection.check_listing, WANTED, Listing("c", "c", {}))

    def test_another_commit_than_the_wanted_one(self):
        wanted = replace(WANTED, revision="a" * 40)
        selection.check_listing(wanted, Listing("a" * 40, "a" * 40, {"a": SIZE}))
        selection.check_listing(replace(WANTED, revision="v1.0"), Listing("b" * 40, "b" * 40, {"a": SIZE}))
        for commit in ("b" * 40, None):
            assert "a" * 40 in refused(selection.check_listing, wanted, Listing(commit, commit, {"a": SIZE}))

    def test_checksums(self):
        assert "config.json" in refused(selection.choose, WANTED, Listing("c", "c", self.WHOLE))
        summed = {path: {**SIZE, "oid": "0" * 40} for path in self.WHOLE}
        assert selection.choose(WANTED, Listing("c", "c", summed))[1] == summed

    def test_what_a_checkpoint_needs(self):
        selection.check_complete(WANTED, self.WHOLE, self.WHOLE)
        text = refused(selection.check_complete, WANTED, files("config.json"), files("config.json"))
        assert "model.safetensors, tokenizer.json" in text
        refused(selection.check_complete, WANTED, {}, {}, {"weight_map": {}})
        draft = files("config.json", "pytorch_model.bin")
        selection.check_complete(replace(WANTED, draft=True), draft, draft)


LISTED_120B = {
    path: {"size": size, "sha256": sha256 if path.endswith("safetensors") else None, "oid": "0" * 40}
    for path, (size, sha256) in known.GPT_OSS_120B.files.items()
}
WANTED_120B = replace(WANTED, repo="openai/gpt-oss-120b", exclude=("original/*", "metal/*"))


class TestKnown:
    def listing(self, **changes):
        return Listing(known.GPT_OSS_120B.commit, "x", {**LISTED_120B, "metal/model.bin": SIZE, **changes})

    def test_the_figures(self):
        found = known.GPT_OSS_120B.files
        assert (len(found), sum(size for size, _sha256 in found.values())) == (26, 65_276_859_410)
        shards = [path for path in found if path.endswith(".safetensors")]
        assert (len(shards), shards[0], shards[-1]) == (
            15, "model-00000-of-00014.safetensors", "model-00014-of-00014.safetensors"
        )  # fmt: skip
        assert {len(sha256) for _size, sha256 in found.values()} == {64}

    def test_what_a_hub_lists_gets_the_known_checksums(self):
        checked = selection.check_known(WANTED_120B, self.listing())
        kept = selection.select(WANTED_120B, checked)
        assert {path: (record["size"], record["sha256"]) for path, record in kept.items()} == known.GPT_OSS_120B.files

    def test_the_known_checksums_do_where_a_hub_lists_none(self):
        bare = Listing(known.GPT_OSS_120B.commit, "x", {path: {**one, "sha256": None, "oid": None}
                                                        for path, one in LISTED_120B.items()})  # fmt: skip
        wanted = replace(WANTED_120B, revision=known.GPT_OSS_120B.commit)
        assert {record["sha256"] for record in selection.choose(wanted, bare)[1].values()} == {
            sha256 for _size, sha256 in known.GPT_OSS_120B.files.values()
        }

    @pytest.mark.parametrize(
        ("changes", "wrong"),
        [
            ({"config.json": {**SIZE, "size": 2088}}, "config.json has 2088 bytes"),
            ({"malware.py": SIZE}, "malware.py is not part of it"),
            ({"model-00000-of-00014.safetensors": {"size": 4625017896, "sha256": "a" * 64, "oid": None}}, "a" * 64),
        ],
    )
    def test_another_listing(self, changes, wrong):
        assert wrong in refused(selection.check_known, WANTED_120B, self.listing(**changes))

    def test_a_missing_file(self):
        listing = self.listing()
        del listing.files["LICENSE"]
        assert "LICENSE is missing" in refused(selection.check_known, WANTED_120B, listing)

    def test_default_revisions(self):
        assert default_revision("huggingface", "openai/gpt-oss-120b") == known.GPT_OSS_120B.commit
        assert default_revision("huggingface", "openai/gpt-oss-20b") == "main"
        assert default_revision("modelscope", "unsloth/gpt-oss-120b-BF16") == "master"


RECORD = {"size": 1, "sha256": "a" * 64, "mtime_ns": 1}


class TestManifest:
    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "files": {}}', '{"schema": 1, "files": []}'])
    def test_what_is_no_manifest(self, tmp_path, text):
        (tmp_path / weight_manifest.MANIFEST).write_text(text)
        assert weight_manifest.read_manifest(str(tmp_path)) is None

    @pytest.mark.parametrize("below", ["out", "deep/out"])
    def test_a_link_that_leads_out(self, tmp_path, below):
        """By which a file elsewhere would be replaced or removed."""
        folder, elsewhere = tmp_path / "weights", tmp_path / "elsewhere"
        (folder / "deep").mkdir(parents=True)
        elsewhere.mkdir()
        (folder / below).symlink_to(elsewhere)
        (folder / "inner").symlink_to(folder / "deep")
        manifest = {"schema": 1, "source": "path", "repo": "a/b", "revision": None}
        path = folder / weight_manifest.MANIFEST
        path.write_text(json.dumps({**manifest, "files": {"inner/a": RECORD}}))
        assert weight_manifest.read_manifest(str(folder))["files"] == {"inner/a": RECORD}
        path.write_text(json.dumps({**manifest, "files": {below + "/a": RECORD}}))
        with pytest.raises(FleetError, match="%s/a" % below):
            weight_manifest.read_manifest(str(folder))

    @pytest.mark.parametrize(
        "changes",
        [
            {"files": {"../payload": RECORD}},
            {"files": {"/etc/cron.d/payload": RECORD}},
            {"files": {"a\0b": RECORD}},
            {"files": {"": RECORD}},
            {"files": {weight_manifest.MANIFEST: RECORD}},
            {"files": {weight_manifest.INNER_STAGING + "/a": RECORD}},
            {"files": {"a": None}},
            {"files": {"a": {**RECORD, "size": "1"}}},
            {"files": {"a": {**RECORD, "size": True}}},
            {"files": {"a": {**RECORD, "size": -1}}},
            {"files": {"a": {**RECORD, "sha256": "A" * 64}}},
            {"files": {"a": {"size": 1, "sha256": "a" * 64}}},
            {"files": {"a": {**RECORD, "written_ns": "now"}}},
            {"files": {"a": {**RECORD, "at": 7}}},
            {"revision": ["main"]},
        ],
    )
    def test_a_forged_one(self, tmp_path, changes):
        manifest = {"schema": 1, "source": "path", "repo": "a/b", "revision": None, "files": {"a": RECORD}}
        (tmp_path / weight_manifest.MANIFEST).write_text(json.dumps(manifest))
        assert weight_manifest.read_manifest(str(tmp_path))["files"] == {"a": RECORD}
        (tmp_path / weight_manifest.MANIFEST).write_text(json.dumps({**manifest, **changes}))
        with pytest.raises(FleetError) as error:
            weight_manifest.own_manifest(str(tmp_path), "a/b", "path")
        assert error.value.code == "weights.manifest-unreadable"


class TestProgress:
    def test_rate_and_time_left(self, monkeypatch):
        clock, done = [100.0], [0]
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
        progress = progress_module.Progress()
        assert progress.snapshot() == {
            "phase": "listing", "percent": 0.0, "bytes_done": 0, "bytes_total": 0, "rate_bytes_s": None, "eta_s": None,
            "file": None, "waiting": None,
        }  # fmt: skip
        progress.begin("downloading", 1000, lambda: done[0])
        progress.snapshot()
        clock[0], done[0] = 101.0, 123
        assert progress.snapshot() == {
            "phase": "downloading", "percent": 12.3, "bytes_done": 123, "bytes_total": 1000, "rate_bytes_s": 123,
            "eta_s": 8, "file": None, "waiting": None,
        }  # fmt: skip
        clock[0] = 130.0  # a silence that is longer than the span of the rate
        assert progress.snapshot()["rate_bytes_s"] is None
        clock[0] = 131.0
        assert (progress.snapshot()["rate_bytes_s"], progress.snapshot()["eta_s"]) == (0, None)
        done[0] = 5000
        assert progress.snapshot()["bytes_done"] == 1000
