# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints whose files are known beforehand, so that a hub, a mirror or a proxy that lists others is detected."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A commit of a repository. files: {path: (size, sha256)}, all of them except those in the folders `besides`."""

    source: str
    repo: str
    commit: str
    files: dict
    besides: tuple = ()


def _files(table):
    rows = (line.split() for line in table.strip().splitlines())
    return {name: (int(size), sha256) for name, size, sha256 in rows}


# 65,276,859,410 bytes. There are 15 shards, numbered 00000 to 00014 "of-00014". original/ and metal/ contain two more
# copies of the weights.
GPT_OSS_120B = Known(
    source="huggingface",
    repo="openai/gpt-oss-120b",
    commit="b5c939de8f754692c1647ca79fbf85e8c1e70f8a",
    besides=("original", "metal"),
    files=_files("""
.gitattributes 1570 34448b82c17d60fec9b65b1f093c115ddbaadc04beb1b0140b6bfed2e012a930
LICENSE 11357 58d1e17ffe5109a7ae296caafcadfdbe6a7d176f0bc4ab01e12a689b0499d8bd
README.md 7111 92b0408cf5dce04e4c5e4e5f2be0361da710d3650baefd7d7519badd1c687919
USAGE_POLICY 201 fc48d386a7a7ff8b066f743cfe62df683ab16892450f5bb7357bb4de261cd037
chat_template.jinja 16738 a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146
config.json 2089 933aeb666a3fd851133ddd7686414f369bc564c4185fb5704416550879f10566
generation_config.json 177 f9970ada892d2d1f72e3ed0a6535ccebadd11897318794ca671d8c7014c957da
model-00000-of-00014.safetensors 4625017896 695218884684c611fe08a74751ee443f971e9bd9bc062edba822da3fe45969b7
model-00001-of-00014.safetensors 4115586736 a881aa5f561b26a22b14a8262aa61849ace349ffd73d74769e030ac90a1fcf8a
model-00002-of-00014.safetensors 4625017888 022478dd04398c5bdb545a5be0a6437ecc2eb53d1dbd29edafcfff4b3ddf0a41
model-00003-of-00014.safetensors 4115586752 47aee9e7b9d5bedb215042c01ccededd9bd9c30b0dddea862dc2506b9d6c74de
model-00004-of-00014.safetensors 4625017896 f6c2752acda607b1d5ca52df9e75c1b9b2761e6875ff10c9bd6ddac473c0262e
model-00005-of-00014.safetensors 4115586696 0c8dd401544c31cb93b8459eee7da20ea2a07626a59455d7d92b85257df9b46c
model-00006-of-00014.safetensors 4625017856 28d839f2e027985a8b14e45f2323798862eddb7770ee9800ea6b7c803abee489
model-00007-of-00014.safetensors 4060267176 c8958c5f183c04f6ea959cfd90562b5128124154b2bbf979b8a22b9405b30ed8
model-00008-of-00014.safetensors 4625017896 bf1f2a88868ffc37d520dcf77d26f0e823710b5e682d473ff10f6974fa3b7517
model-00009-of-00014.safetensors 4170906304 f72d34a4004241b45c332b61f8ffa124e9a913bc1ab442b66e717d3e94e741ce
model-00010-of-00014.safetensors 4625017896 f48c867c2cb0a44bfc2f8768cb98e4aec9a350946fceacfebdcad5d32ad4a471
model-00011-of-00014.safetensors 4115586752 a06851b2cfd35f48722f823bc1ab8f7bcb4a878a5b8e975f4d3544f230454eeb
model-00012-of-00014.safetensors 4064660808 3af33667c307e20ae2a7648ea52653de46dd0171601ec5c696e47a2f5d5bf1e4
model-00013-of-00014.safetensors 4625017896 bcbcb74b043e071d1e05471d500d74dcf661175e00878ed302ccdf1801a75aef
model-00014-of-00014.safetensors 4115586736 54b1be1609696c307cc5ca117b1fa54feaddebffa04e9c2db117652a01964230
model.safetensors.index.json 54511 ede2655fdc05008561983b6e0829c600727c28d591e071077377059f03a6c00e
special_tokens_map.json 98 dd5e191d20c12d2fee1da5bae14ca1db0f5f4215300af691f23cdee97120a293
tokenizer.json 27868174 0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3
tokenizer_config.json 4200 9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070
"""),
)
KNOWN = (GPT_OSS_120B,)
WEIGHTS = ".safetensors"
# The stand-ins, archives of this collection. The others by their repositories.
STANDIN = _files("""
chat_template.jinja 3936 d464ff65c86591d8fc004823e0364bb66c31fb9fc2dee9a38ecbe833d2bd8972
config.json 1143 2679765e6da606c8e8590ddcfc573f5b566bf66b39e34d5739644124497c52cd
generation_config.json 150 7201ef620d319351a85ce77e4e137a70694f8d83a5fb707ad04b01837e78514d
model-00000-of-00001.safetensors 52080888 61593dec883d77d918fcd5d46fc64b542fe5e5f7b6e1c670108bcbb7bd366176
model-00001-of-00001.safetensors 51479000 49feb1de7279d83d50114b8859a274210a41737d133409175604c4c47c3f57c9
model.safetensors.index.json 3020 d05dc90e5b1679f1065341c9ad5b6269c317035782d5c45a538ff17866a24ff2
special_tokens_map.json 98 dd5e191d20c12d2fee1da5bae14ca1db0f5f4215300af691f23cdee97120a293
tokenizer.json 10203685 f30eb70bbe745a800828deb3e9750adba89d78739f9fc24351e50b718aa07704
tokenizer_config.json 4200 a14087fb83e7466d14abaa7fd3a745f0787c1c026a4eb525645245dcfdaf440c
""")

OTHER_STANDINS = {"inference-fleet/qwen3-tiny-standin": _files("""
config.json 497 6ed1c1064fd913ca77e03736d46d4027c17cce304fdfcd5d8c9c13121b0f1b98
model.safetensors 638592 d72b58859cd3f1a52b69094a3c07c896378876464ce8315518f1f68fc3523583
tokenizer.json 6374 df5ad3a4ed6fcaa09f76ecdeca6d9992007796eaaa4f64a5bf28cfb3b6218b7c
tokenizer_config.json 359 c988f3408f376e443eb8b10c5153949620bbe46cf72a04861e79d51b62dfaa95
""")}  # fmt: skip


def find(source, repo, commit=None):
    """The Known checkpoint of a repository, at `commit` if that is given; None if nothing is known of it."""
    for known in KNOWN:
        if (known.source, known.repo) == (source, repo) and commit in (None, known.commit):
            return known
    return None


def required(repo, revision, records):
    """{path: (size, sha256)} that files {path: {size}} of any origin must have; {} if they are no known checkpoint.

    A checkpoint is recognised by its revision; without one, by a file with weights of a known name and size, so that a
    checkpoint that was cut into other files is not mistaken for the published checkpoint. Then only weights must be as
    published: users change chat templates.
    """
    for known in KNOWN:
        there = {path: one for path, one in known.files.items() if path in records and known.repo == repo}
        if revision == known.commit:
            return there
        weights = {path: one for path, one in there.items() if path.endswith(WEIGHTS)}
        if not revision and any(records[path]["size"] == one[0] for path, one in weights.items()):
            return weights
    return {}


def differences(files, records):
    """{path: what is wrong} of files {path: (size, sha256)} that are among {path: {size, sha256: hex or None}}."""
    wrong = {}
    for path in sorted(set(files) & set(records)):
        size, sha256 = files[path]
        if size is not None and records[path]["size"] != size:
            wrong[path] = "has %d bytes, required are %d" % (records[path]["size"], size)
        elif records[path].get("sha256") not in (None, sha256):
            wrong[path] = "has sha256 %s, required is %s" % (records[path]["sha256"], sha256)
    return wrong


def corrected(known, files):
    """{path: record} with the size and sha256 of the Known (None: nothing is known) instead of the recorded values."""
    pinned = known.files if known else {}
    return {
        path: {**record, "size": pinned[path][0], "sha256": pinned[path][1]} if path in pinned else record
        for path, record in files.items()
    }
