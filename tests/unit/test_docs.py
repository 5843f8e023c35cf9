# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links of the documentation lead to files and headings that exist; lists in it are complete."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import families, probes
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests import doc_examples

CLONE = Path(__file__).resolve().parents[2]
PAGES = sorted([*CLONE.glob("*.md"), *CLONE.glob("docs/**/*.md"), *CLONE.glob("roles/*/README.md")])
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


def test_a_link_to_nothing_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# A `heading`: yes\n## Twice\n## Twice\n")
    page = tmp_path / "page.md"
    good = "[a](there.md) [b](there.md#a-heading-yes) [c](there.md#twice-1) [d](https://example.com)\n```\n[e](x.md)\n```\n"
    page.write_text(good + "[f](gone.md) [g](there.md#gone) [h](#gone)\n")
    assert list(broken(page)) == ["gone.md", "there.md#gone", "#gone"]


def test_every_probe_is_described():
    page = (CLONE / "docs" / "using" / "verification.md").read_text(encoding="utf-8")
    section = page.partition("## The sequence")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE)) == probes.FULL
    section = page.partition("## Other families")[2].partition("\n## ")[0]
    assert {name for names in families.FULL.values() for name in names} <= set(re.findall(r"`([a-z-]+)`", section))


def test_every_recipe_is_in_the_support_matrix():
    page = (CLONE / "docs" / "using" / "support.md").read_text(encoding="utf-8")
    own = {path.stem for path in (CLONE / "recipes").glob("*.yml")} - {"images"}
    cells = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    assert set(re.findall(r"`([a-z0-9.-]+)`", " ".join(cells))) == own


def test_make_lists_its_targets():
    said = subprocess.run(["make", "-s"], cwd=CLONE, capture_output=True, text=True, check=True).stdout
    text = (CLONE / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY:((?:.*\\\n)*.*)", text, re.MULTILINE).group(1).replace("\\", " ").split())
    listed = dict(line.split(None, 1) for line in said.splitlines())
    assert targets - set(listed) == {"nodes-test", "matrix-one"}
    assert set(listed) <= targets


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
