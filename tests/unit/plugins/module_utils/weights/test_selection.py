# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns, listings, manifests, lists of checksums and progress."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import (
    known,
    manifest,
    selection,
    transfer,
)
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


WHOLE = files("config.json", "tokenizer.json", "model.safetensors")


def refused(call, *arguments):
    with pytest.raises(FleetError) as error:
        call(*arguments)
    return error.value.message


@given(st.sets(NAMES, min_size=1, max_size=6), PATTERNS, PATTERNS)
def test_patterns_mean_what_they_mean_to_the_hubs_client(names, include, exclude):
    wanted = replace(WANTED, include=tuple(include), exclude=tuple(exclude))
    expected = set(filter_repo_objects(names, allow_patterns=include or None, ignore_patterns=exclude))
    assume(all(any(selection.matches(name, pattern) for name in names) for pattern in [*include, *exclude]))
    if expected:
        assert set(selection.select(wanted, files(*names))) == expected
    else:
        assert "they leave no file" in refused(selection.select, wanted, files(*names))


@pytest.mark.parametrize(
    ("listing", "text"),
    [
        *(({path: SIZE}, json.dumps(path)) for path in ("../a", None)),
        *(({"a": {**SIZE, "size": size}}, "a") for size in (None, -1, "7")),
        ({}, "no file"),
        (WHOLE, "config.json"),  # has no checksums
        (files("config.json"), "model.safetensors, tokenizer.json"),
    ],
)
def test_listings_that_cannot_be_trusted(listing, text):
    assert text in refused(selection.choose, WANTED, Listing("c", "c", listing))


def test_listings_that_can():
    summed = {path: {**SIZE, "oid": "0" * 40} for path in WHOLE}
    ours = files(manifest.MANIFEST, manifest.INNER_STAGING + "/a")  # which the patterns select, too
    assert selection.choose(WANTED, Listing("c", "c", {**summed, **ours}))[1] == summed
    draft = files("config.json", "pytorch_model.bin")
    selection.check_complete(replace(WANTED, draft=True), draft, draft)
    refused(selection.check_complete, WANTED, {}, {}, {"weight_map": {}})


LISTED_120B = {
    path: {"size": size, "sha256": sha256 if path.endswith("safetensors") else None, "oid": "0" * 40}
    for path, (size, sha256) in known.GPT_OSS_120B.files.items()
}
WANTED_120B = replace(WANTED, repo="openai/gpt-oss-120b", exclude=("original/*", "metal/*"))
FIRST = "model-00000-of-00014.safetensors"


def listing_120b(changes):
    found = {path: one for path, one in {**LISTED_120B, "metal/model.bin": SIZE, **changes}.items() if one is not None}
    return Listing(known.GPT_OSS_120B.commit, "x", found)


def test_the_published_files():
    found = known.GPT_OSS_120B.files
    assert (len(found), sum(size for size, _sha256 in found.values())) == (26, 65_276_859_410)
    assert default_revision("huggingface", "openai/gpt-oss-120b") == known.GPT_OSS_120B.commit
    assert default_revision("huggingface", "openai/gpt-oss-20b") == "main"
    assert default_revision("modelscope", "unsloth/gpt-oss-120b-BF16") == "master"


@pytest.mark.parametrize("lacking", [(), ("sha256", "oid")])
def test_known_checksums_complete_a_listing(lacking):
    listing = listing_120b({path: {**one, **dict.fromkeys(lacking)} for path, one in LISTED_120B.items()})
    kept = selection.choose(replace(WANTED_120B, revision=known.GPT_OSS_120B.commit), listing)[1]
    assert {path: (record["size"], record["sha256"]) for path, record in kept.items()} == known.GPT_OSS_120B.files


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"config.json": {**SIZE, "size": 2088}}, "config.json has 2088 bytes"),
        ({"malware.py": SIZE}, "malware.py is not part of it"),
        ({FIRST: {"size": 4625017896, "sha256": "a" * 64, "oid": None}}, "a" * 64),
        ({"LICENSE": None}, "LICENSE is missing"),
    ],
)
def test_other_files_of_a_known_commit(changes, wrong):
    assert wrong in refused(selection.check_known, WANTED_120B, listing_120b(changes))


SUM = "a" * 64


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SUM + "  a\n", {"a": SUM}),
        ("# by hand\n\n%s *./sub/a b\r\n" % SUM.upper(), {"sub/a b": SUM}),
        (SUM[1:] + "  a\n", "line 1"),
        (SUM + "  a\n" + SUM + "  /etc/passwd\n", "line 2"),
        (SUM + "  ../a\n", "line 1"),
        ("SHA256 (a) = " + SUM, "line 1"),
        (SUM + "  a\n" + "b" * 64 + "  a\n", "line 2"),
        ("\n", "no file"),
    ],
)
def test_lists_of_checksums(text, found):
    if isinstance(found, dict):
        assert selection.parse_sums(text, "SUMS") == found
    else:
        assert found in refused(selection.parse_sums, text, "SUMS")


RECORD = {"size": 1, "sha256": SUM, "mtime_ns": 1}
MANIFEST = {"schema": 1, "source": "path", "repo": "a/b", "revision": None, "files": {"a": RECORD}}


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / manifest.MANIFEST).write_text(text if isinstance(text, str) else json.dumps(text))
        return str(tmp_path)

    return write


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "files": {}}', '{"schema": 1, "files": []}'])
def test_what_is_no_manifest(written, text):
    assert manifest.read_manifest(written(MANIFEST))["files"] == {"a": RECORD}
    assert manifest.read_manifest(written(text)) is None


@pytest.mark.parametrize(
    "changes",
    [
        *({"files": {path: RECORD}} for path in ("../payload", manifest.INNER_STAGING + "/a")),
        *({"files": {"a": {**RECORD, "size": size}}} for size in ("1", True, -1)),
        {"files": {"a": None}},
        {"files": {"a": {**RECORD, "sha256": "A" * 64}}},
        {"files": {"a": {"size": 1, "sha256": SUM}}},
        {"files": {"a": {**RECORD, "written_ns": "now"}}},
        {"files": {"a": {**RECORD, "at": 7}}},
        {"revision": ["main"]},
    ],
)
def test_forged_manifests(written, changes):
    with pytest.raises(FleetError) as error:
        manifest.own_manifest(written({**MANIFEST, **changes}), "a/b", "path")
    assert error.value.code == "weights.manifest-unreadable"


@pytest.mark.parametrize("below", ["out", "deep/out"])
def test_links_in_a_manifest_that_lead_out(written, tmp_path, tmp_path_factory, below):
    """By which a file elsewhere would be replaced or removed."""
    (tmp_path / "deep").mkdir()
    (tmp_path / below).symlink_to(tmp_path_factory.mktemp("elsewhere"))
    (tmp_path / "inner").symlink_to(tmp_path / "deep")
    inner = {**MANIFEST, "files": {"inner/a": RECORD}}
    assert manifest.read_manifest(written(inner))["files"] == inner["files"]
    folder = written({**MANIFEST, "files": {below + "/a": RECORD}})
    assert "%s/a" % below in refused(manifest.read_manifest, folder)


def test_progress_has_the_rate_and_the_time_that_is_left(monkeypatch):
    clock, done = [100.0], [0]
    monkeypatch.setattr(transfer.time, "monotonic", lambda: clock[0])
    progress = transfer.Progress()
    found = {"phase": "listing", "percent": 0.0, "bytes_done": 0, "bytes_total": 0, "file": None, "waiting": None}
    assert progress.snapshot() == {**found, "rate_bytes_s": None, "eta_s": None}
    progress.begin("downloading", 1000, lambda: done[0])
    progress.snapshot()
    clock[0], done[0] = 101.0, 123
    found.update(phase="downloading", percent=12.3, bytes_done=123, bytes_total=1000)
    assert progress.snapshot() == {**found, "rate_bytes_s": 123, "eta_s": 8}
    clock[0] = 130.0  # a silence that is longer than the span of the rate
    assert progress.snapshot()["rate_bytes_s"] is None
    clock[0], done[0] = 131.0, 123
    assert (progress.snapshot()["rate_bytes_s"], progress.snapshot()["eta_s"]) == (0, None)
    done[0] = 5000
    assert progress.snapshot()["bytes_done"] == 1000
