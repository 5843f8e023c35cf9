# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Registries: a registry contains the objects that the files of a folder define. A new file adds an object."""

from __future__ import annotations

import importlib
import pkgutil


def discover(package, folders, attribute):
    """Return {name: object} of the modules of a package that define `attribute`, sorted by module.
    The key is the object's `name`.

    package: its dotted name; folders: its __path__.
    """
    found = {}
    for module in sorted(one.name for one in pkgutil.iter_modules(folders)):
        one = getattr(importlib.import_module("%s.%s" % (package, module)), attribute, None)
        if one is not None:
            found[one.name] = one
    return found
