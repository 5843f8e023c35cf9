# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reference of variables and recipe keys is complete and current."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import metrics
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import shared
from ansible_collections.inference.fleet.tools import reference_pages

CLONE = Path(__file__).resolve().parents[2]
HOW = "run: .venv/bin/python tools/run.py python tools/reference_pages.py"
NO_VARIABLES = {
    "fleet_certificate",
    "fleet_doctor",
    "fleet_page",
    "fleet_report",
    "fleet_planned",
    "fleet_status",
    "fleet_verdict",
}  # names of modules and statistics


def documented():
    page = reference_pages.VARIABLES.read_text(encoding="utf-8")
    return set(re.findall(r"`(fleet_\w+)`", " ".join(re.findall(r"^- (`[^(]*) \(", page, re.MULTILINE))))


def used():
    """Variables of inventories that playbooks, roles and plugins read."""
    found = set()
    for folder in ("plugins", "playbooks", "roles", "inventories"):
        for path in (CLONE / folder).rglob("*"):
            if path.suffix in (".py", ".yml", ".j2"):
                found.update(re.findall(r"\bfleet_[a-z0-9_]*[a-z0-9]\b", path.read_text(encoding="utf-8")))
    return {name for name in found if not name.startswith("fleet_override_")} - NO_VARIABLES - set(metrics.FAMILIES)


def test_recipe_keys_are_current():
    schema = json.loads((CLONE / "recipes" / "recipe.schema.json").read_text(encoding="utf-8"))
    assert reference_pages.KEYS.read_text(encoding="utf-8") == reference_pages.recipe_keys(schema), HOW


def test_variables_of_roles_are_current():
    page = reference_pages.VARIABLES.read_text(encoding="utf-8")
    assert page == reference_pages.variables(page), HOW


def test_the_steps_of_the_guides_are_current():
    page = reference_pages.SUPPORT.read_text(encoding="utf-8")
    assert page == reference_pages.support(page), HOW


def test_every_shared_variable_is_documented():
    assert used() - documented() == {"fleet_servers", "fleet_deployment"}


def test_no_documented_variable_is_gone():
    assert documented() - used() == {"fleet_override_LAYER"}


def test_a_misspelt_variable_is_compared_with_all_documented_ones():
    assert documented() - {"fleet_override_LAYER"} == set(shared())
