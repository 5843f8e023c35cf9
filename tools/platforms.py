# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes plugins/module_utils/platforms/shipped.py: an import of each platform of that folder.

    python3 tools/platforms.py

Ansible ships to a node what a module imports by name, so the platforms cannot be looked up there.
"""

from __future__ import annotations

import ast
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "plugins" / "module_utils" / "platforms"
PACKAGE = "ansible_collections.inference.fleet.plugins.module_utils.platforms"
HEAD = """# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
\"\"\"Written by tools/platforms.py: every platform of this folder, so that Ansible ships it to nodes.\"\"\"

from __future__ import annotations

"""


def platforms(folder=FOLDER):
    """Names of the files and packages in the folder that have a class Platform, sorted."""
    files = {path.stem: path for path in folder.glob("*.py")}
    files.update({path.parent.name: path for path in folder.glob("*/__init__.py")})
    return sorted(name for name, path in files.items() if _has_platform(path))


def _has_platform(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.ClassDef) and node.name == "Platform" for node in tree.body)


def text(names):
    """The text of shipped.py for platforms of these names."""
    lines = ["from %s import %s\n" % (PACKAGE, ", ".join(names))]
    if len(lines[0]) > 121:
        lines = ["from %s import (\n" % PACKAGE, *("    %s,\n" % name for name in names), ")\n"]
    entries = ", ".join('"%s": %s.Platform' % (name, name) for name in names)
    return HEAD + "".join(lines) + "\nPLATFORM_CLASSES = {%s}\n" % entries


if __name__ == "__main__":
    (FOLDER / "shipped.py").write_text(text(platforms()), encoding="utf-8")
