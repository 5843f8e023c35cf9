# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No two modules of the collection import each other, however far around, at their top or in a function; and folders
import only folders of lower floors."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import pathlib

import pytest

PLUGINS = pathlib.Path(__file__).parents[2] / "plugins"
PACKAGE = "ansible_collections.inference.fleet.plugins"


@pytest.fixture(scope="module")
def graph():
    """{module: [modules of the collection that it imports]}."""
    files = {}
    for path in PLUGINS.rglob("*.py"):
        parts = path.relative_to(PLUGINS).with_suffix("").parts
        files[".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path.read_text()
    found = {}
    for name, source in files.items():
        names = set()
        package = name if any(other.startswith(name + ".") for other in files) else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                inner = ["%s.%s" % (module, alias.name) for alias in node.names]
                names.update(one if one in files else module for one in inner)
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
        found[name] = sorted(names & set(files))
    assert len(found) > 100
    return found


def test_plugins_have_no_import_cycle(graph):
    graphlib.TopologicalSorter(graph).prepare()  # or it raises CycleError, which names them


# The floors of the house, lowest first. A folder imports only folders of lower floors, at the top of a module or in a
# function; within a folder, its subfolders are free. One that is new has to be given its floor here.
FLOORS = (
    ("fleet_node/model", "fleet_node/discover", "fleet_node/__main__", "plugin_utils/seen_files"),
    ("fleet_node/errors",),
    ("fleet_node/host", "plugin_utils/actions", "plugin_utils/models"),
    ("fleet_node/program_check", "plugin_utils/cache_folder"),
    ("fleet_node/program",),
    ("fleet_node/containers", "fleet_node/engines", "fleet_node/weights", "plugin_utils/base"),
    ("fleet_node/launchers", "fleet_node/shared_services", "fleet_node/supervise", "plugin_utils/engines"),
    ("fleet_node/platforms",),
    ("fleet_node/services", "plugin_utils/platforms"),
    ("fleet_node/servers",),
    ("fleet_node/clean", "fleet_node/verify"),
    ("fleet_node/measure", "plugin_utils/recipe", "plugin_utils/reporting"),
    ("fleet_node/doctor",),
    ("fleet_node/operations",),
    ("fleet_node/called", "fleet_node/cli"),
    ("modules", "plugin_utils/measure"),
    ("plugin_utils/planning",),
    ("plugin_utils/operations",),
    ("action", "callback", "filter", "lookup", "doc_fragments"),
)  # fmt: skip
FLOOR = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}


def folder_of(name):
    """The folder of a module's dotted name that has a floor; a module beside such folders is one of its own."""
    parts = name[len(PACKAGE) + 1 :].replace("module_utils.fleet_node", "fleet_node").split(".")
    return "/".join(parts[:2]) if parts[0] in ("fleet_node", "plugin_utils") else parts[0]


def test_folders_import_lower_floors_only(graph):
    folders = {folder_of(name) for name in graph if name != PACKAGE}
    assert folders - set(FLOOR) <= {"fleet_node", "plugin_utils"}
    pairs = [(name, other) for name, others in graph.items() for other in others if folder_of(name) != folder_of(other)]
    assert [pair for pair in pairs if FLOOR[folder_of(pair[0])] <= FLOOR[folder_of(pair[1])]] == []
