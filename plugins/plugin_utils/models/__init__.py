# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Families of models: one file each, with an object MODEL_FAMILY."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.registry import discover

FAMILIES = discover(__name__, __path__, "MODEL_FAMILY")
DEFAULT = "gpt_oss"


def family_of(recipe):
    """Return the family of a recipe's model."""
    return FAMILIES[recipe["model"].get("family") or DEFAULT]


def model_of(recipe):
    """Return the dimensions of a recipe's checkpoint, None if they are not known."""
    return family_of(recipe).models.get(recipe["model"]["repo"])
