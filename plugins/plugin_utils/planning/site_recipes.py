# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders of a site's own recipes: where they are looked for, and where they must not be."""

from __future__ import annotations

import os

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError

NO_INVENTORIES = ("group_vars", "host_vars", "vars_plugins")  # in an inventory directory


def recipes_of(source):
    """Folders with the recipes of a site whose inventory is `source`: `recipes` beside it, and beside its folder."""
    source = os.path.normpath(source)
    inside = [] if os.path.isdir(source) else [os.path.dirname(source)]
    return [os.path.join(folder, "recipes") for folder in (*inside, os.path.dirname(inside[0] if inside else source))]


def check_inventory_folders(sources):
    """FleetError for recipes inside an inventory directory: Ansible has read them as inventories.

    sources: paths given with -i.
    """
    for source in sources:
        if not os.path.isdir(source):
            continue
        for folder, names, files in os.walk(source):
            names[:] = [name for name in names if not name.startswith(".") and name not in NO_INVENTORIES]
            if os.path.basename(folder) == "recipes" and any(name.endswith((".yml", ".yaml")) for name in files):
                check_outside(folder, [source])


def check_outside(folder, sources):
    """FleetError for a folder of recipes in which Ansible looks for inventories."""
    real = os.path.realpath(folder)
    for source in sources:
        root = os.path.realpath(source)
        inside = os.path.isdir(root) and (real + "/").startswith(root + "/")
        if inside and not any(part.startswith(".") for part in os.path.relpath(real, root).split("/") if part != "."):
            raise FleetError(
                "inventory.recipes-inside",
                "%s holds recipes inside the inventory directory %s, where Ansible reads every file as an inventory; "
                "allowed: %s, or a folder elsewhere that fleet_recipe_paths names. Move the folder there.",
                (folder, source, recipes_of(source)[-1]),
            )
