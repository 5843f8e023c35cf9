# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repositories of the simulated hub: bytes made from a seed, so that big files need no disk."""

from __future__ import annotations

import functools
import hashlib
import json
import random

# A prime, so that no offset that somebody could get wrong is a multiple of it.
PERIOD = 1048583
HASH_BLOCK = 8 << 20
# What the real hubs keep outside git.
LFS_SUFFIXES = (".safetensors", ".bin", ".tiktoken")
LFS_FROM = 10 << 20


@functools.lru_cache(maxsize=64)
def _period(seed):
    """Two periods of the bytes of `seed`, so that any slice up to PERIOD long is one piece."""
    return memoryview(random.Random(seed).randbytes(PERIOD) * 2)


class Content:
    """A file's bytes: `head`, then `tail` bytes made from `seed`."""

    def __init__(self, head=b"", tail=0, seed=0):
        self.head = head
        self.tail = tail
        self.seed = seed

    @property
    def size(self):
        return len(self.head) + self.tail

    def read(self, start, length):
        """Some bytes from `start` on, at least one and at most `length`, as a buffer; none at the end."""
        if start < len(self.head):
            return self.head[start : start + length]
        start -= len(self.head)
        at = start % PERIOD
        return _period(self.seed)[at : at + max(0, min(length, self.tail - start, PERIOD))]

    def blocks(self, start=0, length=HASH_BLOCK):
        """The bytes from `start` to the end, in pieces of at most `length`."""
        while start < self.size:
            piece = self.read(start, length)
            yield piece
            start += len(piece)

    def bytes(self):
        return b"".join(bytes(piece) for piece in self.blocks())

    @functools.cached_property
    def sha256(self):
        return _digest(hashlib.sha256(), self)

    @functools.cached_property
    def git_sha1(self):
        return _digest(hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False), self)


def _digest(digest, content):
    for piece in content.blocks():
        digest.update(piece)
    return digest.hexdigest()


def is_lfs(path, content):
    """Whether a hub keeps this file outside git, and so serves it from its CDN."""
    return path.endswith(LFS_SUFFIXES) or content.size >= LFS_FROM


class Repository:
    """A model's repository: commits {sha: {path: Content}} and refs {branch or tag: sha}.

    access: "public"; "gated": anybody sees the listing, files want a token that is in `tokens`; "private": everything
    wants one.
    """

    def __init__(self, name, files, access="public", tokens=()):
        self.name = name
        self.commits = {}
        self.refs = {}
        self.access = access
        self.tokens = set(tokens)
        self.changed_in = {}  # {(commit, path): commit that last changed it}
        self.dates = {}  # {commit: seconds since the epoch}
        self.commit(files)

    def commit(self, files, refs=("main", "master")):
        """Make {path: Content or bytes} the state of `refs`; returns the commit."""
        files = {
            path: content if isinstance(content, Content) else Content(content)
            for path, content in sorted(files.items())
        }
        parent = self.refs.get(refs[0])
        state = json.dumps([self.name, parent, {path: content.sha256 for path, content in files.items()}])
        commit = hashlib.sha1(state.encode(), usedforsecurity=False).hexdigest()
        before = self.commits.get(parent, {})
        for path, content in files.items():
            same = path in before and before[path].sha256 == content.sha256
            self.changed_in[commit, path] = self.changed_in[parent, path] if same else commit
        self.commits[commit] = files
        self.dates[commit] = 1756229103 + 3600 * len(self.commits)
        for ref in refs:
            self.refs[ref] = commit
        return commit

    @property
    def head(self):
        return self.refs["main"]

    @property
    def files(self):
        """{path: Content} at the head."""
        return self.commits[self.head]

    def resolve(self, revision):
        """The commit that a branch, a tag or a commit names; None for none."""
        commit = self.refs.get(revision, revision)
        return commit if commit in self.commits else None


def safetensors(tensor, size, seed):
    """A shard of `size` bytes with one tensor, its header included."""
    length = 160
    header = json.dumps({tensor: {"dtype": "U8", "shape": [size - 8 - length], "data_offsets": [0, size - 8 - length]}})
    return Content(length.to_bytes(8, "little") + header.encode().ljust(length), size - 8 - length, seed)


def gpt_oss(name="openai/gpt-oss-120b", shard_bytes=65_536, access="public", tokens=(), **made):
    """A repository laid out as openai/gpt-oss-120b: 26 files in its root, and original/ and metal/ with the same again.

    Its 15 shards are numbered 00000 to 00014 "of-00014", as the real ones are. shard_bytes: of every other shard; the
    ones between are a little smaller. made: further arguments of gpt_oss_files().
    """
    return Repository(name, gpt_oss_files(shard_bytes, **made), access, tokens)


def gpt_oss_files(shard_bytes=65_536, shards=15, model_format="mxfp4", seed=1, **changes):
    """{path: Content} of such a repository."""
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "vocab_size": 201088,
        "num_hidden_layers": 36, "num_local_experts": 128, **changes,
    }  # fmt: skip
    if model_format == "mxfp4":
        config["quantization_config"] = {"quant_method": "mxfp4"}
    files = {
        ".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
        "LICENSE": Content(tail=11357, seed=seed),
        "README.md": b"# A made-up repository\n",
        "USAGE_POLICY": b"None.\n",
        "chat_template.jinja": b"{{ messages }}\n",
        "config.json": _json(config),
        "generation_config.json": _json({"eos_token_id": [200002, 199999, 200012]}),
        "special_tokens_map.json": _json({"eos_token": "<|return|>"}),
        "tokenizer.json": _json({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}),
        "tokenizer_config.json": _json({"model_max_length": 131072}),
    }
    weight_map, total = {}, 0
    for index in range(shards):
        shard = "model-%05d-of-%05d.safetensors" % (index, shards - 1)
        tensor = "model.layers.%d.weight" % index
        size = shard_bytes - (index % 2) * (shard_bytes // 9)
        files[shard] = safetensors(tensor, size, seed * 1000 + index)
        weight_map[tensor] = shard
        total += size - 168
    files["model.safetensors.index.json"] = _json({"metadata": {"total_size": total}, "weight_map": weight_map})
    weight_map = {}
    for index in range(1, 8):
        shard = "model--%05d-of-00007.safetensors" % index
        tensor = "block.%d.weight" % index
        files["original/" + shard] = safetensors(tensor, 2 * shard_bytes, seed * 1000 + 100 + index)
        weight_map[tensor] = shard
    files["original/model.safetensors.index.json"] = _json({"weight_map": weight_map})
    files["original/config.json"] = _json(config)
    files["original/dtypes.json"] = _json({})
    files["metal/model.bin"] = Content(b"GPT-OSS v1.0\0\0\0\0", 14 * shard_bytes, seed * 1000 + 200)
    return files


def _json(value):
    return json.dumps(value, indent=2).encode() + b"\n"
