# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes plugins/module_utils/platforms/shipped.py, an import of each platform of that folder, and beside it
shipped_operations.py, an import of each operation of module_utils/operations and of each platform's and engine's own;
and engines/shipped.py, an import of each engine of that folder.

    python3 tools/platforms.py

Ansible ships to a node what a module imports by name, so they cannot be looked up there.
"""

from __future__ import annotations

import ast
import pathlib

NODES = pathlib.Path(__file__).resolve().parent.parent / "plugins" / "module_utils"
FOLDER, ENGINES = NODES / "platforms", NODES / "engines"
PACKAGE = "ansible_collections.inference.fleet.plugins.module_utils.platforms"
WIDTH = 120  # of a line, as ruff has it
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
    return {name: module for name, (path, module) in sorted(files.items()) if "Platform" in _defined(path)}


def engines(folder=ENGINES):
    """[module] of the NAME.py in the folder that have an object ENGINE."""
    return sorted(path.stem for path in folder.glob("*.py") if "ENGINE" in _defined(path))


def _defined(path):
    """Names of the classes and objects that a file defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def text(found):
    """The text of shipped.py for {name: module}."""
    lines = ["from %s.%s import Platform as %s\n" % (PACKAGE, module, name.title()) for name, module in found.items()]
    entries = ", ".join('"%s": %s' % (name, name.title()) for name in found)
    return HEAD + "".join(lines) + "\nPLATFORM_CLASSES = {%s}\n" % entries


ENGINES_TEXT = """# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
\"\"\"Written by tools/platforms.py: every engine of this folder, so that Ansible ships it to nodes.\"\"\"

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.engines import %(names)s

ENGINES = {one.ENGINE.name: one.ENGINE for one in (%(names)s)}
"""


def engines_text(found):
    """The text of engines/shipped.py for [module]."""
    return ENGINES_TEXT % {"names": ", ".join(found)}


OPERATIONS_HEAD = """# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
\"\"\"Written by tools/platforms.py: every operation, shipped to nodes and imported there when it is used.\"\"\"

from __future__ import annotations

# Arguments of operations that say no_log.
SECRETS = {
%s}


def operation_of(name):
    \"\"\"The module of what `name` does, with ARGUMENTS and run(); None where there is none.\"\"\"
"""


def operations(folder=NODES):
    """{name: package} of all files NAME.py in operations, platforms/X/operations and engines/X/operations."""
    found = {}
    for pattern in ("operations/*.py", "platforms/*/operations/*.py", "engines/*/operations/*.py"):
        for path in folder.glob(pattern):
            if path.stem != "__init__":
                found[path.stem] = ".".join(path.relative_to(folder).parts[:-1])
    return dict(sorted(found.items()))


def secrets(folder, found):
    """{name: [its arguments that say no_log]} of {name: package}."""
    hidden = {}
    for name, place in found.items():
        tree = ast.parse(folder.joinpath(*place.split("."), name + ".py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for key, value in zip(node.keys, node.values) if isinstance(node, ast.Dict) else ():
                if isinstance(value, ast.Dict) and "no_log" in [getattr(one, "value", None) for one in value.keys]:
                    hidden.setdefault(name, []).append(key.value)
    return hidden


def operations_text(found, folder=NODES):
    """The text of shipped_operations.py for {name: package}."""
    items = ['    "%s": (%s,),\n' % (name, ", ".join('"%s"' % one for one in names))
             for name, names in secrets(folder, found).items()]  # fmt: skip
    lines = []
    for name, place in found.items():
        line = "        from %s.%s import %s" % (PACKAGE.rpartition(".")[0], place, name)
        if len(line) > WIDTH:
            line = line.replace("import " + name, "import (\n            %s,\n        )" % name)
        lines.append('    if name == "%s":\n%s\n\n        return %s\n' % (name, line, name))
    return OPERATIONS_HEAD % "".join(items) + "".join(lines) + "    return None\n"


if __name__ == "__main__":
    (FOLDER / "shipped_operations.py").write_text(operations_text(operations()), encoding="utf-8")
    (ENGINES / "shipped.py").write_text(engines_text(engines()), encoding="utf-8")
    (FOLDER / "shipped.py").write_text(text(platforms()), encoding="utf-8")
