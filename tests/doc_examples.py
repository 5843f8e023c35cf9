# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The YAML examples of the pages about Trainium, which tests plan and run."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

USING = Path(__file__).resolve().parent.parent / "docs" / "using"
RECIPES = USING / "trainium-recipes.md"
TUTORIAL = USING / "trainium.md"


def example(name, page=TUTORIAL):
    """What the YAML under <!-- example: name --> holds."""
    text = page.read_text(encoding="utf-8")
    return yaml.safe_load(re.search(r"<!-- example: %s -->\n```yaml\n(.*?)```" % name, text, re.DOTALL).group(1))


def guide_rows(page, heading):
    """Rows of the section below `### heading` as tuples of cells, "" for –: its table and its lists. A server without
    lines of its own has no section."""
    text = page.read_text(encoding="utf-8")
    section = re.search(r"\n### %s\n(.*?)(?=\n##|\Z)" % re.escape(heading), text, re.DOTALL)
    return _rows(section.group(1) if section else "", page)


def common_rows(page):
    """The rows of "Common differences": each applies to every server that has its lines."""
    return _rows(page.read_text(encoding="utf-8").partition("\n## Common differences\n")[2].partition("\n## ")[0], page)


def listed(section, word):
    """The lines of "Unchanged: `A`, `B`", or of a list "- `A`, `B`: reason" below "Added:" or "Omitted:"."""
    found = re.match(r"\s+(.*?)\n\n", section.partition("\n%s:" % word)[2] + "\n\n", re.DOTALL)
    lines = found.group(1) if found else ""
    if lines.startswith("- "):
        lines = " ".join(re.findall(r"^- ((?:`[^`]+`,?\s*)+):", lines, re.MULTILINE))
    return re.findall(r"`([^`]+)`", lines)


def _rows(section, page):
    found = table_of(section)
    width = len((found or common_rows(page))[0])
    found += [(line,) * (width - 1) + ("the same",) for line in listed(section, "Unchanged")]
    found += [("", *(line,) * (width - 2), "added") for line in listed(section, "Added")]
    return found + [(line, *("",) * (width - 2), "omitted") for line in listed(section, "Omitted")]


def with_common(page, heading, theirs, *ours):
    """guide_rows of a section and the common rows whose lines are among those of the guide and of the server."""
    rows = guide_rows(page, heading)
    for row in sorted(common_rows(page), key=lambda row: row.count("")):
        missing = [cell and (cell not in known or cell in {own[n] for own in rows})
                   for n, (cell, known) in enumerate(zip(row, (theirs, *ours)))]  # fmt: skip
        if not any(missing):
            rows.append(row)
    return rows


def table_of(text):
    """The rows of a table below its heading as tuples of cells, "" for –, without backquotes."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not set("".join(row)) <= set("- ")]
    return [tuple("" if cell == "–" else cell.strip("`") for cell in row) for row in rows[1:]]


def check_rows(rows, *known, renamed="\0"):
    """Each column of a guide's table has the lines of one of `known` ({key: line}), in a row those of the same key.
    renamed: what the guide's line contains where ours has another key."""
    for column, lines in enumerate(known):
        assert {row[column] for row in rows} - {""} == set(lines.values())
    for row in rows:
        keys = {key for cell, lines in zip(row, known) for key, line in lines.items() if cell and line == cell}
        assert len(keys) == 1 or renamed in row[0], row
        assert row[-1] and (row[-1] == "the same") == (len(set(row[:-1])) == 1), row
