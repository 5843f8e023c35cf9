# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Registries: each is what the files of a folder define, so that adding one is adding a file."""

from __future__ import annotations

import importlib
import pkgutil


def discover(package, folders, attribute):
    """{name: object} of the modules of a package that have `attribute`, sorted by module. Its `name` is the key.

    package: its dotted name; folders: its __path__.
    """
    found = {}
    for module in sorted(one.name for one in pkgutil.iter_modules(folders)):
        one = getattr(importlib.import_module("%s.%s" % (package, module)), attribute, None)
        if one is not None:
            found[one.name] = one
    return found
