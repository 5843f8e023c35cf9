# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/using/errors.md from the catalogue of errors, plugins/module_utils/fleet_node/errors.json.

.venv/bin/python tools/errors_page.py
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
PAGE = CLONE / "docs" / "using" / "errors.md"
CATALOGUE = CLONE / "plugins" / "module_utils" / "fleet_node" / "errors.json"
MARKUP = re.compile(r"([*|<\[])")
IN_CODE = re.compile(r"`[^`\n]*`")
ADJACENT = re.compile(r"(?<!\\)\*(?=\*)")
HEAD = """# Error codes

<!-- Written by tools/errors_page.py from errors.json. Do not edit. -->

A failed task returns the `code` (`area.problem`) and message of its error. With several errors, `code` is `several` and
`errors` lists them. Codes are stable; messages may change. *Italics* are values. Headings of areas link to their pages.
"""
# The pages of areas that have other names than their pages.
PAGES = {
    "api-key": "api-keys", "artifact": "trainium", "checkpoint": "weights", "etcd": "dynamo", "evaluate": "measure",
    "hub": "weights", "images": "containers", "nats": "dynamo", "neuron": "trainium", "override": "recipes",
    "probes": "verification", "recipe": "recipes", "service": "dynamo", "sha256sums": "weights", "tls": "dynamo",
    "tune": "measure",
}  # fmt: skip


def shown(template):
    """Return a template on one line, with its placeholders in italics."""
    parts = [
        MARKUP.sub(r"\\\1", text) + ("*%s*" % name if name else "")
        for text, name, _spec, _conversion in string.Formatter().parse(template)
    ]
    return " ".join("".join(parts).split())


def literal(span):
    """Return a code span without the markup of shown()."""
    return re.sub(r"(?<!\\)\*", "", span.group()).replace("\\", "")


def render(catalogue):
    """Return the page for {code: {problem, remedy}}: a heading per code, its message and its remedy."""
    lines, area = [HEAD], ""
    for code, texts in sorted(catalogue.items()):
        if code.partition(".")[0] != area:
            area = code.partition(".")[0]
            page = PAGES.get(area, area) + ".md"
            lines.append("## %s\n" % ("[%s](%s)" % (area, page) if (PAGE.parent / page).is_file() else area))
        remedy = shown(texts["remedy"]) or "The message contains the remedy."
        lines += ["### %s\n" % code, "%s %s" % (shown(texts["problem"]), remedy), ""]
    return IN_CODE.sub(literal, ADJACENT.sub("* ", "\n".join(lines))).rstrip() + "\n"


def main():
    PAGE.write_text(render(json.loads(CATALOGUE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
