# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of this collection as one file that Python runs without Ansible: a zip of modules under their full names."""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import zipfile

IMPORT = re.compile(r"^[ \t]*from (ansible_collections\.[\w.]+) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)


def packed(modules, main):
    """The bytes of an archive that runs the text `main`, with these modules and all that they import of the collection;
    the same bytes each time."""
    sources, waiting = {}, list(modules)
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = _source(name)
            waiting += _imported(sources[name][1])
    entries = {"__main__.py": main}
    for name, (is_package, source) in sources.items():
        folders = name.split(".")[: None if is_package else -1]
        for depth in range(1, len(folders) + 1):
            entries.setdefault("/".join(folders[:depth]) + "/__init__.py", "")
        entries[name.replace(".", "/") + ("/__init__.py" if is_package else ".py")] = source
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # stored: what a compression gives depends on its version
        for path in sorted(entries):
            archive.writestr(zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0)), entries[path])
    return buffer.getvalue()


@functools.cache
def _source(name):
    """(whether it is a package, its text)."""
    found = importlib.util.find_spec(name)
    return found.submodule_search_locations is not None, found.loader.get_source(name)


def _imported(source):
    """Names of the collection's modules that a module imports."""
    found = set()
    for module, names in IMPORT.findall(source):
        for name in re.findall(r"(\w+)(?: as \w+)?,?", re.sub(r"#.*|[()]", "", names)):
            inner = "%s.%s" % (module, name)
            found.add(inner if _is_module(inner) else module)
    return found


@functools.cache
def _is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what would hold it is no package
        return False
