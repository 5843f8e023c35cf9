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
    """{name: module} of the NAME.py and NAME/platform.py in the folder that have a class Platform."""
    files = {path.stem: (path, path.stem) for path in folder.glob("*.py")}
    files.update({path.parent.name: (path, path.parent.name + ".platform") for path in folder.glob("*/platform.py")})
    return {name: module for name, (path, module) in sorted(files.items()) if _has_platform(path)}


def _has_platform(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.ClassDef) and node.name == "Platform" for node in tree.body)


def text(found):
    """The text of shipped.py for {name: module}."""
    lines = ["from %s.%s import Platform as %s\n" % (PACKAGE, module, name.title()) for name, module in found.items()]
    entries = ", ".join('"%s": %s' % (name, name.title()) for name in found)
    return HEAD + "".join(lines) + "\nPLATFORM_CLASSES = {%s}\n" % entries


if __name__ == "__main__":
    (FOLDER / "shipped.py").write_text(text(platforms()), encoding="utf-8")
