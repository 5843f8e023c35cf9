# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of etcd and NATS laid out as upstream's, made of Debian's packages: not every machine reaches upstream.

make(FOLDER) writes FOLDER/etcd-vVERSION-linux-ARCHITECTURE.tar.gz and the like, and FOLDER/archives.json:
{name: {version, architecture, sha256, file}}.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile

import debian_packages

PROGRAMS = {
    "etcd": {"etcd-server": ("usr/bin/etcd",), "etcd-client": ("usr/bin/etcdctl",)},
    "nats-server": {"nats-server": ("usr/sbin/nats-server",)},
}
VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+)")


def make(folder):
    """All of it, in a folder that does not exist yet."""
    debs = folder / "debs"
    root = debian_packages.unpack(debs, *(package for parts in PROGRAMS.values() for package in parts))
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()
    found = {}
    for name, parts in PROGRAMS.items():
        programs = [root / path for paths in parts.values() for path in paths]
        words = subprocess.run([str(programs[0]), "--version"], check=True, capture_output=True, text=True).stdout
        version = VERSION.search(words).group(1)
        top = "%s-v%s-linux-%s" % (name, version, architecture)
        archive = folder / (top + ".tar.gz")
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for program in programs:
                tar.add(program, "%s/%s" % (top, program.name))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        found[name] = {"version": version, "architecture": architecture, "sha256": digest, "file": archive.name}
    subprocess.run(["rm", "-r", str(debs)], check=True)
    (folder / "archives.json").write_text(json.dumps(found))
