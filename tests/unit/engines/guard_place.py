# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder in which tests run the guard as a service manager does: from the archive, without Ansible."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile

from ansible_collections.inference.fleet.plugins.module_utils.node.files import readable_json
from ansible_collections.inference.fleet.plugins.module_utils.node.paths import PATH
from ansible_collections.inference.fleet.plugins.module_utils.supervise import archive
from ansible_collections.inference.fleet.tests.unit.engines import small_node


def altered(module, old, new):
    """The archive with another text in one of its modules."""
    changed, found = io.BytesIO(), zipfile.ZipFile(io.BytesIO(archive.content()))
    with zipfile.ZipFile(changed, "w") as made:
        for name in found.namelist():
            text = found.read(name).decode("utf-8")
            assert not name.endswith(module) or old in text
            made.writestr(name, text.replace(old, new) if name.endswith(module) else text)
    return changed.getvalue()


class Place:
    """A root with the guard, where entries are run by it as a service manager would."""

    def __init__(self, folder):
        self.node = small_node.SmallNode(folder / "r")
        self.folder = folder
        self.guard = folder / "guard.py"
        self.guard.write_bytes(archive.content())

    altered = staticmethod(altered)

    def write(self, entry, **secrets):
        os.makedirs(entry["directories"]["work"], exist_ok=True)
        (self.folder / (entry["name"] + ".json")).write_text(json.dumps(entry), encoding="utf-8")
        (self.folder / "secrets.json").write_text(json.dumps(secrets), encoding="utf-8")

    def command(self, entry, *options):
        return [
            *(sys.executable, "-I", str(self.guard), "run", str(self.folder / (entry["name"] + ".json"))),
            *("--state", self.node.paths.server_state(entry["name"])),
            *("--secrets", str(self.folder / "secrets.json"), "--root", self.node.root, *options),
        ]

    def run(self, entry, *options, **kwargs):
        self.write(entry)
        return subprocess.run(self.command(entry, *options), capture_output=True, text=True, timeout=300, check=False,
                              **kwargs)  # fmt: skip

    def start(self, entry, *options):
        self.write(entry)
        return subprocess.Popen(self.command(entry, *options), start_new_session=True)

    def state(self, entry):
        return readable_json(self.node.paths.server_state(entry["name"])) or {}

    def ended(self, entry, **environment):
        """What a unit's ExecStop does; the record after it."""
        argv = [sys.executable, "-I", str(self.guard), "end", str(self.folder / (entry["name"] + ".json")), "--root",
                self.node.root, "--state", self.node.paths.server_state(entry["name"])]  # fmt: skip
        subprocess.run(argv, env={"PATH": PATH, **environment}, timeout=300, check=True)
        return self.state(entry)

    def running(self, entry):
        """The engine of the entry, started and recorded."""
        process = self.start(entry, "--burst", "2", "--restart-delay", "0.05")
        expected = {"phase": "running", "pid": process.pid}
        small_node.wait_until(lambda: expected.items() <= self.state(entry).items())
        return process
