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
