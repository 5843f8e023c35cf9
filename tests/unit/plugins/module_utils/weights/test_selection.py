# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns, listings and manifests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import known, selection
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import (
    Listing,
    Wanted,
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


class TestListings:
    WHOLE = files("config.json", "tokenizer.json", "model.safetensors")

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


RECORD = {"size": 1, "sha256": "a" * 64, "mtime_ns": 1}
