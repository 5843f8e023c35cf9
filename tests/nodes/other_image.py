# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the archive of an empty image for another architecture: other_image.py NAME:TAG > FILE."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile

layer = bytes(10240)  # an empty archive
config = {
    "architecture": "amd64" if os.uname().machine == "aarch64" else "arm64",
    "os": "linux",
    "config": {"Cmd": ["vllm"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
}
manifest = [{"Config": "config.json", "RepoTags": [sys.argv[1]], "Layers": ["layer.tar"]}]
files = {"layer.tar": layer, "config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    for name, content in files.items():
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
