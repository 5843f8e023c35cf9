# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is a family of models' own stands in its two files, on the controller and on nodes.

Comments, docstrings and the documentation of modules may name it, and so may the name of its file in an import.
"""

from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.models import FAMILIES
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import recipe_schema
from ansible_collections.inference.fleet.tests.source_lines import python

CLONE = pathlib.Path(__file__).resolve().parents[2]
WORDS = re.compile(
    r"o200k|harmony|reasoning_content|openai_gptoss|gpt.?oss|reasoning_effort|tiktoken_encodings_base|mxfp4",
    re.IGNORECASE,
)
# The files of the family, and of those whose checks depend on a format or a variable: platforms, tools that measure.
PLACES = re.compile(
    r"^plugins/(plugin_utils/(models|platforms)/|module_utils/fleet_node/(model/(gpt_oss|formats)\.py|platforms/"
    r"|measure/(tools/|aisbench\.)))"
)
REFERENCE = re.compile(r"\bgpt_oss(_evals(_worker)?)?(?= *(\.|\n|$| *,| as\b))")
# {file: why}, five at most.
ALLOWED = {
    "plugins/module_utils/fleet_node/weights/encodings_worker.py": "a script for an engine's Python, without ours",
    "plugins/module_utils/fleet_node/weights/known.py": "checksums of one published repository, by its name",
    "plugins/plugin_utils/planning/plan.py": "an example of a path, in a message",
    "plugins/plugin_utils/operations/weights.py": "the folder of the stand-in that the collection carries",
}


def found(text):
    """["number: what"] of the lines of a Python file that name what is a family's own."""
    lines = {number: REFERENCE.sub("", line) for number, line in python(text).items()}
    return ["%d: %s" % (number, line.strip()) for number, line in sorted(lines.items()) if WORDS.search(line)]


def product():
    files = (CLONE / "plugins").rglob("*.py")
    return sorted(str(path.relative_to(CLONE)) for path in files if "__pycache__" not in path.parts)


def test_generic_code_has_nothing_of_a_family_of_models():
    generic = [path for path in product() if not PLACES.match(path) and path not in ALLOWED]
    named = {path: found((CLONE / path).read_text(encoding="utf-8")) for path in generic}
    assert {path: lines for path, lines in named.items() if lines} == {}


def test_what_is_allowed_is_little_and_needed():
    assert len(ALLOWED) <= 5
    for path, why in ALLOWED.items():
        assert why and found((CLONE / path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ('"""Of gpt-oss."""\nDOCUMENTATION = "harmony"\nx = 1  # o200k_base\n', []),
        ("from verify import causes, gpt_oss\nfrom verify import gpt_oss\ny = gpt_oss.FORMAT\n", []),
        ('x = "gpt_oss"\ny = "harmony"\nz = {"reasoning_effort": "low"}\nO200K = 1\n', [1, 2, 3, 4]),
    ],
)
def test_what_counts(text, numbers):
    assert [int(line.split(":")[0]) for line in found(text)] == numbers


def test_the_schema_allows_what_the_families_have():
    schema = recipe_schema()
    choices = {
        "formats": schema["$defs"]["model"]["properties"]["format"],
        "effort_parameters": schema["properties"]["verify"]["properties"]["effort_parameter"],
        "reasoning_fields": schema["properties"]["reasoning_field"],
    }
    for name, choice in choices.items():
        assert set(choice["enum"]) == {one for family in FAMILIES.values() for one in getattr(family, name)}
