# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links of the documentation lead to files and headings that exist; lists, examples and generated pages are current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import metrics
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import families, probes
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import shared
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tools import reference_pages

CLONE = Path(__file__).resolve().parents[2]
PAGES = sorted([*CLONE.glob("*.md"), *CLONE.glob("docs/**/*.md"), *CLONE.glob("roles/*/README.md")])
SCHEMA = CLONE / "recipes" / "recipe.schema.json"
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


def anchors(page):
    """What a link to a heading of the page is, as GitHub makes it."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found, seen = set(ANCHOR.findall(text)), {}
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        found.add("%s-%d" % (slug, number) if number else slug)
    return found


def broken(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _hash, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_every_probe_is_described():
    page = (CLONE / "docs" / "using" / "verification.md").read_text(encoding="utf-8")
    section = page.partition("## The sequence")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE)) == probes.FULL
    section = page.partition("## Other families")[2].partition("\n## ")[0]
    assert {name for names in families.FULL.values() for name in names} <= set(re.findall(r"`([a-z-]+)`", section))


EXAMPLES = [
    (page, name)
    for page in ("nvidia.md", "dynamo.md", "measure.md")
    for name in re.findall(r"<!-- example: (.*?) -->", (doc_examples.USING / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_the_examples_of_a_page_plan(page, name):
    shown = doc_examples.example(name, doc_examples.USING / page)
    needs = recipes.resolve_recipe(recipes.find_recipe(shown["fleet_recipe"], []), [])["needs"]
    host = {"fleet_hardware": {"accelerator": needs["accelerators"][0], "count": 8}, **shown}
    assert fleet.plan_fleet(["node-1"], lambda name: host, deploys=True)["node-1"]["servers"]


# -- pages that tools/reference_pages.py writes ------------------------------------------------------------------------

# names of modules and statistics
NO_VARIABLES = {"fleet_" + word for word in ("certificate", "doctor", "page", "report", "planned", "status", "verdict")}


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


@pytest.mark.parametrize(("page", "render"), [
    (reference_pages.KEYS, lambda _page: reference_pages.recipe_keys(json.loads(SCHEMA.read_text(encoding="utf-8")))),
    (reference_pages.VARIABLES, reference_pages.variables),
    (reference_pages.SUPPORT, reference_pages.support),
], ids=lambda one: getattr(one, "name", ""))  # fmt: skip
def test_generated_pages_are_current(page, render):
    text = page.read_text(encoding="utf-8")
    assert text == render(text), "run: .venv/bin/python tools/run.py python tools/reference_pages.py"


def test_every_shared_variable_is_documented_and_no_other():
    assert used() - documented() == {"fleet_servers", "fleet_deployment"}
    assert documented() - used() == {"fleet_override_LAYER"}
    # with which a misspelt one is compared
    assert documented() - {"fleet_override_LAYER"} == set(shared())
