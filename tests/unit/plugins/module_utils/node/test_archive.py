# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of the collection's modules."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.node import archive
from ansible_collections.inference.fleet.plugins.module_utils.supervise import archive as guard_archive
from ansible_collections.inference.fleet.plugins.module_utils.weights.hub import jobs


@pytest.mark.parametrize("content", [guard_archive.content, jobs.packed])
def test_what_it_imports_is_in_it(content):
    packed = zipfile.ZipFile(io.BytesIO(content()))
    names = set(packed.namelist())
    for name in names:
        for node in ast.walk(ast.parse(packed.read(name))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module and module.startswith("ansible_collections."):
                for alias in node.names:
                    folder = module.replace(".", "/")
                    inner = "%s/%s" % (folder, alias.name)
                    source = folder + ("/__init__.py" if folder + "/__init__.py" in names else ".py")
                    assert (
                        inner + ".py" in names
                        or inner + "/__init__.py" in names
                        or (source in names and alias.name in packed.read(source).decode())
                    ), (name, module, alias.name)
            assert not (module or "").startswith("ansible.")


def test_the_same_parts_are_the_same_bytes():
    main = "print('x')\n"
    assert archive.packed([archive.__name__], main) == archive.packed([archive.__name__], main)
    assert archive.packed([archive.__name__], main) != archive.packed([archive.__name__], "print('y')\n")


def test_python_runs_it_alone_under_any_name(tmp_path):
    script = tmp_path / "name.py"
    main = "import %s as found, sys\nprint(found.__file__, sys.argv[1:])\n" % archive.__name__
    script.write_bytes(archive.packed([archive.__name__], main))
    done = subprocess.run([sys.executable, "-I", str(script), "a"], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.startswith(str(script)) and done.stdout.endswith(" ['a']\n")
