# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Python starts a node's servers: the same one whoever runs Ansible, and none that goes with a clone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import bytecode
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python as host_python
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

WORKS = "3 11 0"


class Node:
    """Makes interpreters that answer the probe, in two folders of the system's and anywhere else."""

    def __init__(self, folder):
        self.folder = folder
        self.paths = NodePaths(str(folder / "r"))

    def python(self, path, answer=WORKS, mode=0o755):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\necho %s\n" % answer)
        file.chmod(mode)
        return str(file)

    def chosen(self):
        return os.path.relpath(host_python.choose(self.paths), self.folder)


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(host_python, "DIRECTORIES", (str(tmp_path / "usr"), str(tmp_path / "local")))
    monkeypatch.setattr(host_python, "base_executable", lambda: str(tmp_path / "base" / "python3"))
    return Node(tmp_path)


@pytest.mark.parametrize(("there", "chosen"), [
    ({"usr/python3": WORKS, "local/python3": WORKS, "base/python3": WORKS}, "usr/python3"),
    ({"usr/python3": "3 8 0", "local/python3": WORKS}, "local/python3"),
    ({"usr/python3": "3 8 0", "usr/python3.9": "3 9 0", "usr/python3.13": "3 13 0"}, "usr/python3.13"),
    ({"usr/python3": "3 8 0", "usr/python3-config": WORKS, "usr/python3.11": "3 11 1", "base/python3": WORKS},
     "base/python3"),
    ({"usr/python3": "not a python", "base/python3": WORKS}, "base/python3"),
    ({"base/python3": "3 11 1", "r/var/lib/inference-fleet/toolkit/bin/python": WORKS},
     "r/var/lib/inference-fleet/toolkit/bin/python"),
])  # fmt: skip
def test_the_systems_own_comes_first_and_none_of_a_virtual_environment(node, there, chosen):
    for path, answer in there.items():
        node.python(path, answer)
    assert node.chosen() == chosen


@pytest.mark.parametrize(("recorded", "chosen"), [
    ({"path": "opt/bin/python3"}, "opt/bin/python3"),  # kept, though the system has one by now
    ({"path": "opt/bin/python3", "answer": "3 8 0"}, "usr/python3"),
    ({"path": "opt/bin/python3", "mode": 0o644}, "usr/python3"),
    ({"path": "env/bin/python3"}, "usr/python3"),  # a shim in a virtual environment
    (None, "usr/python3"),
])  # fmt: skip
def test_a_choice_is_kept_while_it_works(node, recorded, chosen):
    node.python("usr/python3")
    if recorded:
        node.python(**recorded)
    (node.folder / "env").mkdir(exist_ok=True)
    (node.folder / "env" / "pyvenv.cfg").touch()
    link = host_python.link(node.paths)
    os.makedirs(os.path.dirname(link))
    os.symlink(node.folder / (recorded["path"] if recorded else "opt/bin/python3"), link)
    assert node.chosen() == chosen


def test_where_none_is_fit_it_says_why_of_each(node, monkeypatch):
    usr, local = node.python("usr/python3", "3 8 0"), node.python("local/python3", "3 11 1")
    base = node.python("base/python3")
    monkeypatch.setattr(host_python, "can_execute", lambda user, python: False)
    caught = error(host_python.choose, node.paths, ["fleet"])
    assert caught.code == "node.python-missing"
    assert caught.values[2] == (
        "%s is Python 3.8; %s is in a virtual environment; %s may not be executed by the user 'fleet'"
        % (usr, local, base)
    )


def test_what_an_environment_was_made_from(tmp_path):
    """Also one that was made with the Python of another one, as this is."""
    code = (
        "from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python as p; "
        "print(p.base_executable())"
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([tmp_path / "bin" / "python", "-c", code], env=environment, capture_output=True, check=True)
    found = done.stdout.decode().strip()
    assert found == host_python.base_executable()
    assert not found.startswith((str(tmp_path), sys.prefix + "/"))


# ---- what is compiled before it is imported


@pytest.mark.parametrize(("text", "found"), [
    ("import one, two.three as four\n", {"one", "two.three"}),
    ("from one import two as three, four\n", {"one", "one.two", "one.four"}),
    ("from one import (\n    two,\n    three,\n)\n", {"one", "one.two", "one.three"}),
    ("from one.two import *\n", {"one.two"}),
    ("from . import two\n", {"a.b", "a.b.two"}),
    ("from ..one import two\n", {"a.one", "a.one.two"}),
    ("def function():\n    import one\n        import two\n", {"one"}),
    ("if TYPE_CHECKING:\n    import one\n\nimport two\n", {"two"}),
    ("text = 'import one'\n", set()),
])  # fmt: skip
def test_imports(text, found):
    assert bytecode.imports(text, "a.b") == found


def test_imported_modules_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(bytecode, "FOLDERS", [str(tmp_path)])
    (tmp_path / "engine").mkdir()
    sources = {"engine/__init__": "", "engine/cli": "from .core import run\nimport broken, absent\n",
               "engine/core": "", "engine/other": "", "broken": "%s = 1\n"}  # fmt: skip
    for name, text in sources.items():
        (tmp_path / (name + ".py")).write_text(text)
    bytecode.main(["engine.cli"])
    assert sorted(path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")) == ["__init__", "cli", "core"]
