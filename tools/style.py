# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports words that style.yml replaces by plain English.

    .venv/bin/python tools/style.py [PATH…]     # by default all folders of FOLDERS

It checks Markdown without code, comments and strings of several words in Python, and prose in YAML and JSON.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from pathlib import Path

import yaml

CLONE = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "roles", "playbooks", "recipes", "inventories", "plugins", "tools")
GENERATED = ("errors.md", "known_tasks.json", "style.yml")
CODE = re.compile(r"`[^`\n]*`|\b[CVOIRPM]+\([^)]*\)|\]\([^)]*\)|\$?\{[^}]*\}")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Words of a protocol, a tool or a title that only resemble prose.
QUOTED = re.compile(r"apt-mark hold|\"[^\"]*\"")


def rules(words):
    return [(re.compile(r"(?<![\w/.-])(?:%s)(?![\w/:-])" % found, re.IGNORECASE), use) for found, use in words.items()]


def prose(path):
    """Return (line number, text) of the parts of a file that people read."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.count(" ") > 2):
                yield from enumerate(token.string.splitlines(), token.start[0])
    elif path.suffix == ".md":
        yield from enumerate(FENCE.sub(lambda code: "\n" * code.group().count("\n"), text).splitlines(), 1)
    else:
        yield from enumerate(text.splitlines(), 1)


def hits(path, table):
    """Return "line: found (use …)" for each rejected word of a file."""
    for number, line in prose(path):
        line = QUOTED.sub('""', CODE.sub("``", line)) if path.suffix == ".md" else CODE.sub("``", line)
        for found, use in table:
            for match in found.finditer(line):
                yield "%d: %s (use: %s)" % (number, match.group(), use)


def files(arguments):
    paths = [Path(one) for one in arguments] or [CLONE / folder for folder in FOLDERS] + list(CLONE.glob("*.md"))
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".md", ".yml", ".py", ".json") and file.name not in GENERATED:
                yield file


def main():
    data = yaml.safe_load((CLONE / "tools" / "style.yml").read_text(encoding="utf-8"))
    table, found = rules(data["words"]), {}
    for file in files(sys.argv[1:]):
        folders = [] if sys.argv[1:] else [one for one in data["remaining"] if file.is_relative_to(CLONE / one)]
        found.setdefault((folders or [""])[0], []).extend("%s:%s" % (file, hit) for hit in hits(file, table))
    failed = {folder: found[folder] for folder in found if len(found[folder]) > data["remaining"].get(folder, 0)}
    for lines in failed.values():
        print("\n".join(lines))
    sys.exit("%d rejected words; see tools/style.yml" % sum(map(len, failed.values())) if failed else 0)


if __name__ == "__main__":
    main()
