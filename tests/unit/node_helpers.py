# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels and checkpoints that the tests of environments and weights build."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile

from ansible_collections.inference.fleet.tests.nodes import package_indexes


def rot(path, at=-1):
    """Another byte at `at`, with size and times as they were."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def script(path, text):
    """An executable shell script that stands for a tool of a node; its path."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def build_wheel(folder, name, version, requires=()):
    """A wheel in `folder` (pathlib) of a module with its version, and of a command that imports the required ones.
    Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    modules, programs = {module + "/__init__.py": "VERSION = %r\n" % version}, {}
    if requires:
        imports = ["    import " + re.split("[=<>]", one)[0].replace("-", "_") for one in requires]
        modules[module + "/cli.py"] = "\n".join(["def main():", *imports]) + "\n"
        programs = {name: module + ".cli:main"}
    return folder / package_indexes.make_wheel(folder, module, version, modules, requires, programs)


def uv_wheel(folder, version, program):
    """A wheel of uv whose program is this machine's, so that pip need not ask an index for it."""
    with zipfile.ZipFile(build_wheel(folder, "uv", version), "a") as archive:
        script = zipfile.ZipInfo("uv-%s.data/scripts/uv" % version)
        script.external_attr = 0o100755 << 16  # pip asks for a plain file
        archive.writestr(script, '#!/bin/sh\nexec %s "$@"\n' % program)


def build_index(folder, *wheels):
    """A package index (PEP 503) in `folder` of wheels; returns its file:// URL."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        page = folder / wheel.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(exist_ok=True)
        with page.open("a") as stream:
            stream.write('<a href="%s">%s</a>\n' % (wheel.as_uri(), wheel.name))
    return folder.as_uri()


def safetensors(tensors):
    """The bytes of a safetensors file of {name: (dtype, shape, bytes)}."""
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


def build_checkpoint(folder, shards=3, **config):
    """A gpt_oss checkpoint whose shards are numbered as openai numbers them: `shards` files, 00000 of `shards` - 1."""
    folder.mkdir(parents=True)
    whole = {"model_type": "gpt_oss", "hidden_size": 16, "vocab_size": 100, "num_hidden_layers": shards,
             "quantization_config": {"quant_method": "mxfp4"}, **config}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    (folder / "tokenizer.json").write_text("{}")
    weight_map = {}
    for number in range(shards):
        name = "model-%05d-of-%05d.safetensors" % (number, shards - 1)
        tensor = "model.layers.%d.weight" % number
        (folder / name).write_bytes(safetensors({tensor: ("BF16", [50], bytes([number]) * 100)}))
        weight_map[tensor] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def terminal_screen(text):
    """Lines that a terminal shows after `text`, which goes up by lines and erases to the end and nothing else."""
    lines, at, rest = [""], 0, text.replace("\r\n", "\n")
    while rest:
        move = re.match(r"\x1b\[(\d+)A\x1b\[J", rest)
        if move:
            at = max(0, at - int(move[1]))
            lines[at:] = [""]
            rest = rest[move.end() :]
        elif rest[0] == "\n":
            at += 1
            lines[at:] = [""]
            rest = rest[1:]
        else:
            color = re.match(r"\x1b\[[\d;]*m", rest)
            if not color:
                lines[at] += rest[0]
            rest = rest[color.end() if color else 1 :]
    return lines[:-1] if lines[-1] == "" else lines
