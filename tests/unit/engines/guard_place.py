# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder in which tests run the guard as a service manager does, without Ansible."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import readable_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import PATH
from ansible_collections.inference.fleet.tests.unit.engines import small_node


def end(process, sign=signal.SIGTERM):
    """Send the signal and wait for the end."""
    process.send_signal(sign)
    process.wait(60)


def altered(folder, *changes):
    """A program below `folder` with other texts in its modules: (module, old, new)."""
    shutil.copytree(program.start(None), folder / "altered")
    for module, old, new in changes:
        path = folder / "altered" / program.ROOT / module
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
    return str(folder / "altered")


class Place:
    """A root with the guard, where entries are run by it as a service manager would."""

    def __init__(self, folder):
        self.node = small_node.SmallNode(folder / "r")
        self.folder = folder
        self.guard = program.start(None)

    def write(self, entry, **secrets):
        os.makedirs(self.node.paths.directories(entry["name"])["work"], exist_ok=True)
        (self.folder / (entry["name"] + ".json")).write_text(json.dumps(entry), encoding="utf-8")
        (self.folder / "secrets.json").write_text(json.dumps(secrets), encoding="utf-8")

    def command(self, entry, *options):
        return [
            *(sys.executable, "-I", self.guard, "run", str(self.folder / (entry["name"] + ".json"))),
            *("--state", self.node.paths.server_state(entry["name"])),
            *("--secrets", str(self.folder / "secrets.json"), "--root", self.node.root, *options),
        ]

    @staticmethod
    def execute(argv, **kwargs):
        return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, **kwargs)

    def run(self, entry, *options):
        self.write(entry)
        return self.execute(self.command(entry, *options))

    def start(self, entry, *options):
        self.write(entry)
        return subprocess.Popen(self.command(entry, *options), start_new_session=True)

    def started(self, entry, phase, *options):
        """start(), and wait for that phase of its record."""
        process = self.start(entry, *options)
        small_node.wait_until(lambda: self.state(entry).get("phase") == phase, what=phase)
        return process

    def state(self, entry):
        return readable_json(self.node.paths.server_state(entry["name"])) or {}

    def ended(self, entry, **environment):
        """What a unit's ExecStop does; the record after it."""
        argv = [sys.executable, "-I", self.guard, "end", str(self.folder / (entry["name"] + ".json")), "--root",
                self.node.root, "--state", self.node.paths.server_state(entry["name"])]  # fmt: skip
        subprocess.run(argv, env={"PATH": PATH, **environment}, timeout=300, check=True)
        return self.state(entry)

    def running(self, entry):
        """The engine of the entry, started and recorded."""
        process = self.start(entry, "--burst", "2", "--restart-delay", "0.05")
        expected = {"phase": "running", "pid": process.pid}
        small_node.wait_until(lambda: expected.items() <= self.state(entry).items())
        return process
