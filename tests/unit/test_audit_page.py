# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/developing/audit.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
PAGE = CLONE / "docs" / "developing" / "audit.md"


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 50
    missing = [
        "%s::%s" % (path, name)
        for path, name in named
        if not re.search(r"^ *def %s\(" % name, (CLONE / "tests" / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []
