# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No two modules of the collection import each other, however far around, at their top or in a function."""

from __future__ import annotations

import ast
import pathlib

PLUGINS = pathlib.Path(__file__).parents[2] / "plugins"
PACKAGE = "ansible_collections.inference.fleet.plugins"


def imports(files):
    """{module: [modules of the same tree that it imports]} of {module: source}."""
    found = {}
    for name, source in files.items():
        found[name] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inner = ["%s.%s" % (node.module, alias.name) for alias in node.names]
                found[name].update(one if one in files else node.module for one in inner)
            elif isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names)
    return {name: sorted(one for one in names if one in files) for name, names in found.items()}


def cycle(graph):
    """The modules of one cycle, in order; [] where there is none."""
    done = set()

    def visit(name, trail):
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for other in graph[name]:
            found = visit(other, [*trail, name])
            if found:
                return found
        done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in sorted(graph))), [])


def test_plugins_have_no_import_cycle():
    files = {}
    for path in PLUGINS.rglob("*.py"):
        parts = path.relative_to(PLUGINS).with_suffix("").parts
        name = ".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))
        files[name] = path.read_text(encoding="utf-8")
    assert len(files) > 100
    assert cycle(imports(files)) == []


def test_a_cycle_is_seen():
    files = {"p.a": "from p import b", "p.b": "def f():\n    from p.c import x", "p.c": "import p.a", "p": ""}
    assert cycle(imports(files)) == ["p.a", "p.b", "p.c", "p.a"]
    assert cycle(imports({**files, "p.c": "import os"})) == []
