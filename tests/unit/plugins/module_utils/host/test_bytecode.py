# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""host/bytecode.py: the imports of a module, and what is compiled."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import bytecode


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import one, two.three as four\n", {"one", "two.three"}),
        ("from one import two as three, four\n", {"one", "one.two", "one.four"}),
        ("from one import (\n    two,\n    three,\n)\n", {"one", "one.two", "one.three"}),
        ("from one.two import *\n", {"one.two"}),
        ("from . import two\n", {"a.b", "a.b.two"}),
        ("from ..one import two\n", {"a.one", "a.one.two"}),
        ("def function():\n    import one\n        import two\n", {"one"}),
        ("if TYPE_CHECKING:\n    import one\n\nimport two\n", {"two"}),
        ("text = 'import one'\n", set()),
    ],
)
def test_imports(text, found):
    assert bytecode.imports(text, "a.b") == found


def test_imported_modules_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(bytecode, "FOLDERS", [str(tmp_path)])
    sources = {
        "engine/__init__.py": "",
        "engine/cli.py": "from .core import run\nimport broken, absent\n",
        "engine/core.py": "",
        "engine/other.py": "",
        "broken.py": "%s = 1\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    bytecode.main(["engine.cli"])
    assert sorted(path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")) == ["__init__", "cli", "core"]
