# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that compiles modules of the environment that runs it, and the modules that they import.

An engine's environment contains three times as many modules as a server loads. Imports are found in the source: at
module level, one level deeper (in functions and after try), and not for type checkers. Modules that this misses are
compiled when they are first imported.
"""

from __future__ import annotations

import contextlib
import os
import py_compile
import re
import sys
import sysconfig
from concurrent.futures import ProcessPoolExecutor

NAMES = r"\(([^)]*)\)|([\w, *]+)"
IMPORT = re.compile(r"^(?: {4})?(?:import ([\w., ]+)|from (\.*)([\w.]*) import (?:%s))" % NAMES, re.MULTILINE)
FOR_TYPES = re.compile(r"^if (?:\w+\.)?TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)*", re.MULTILINE)
FOLDERS = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
AT_ONCE = 8  # modules for each message to a process


def source(name):
    """The path of a module's source, or None."""
    bases = [os.path.join(folder, *name.split(".")) for folder in FOLDERS]
    paths = [base + end for base in bases for end in (os.sep + "__init__.py", ".py")]
    return next((path for path in paths if os.path.exists(path)), None)


def imports(text, package):
    """The names that the source of a module in `package` imports; some of them are not modules."""
    found = set()
    for plain, dots, module, several, names in IMPORT.findall(FOR_TYPES.sub("", text)):
        if plain:
            found.update(one.split()[0] for one in plain.split(",") if one.strip())
            continue
        base = ".".join(filter(None, (package.rsplit(".", len(dots) - 1)[0] if dots else "", module)))
        found.update([base, *(base + "." + one for one in re.findall(r"(\w+)(?: as \w+)?", several or names))])
    return found


def compiled(name):
    """Compile a module, and return what it imports."""
    path = source(name)
    with contextlib.suppress(OSError, ValueError, py_compile.PyCompileError):  # packages contain templates of code
        py_compile.compile(path, doraise=True)
        with open(path, encoding="utf-8", errors="replace") as stream:
            return imports(stream.read(), name if path.endswith("__init__.py") else name.rpartition(".")[0])
    return set()


def main(roots):
    """Compile these modules, their packages and their imports, level by level, on all processors."""
    done, names = set(), set(roots)
    with ProcessPoolExecutor() as pool:
        while names:
            names |= {name.rsplit(".", count)[0] for name in names for count in range(1, name.count(".") + 1)}
            level = sorted(name for name in names - done if source(name))
            done.update(level)
            names = set().union(*pool.map(compiled, level, chunksize=AT_ONCE)) - done


if __name__ == "__main__":
    main(sys.argv[1:])
