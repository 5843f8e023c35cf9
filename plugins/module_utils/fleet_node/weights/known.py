# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints whose files are known beforehand, so that a hub, a mirror or a proxy that lists others is found out."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import FleetError


class Known(NamedTuple):
    """A commit of a repository. files: {path: (size, sha256)}, all of them but for those in the folders `besides`."""

    source: str
    repo: str
    commit: str
    files: dict
    besides: tuple = ()


def _files(table):
    rows = (line.split() for line in table.strip().splitlines())
    return {name: (int(size), sha256) for name, size, sha256 in rows}


# 65,276,859,410 bytes. The shards are 15, numbered 00000 to 00014 "of-00014". original/ and metal/ hold the same
# weights twice more.
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


def find(source, repo, commit=None):
    """The Known checkpoint of a repository, at `commit` where one is given; None where nothing is known of it."""
    for known in KNOWN:
        if (known.source, known.repo) == (source, repo) and commit in (None, known.commit):
            return known
    return None


def recognised(repo, revision, sizes):
    """The Known checkpoint that files {path: size} of any origin are, None where they are of no known one.

    By the revision; where none is given, by a file with weights that has a known name and its size. So a checkpoint
    that was cut into other files is not taken for the published one.
    """
    for known in KNOWN:
        if known.repo != repo:
            continue
        weights = [path for path in sizes if path.endswith(WEIGHTS)]
        if revision == known.commit or (
            not revision and any(path in known.files and known.files[path][0] == sizes[path] for path in weights)
        ):
            return known
    return None


def differences(known, records):
    """{path: what is wrong} of those known files that are among {path: {size, sha256: hex, or None for not known}}."""
    wrong = {}
    for path in sorted(set(known.files) & set(records)):
        size, sha256 = known.files[path]
        if records[path]["size"] != size:
            wrong[path] = "has %d bytes, known are %d" % (records[path]["size"], size)
        elif records[path].get("sha256") not in (None, sha256):
            wrong[path] = "has sha256 %s, known is %s" % (records[path]["sha256"], sha256)
    return wrong


def published(request, manifest, records):
    """The known.Known that these files {name: {size}} are, by what the request or the manifest says; None for none."""
    sizes = {name: record["size"] for name, record in records.items()}
    return recognised(request.repo, request.revision or (manifest or {}).get("commit"), sizes)


def check(request, folder, expected, records):
    """Raise FleetError where files are not the published ones; returns what to warn of.

    Of what is no weights people change this and that, a chat template, say; so without the revision that is a warning.
    """
    if expected is None:
        return []
    wrong = differences(expected, records)
    bad = sorted(name for name in wrong if _must_be(request, expected, name))
    texts = "; ".join("%s %s" % (name, wrong[name]) for name in bad or sorted(wrong))
    if bad:
        raise FleetError(
            "weights.not-as-published",
            "%s does not hold what %s commit %s is known to have: %s. Bring these files again; if it is another "
            "version, set revision to the name of that.",
            (folder, expected.repo, expected.commit, texts),
            details={"rotted": bad},
        )
    if wrong:
        return [
            "%s does not hold what %s commit %s is known to have: %s. Unless that was changed on purpose, bring these "
            "files again." % (folder, expected.repo, expected.commit, texts)
        ]
    return []


def _must_be(request, published, name):
    return name in published.files and (request.revision == published.commit or name.endswith(WEIGHTS))


def filled(request, published, wanted):
    """The wanted files with the known checksums of those that must have them."""
    if published is None or wanted is None:
        return wanted
    return {
        name: dict(record, sha256=published.files[name][1]) if _must_be(request, published, name) else record
        for name, record in wanted.items()
    }


def corrected(known, files):
    """{path: record} with the size and sha256 of the Known (None: nothing is known) in place of what is recorded."""
    pinned = known.files if known else {}
    return {
        path: {**record, "size": pinned[path][0], "sha256": pinned[path][1]} if path in pinned else record
        for path, record in files.items()
    }
