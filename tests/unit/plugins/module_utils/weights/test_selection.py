# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns, listings and manifests: the pure parts of bringing weights."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, selection
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import progress as progress_module
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import staging as weight_staging
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import (
    Desired,
    Listing,
    default_revision,
)
from huggingface_hub.utils import filter_repo_objects
from hypothesis import assume, given
from hypothesis import strategies as st

WANTED = Desired("huggingface", "a/b", "main", "/m/b", "https://hub", exclude=())
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
            assert refused(selection.select, wanted, files(*names)).startswith("include and exclude leave no file of")

    @given(st.sets(NAMES, min_size=1, max_size=6), PATTERNS)
    def test_one_that_names_nothing_is_named(self, names, include):
        idle = [
            pattern for pattern in include if not any(selection.matches(name, pattern) for name in names)
        ]  # fmt: skip
        assume(idle)
        wanted = replace(WANTED, include=tuple(include))
        assert refused(selection.select, wanted, files(*names)).startswith("include has the pattern '%s'," % idle[0])

    def test_the_default_ones_may_name_nothing(self):
        assert selection.select(replace(WANTED, exclude=("original/*", "metal/*")), files("a")) == files("a")


class TestListings:
    @pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", "a//b", "./a", "", "a/", None])
    def test_paths(self, path):
        assert "lists a file %s for" % json.dumps(path) in refused(selection.check_paths, WANTED, {path: SIZE})

    @pytest.mark.parametrize("size", [None, -1, "7"])
    def test_sizes(self, size):
        assert "lists no size for a" in refused(selection.check_paths, WANTED, {"a": {**SIZE, "size": size}})

    def test_nothing(self):
        assert "lists no file" in refused(selection.check_paths, WANTED, {})

    def test_another_commit_than_the_one_that_is_wanted(self):
        wanted = replace(WANTED, revision="a" * 40)
        selection.check_commit(wanted, Listing("a" * 40, "a" * 40, {}))
        selection.check_commit(replace(WANTED, revision="v1.0"), Listing("b" * 40, "b" * 40, {}))
        for commit in ("b" * 40, None):
            assert refused(selection.check_commit, wanted, Listing(commit, commit, {})) == (
                "Hugging Face (https://hub) lists commit %s for a/b at revision %s, which is a commit itself. The hub, "
                "a mirror or a proxy does not keep to the revision that it is asked for; choose another endpoint, or "
                "another revision." % (commit, "a" * 40)
            )

    def test_checksums(self):
        good = {"a": {**SIZE, "oid": "0" * 40}, "b": {**SIZE, "sha256": "0" * 64}}
        selection.check_checksums(WANTED, good)
        assert refused(selection.check_checksums, WANTED, {**good, "c": SIZE, "d": {**SIZE, "sha256": ""}}) == (
            "Hugging Face (https://hub) lists no checksum of c, d of a/b at revision main, so that nobody could tell "
            "whether the right bytes come. Choose another endpoint, or leave out by exclude what servers do not need."
        )

    def test_an_index_without_shards(self):
        assert "has no weight_map" in refused(selection.check_index, WANTED, {}, {}, {"weight_map": {}})

    def test_a_single_file_needs_no_index(self):
        whole = files("config.json", "tokenizer.json", "model.safetensors")
        selection.check_complete(WANTED, whole, whole)
        assert refused(selection.check_complete, WANTED, files("config.json"), files("config.json")) == (
            "Hugging Face (https://hub) does not list model.safetensors, tokenizer.json for a/b at revision main, and "
            "no server can do without them. The checkpoint is incomplete; check repo and revision."
        )

    def test_a_draft_needs_no_tokenizer(self):
        whole = files("config.json", "pytorch_model.bin")
        selection.check_complete(replace(WANTED, draft=True), whole, whole)


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
            ({"config.json": {**SIZE, "size": 2088}}, "config.json has 2088 bytes, known are 2089"),
            ({"malware.py": SIZE}, "malware.py is not part of it"),
            (
                {"model-00000-of-00014.safetensors": {"size": 4625017896, "sha256": "a" * 64, "oid": None}},
                "model-00000-of-00014.safetensors has sha256 %s, known is 6952188846" % ("a" * 64)
                + "84c611fe08a74751ee443f971e9bd9bc062edba822da3fe45969b7",
            ),
        ],
    )
    def test_another_listing(self, changes, wrong):
        assert refused(selection.check_known, WANTED_120B, self.listing(**changes)) == (
            "Hugging Face (https://hub) does not list the files that openai/gpt-oss-120b commit %s is known to have: "
            "%s. The hub, a mirror or a proxy is not to be trusted; choose another endpoint."
            % (known.GPT_OSS_120B.commit, wrong)
        )

    def test_a_missing_file(self):
        listing = self.listing()
        del listing.files["LICENSE"]
        assert "known to have: LICENSE is missing." in refused(selection.check_known, WANTED_120B, listing)

    def test_default_revisions(self):
        assert default_revision("huggingface", "openai/gpt-oss-120b") == known.GPT_OSS_120B.commit
        assert default_revision("huggingface", "openai/gpt-oss-20b") == "main"
        assert default_revision("modelscope", "unsloth/gpt-oss-120b-BF16") == "master"


RECORD = {"size": 1, "sha256": "a" * 64, "mtime_ns": 1}


class TestManifest:
    @given(
        st.dictionaries(
            st.sampled_from(["a", "b", "sub/c", "d.safetensors"]), st.binary(max_size=40), min_size=1, max_size=4
        ),
        st.data(),
    )
    def test_it_finds_what_changed_and_nothing_else(self, tmp_path_factory, contents, data):
        folder = tmp_path_factory.mktemp("weights")
        for name, content in contents.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        records = {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        }
        recorded = weight_manifest.write_manifest(str(folder), records, source="s", repo="r")
        assert weight_manifest.read_manifest(str(folder))["files"] == recorded
        assert weight_manifest.compare(str(folder), recorded, full=False) == ({}, {})
        changed = set()
        for name in contents:
            what = data.draw(st.sampled_from(["nothing", "gone", "longer", "flipped"]))
            path = folder / name
            if what == "gone":
                path.unlink()
            elif what == "longer":
                path.write_bytes(contents[name] + b"x")
            elif what == "flipped" and contents[name]:
                path.write_bytes(bytes([contents[name][0] ^ 1]) + contents[name][1:])
                os.utime(path, ns=(0, recorded[name]["mtime_ns"]))
            else:
                continue
            changed.add((name, what))
        seen, _hashed = weight_manifest.compare(str(folder), recorded, full=False)
        assert set(seen) == {name for name, what in changed if what != "flipped"}
        seen, _hashed = weight_manifest.compare(str(folder), recorded, full=True)
        assert set(seen) == {name for name, _what in changed}

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
        with pytest.raises(FleetError, match=': "%s/a" is no path of a file there' % below):
            weight_manifest.read_manifest(str(folder))

    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"files": {"../payload": RECORD}}, '"../payload" is no path of a file there'),
            ({"files": {"/etc/cron.d/payload": RECORD}}, '"/etc/cron.d/payload" is no path of a file there'),
            ({"files": {"a/../../payload": RECORD}}, '"a/../../payload" is no path of a file there'),
            ({"files": {"a\0b": RECORD}}, r'"a\u0000b" is no path of a file there'),
            ({"files": {"": RECORD}}, '"" is no path of a file there'),
            ({"files": {weight_manifest.MANIFEST: RECORD}},
             '".inference-fleet-manifest.json" is no path of a file there'),
            ({"files": {weight_manifest.INNER_STAGING + "/a": RECORD}},
             '".inference-fleet-new/a" is no path of a file there'),
            ({"installing": ["a", "../payload"]}, '"../payload" is no path of a file there'),
            ({"installing": [None]}, "null is no path of a file there"),
            ({"installing": "../payload"}, "installing is no list"),
            ({"files": {"a": None}}, "it records no size of a"),
            ({"files": {"a": {**RECORD, "size": "1"}}}, "it records no size of a"),
            ({"files": {"a": {**RECORD, "size": True}}}, "it records no size of a"),
            ({"files": {"a": {**RECORD, "size": -1}}}, "it records no size of a"),
            ({"files": {"a": {**RECORD, "sha256": None}}}, "it records no sha256 of a"),
            ({"files": {"a": {**RECORD, "sha256": "A" * 64}}}, "it records no sha256 of a"),
            ({"files": {"a": {"size": 1, "sha256": "a" * 64}}}, "it records no time of a"),
            ({"files": {"a": {**RECORD, "written_ns": "now"}}}, "it records no time of a"),
            ({"files": {"a": {**RECORD, "at": 7}}}, "it records no text as oid or at of a"),
            ({"revision": ["main"]}, "of source, repo, revision, commit, at not all are strings"),
        ],
    )  # fmt: skip
    def test_what_somebody_else_wrote_into_one(self, tmp_path, changes, what):
        manifest = {"schema": 1, "source": "path", "repo": "a/b", "revision": None, "files": {"a": RECORD}}
        (tmp_path / weight_manifest.MANIFEST).write_text(json.dumps(manifest))
        assert weight_manifest.read_manifest(str(tmp_path))["files"] == {"a": RECORD}
        (tmp_path / weight_manifest.MANIFEST).write_text(json.dumps({**manifest, **changes}))
        for read in (weight_manifest.read_manifest, lambda folder: weight_manifest.own_manifest(folder, "a/b", "path")):
            assert what in refused(read, str(tmp_path))

    def test_a_swap_keeps_config_json_away_until_the_end(self, tmp_path, monkeypatch):
        staging, destination = tmp_path / "new", tmp_path / "model"
        for folder, text in ((staging, "new"), (destination, "old")):
            folder.mkdir()
            for name in ("config.json", "a", "b"):
                (folder / name).write_text(text)
        (destination / "c").write_text("old")
        seen = []
        real = os.rename

        def rename(source, target):
            if os.path.realpath(os.path.dirname(target)) == str(destination):
                seen.append((os.path.basename(target), (destination / "config.json").exists()))
            real(source, target)

        monkeypatch.setattr(os, "rename", rename)
        records = {name: {"size": 3, "sha256": "x"} for name in ("config.json", "a", "b")}
        weight_staging.install(str(staging), str(destination), sorted(records), ["c"], records, source="s")
        moved = [item for item in seen if item[0] != weight_manifest.MANIFEST]
        assert moved == [("a", False), ("b", False), ("config.json", False)]
        assert {path.name: path.read_text() for path in destination.iterdir() if path.name in records} == {
            "config.json": "new", "a": "new", "b": "new"
        }  # fmt: skip
        assert not (destination / "c").exists()


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
