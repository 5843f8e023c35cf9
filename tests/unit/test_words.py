# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Product code names a vendor, an engine or a family of models in their own files only; it asks a registry elsewhere.

Comments, docstrings and the documentation of modules do not name vendors and engines either; examples and samples may.
They may name a family, and so may the name of its file in an import.
"""

from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import ENGINES as NODE_ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import (
    PLATFORMS as NODE_PLATFORMS,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.models import FAMILIES
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import recipe_schema
from ansible_collections.inference.fleet.tests.source_lines import documentation, python

CLONE = pathlib.Path(__file__).resolve().parents[2]
VENDOR = re.compile(
    r"neuron|nxdi|trainium|nvidia|cuda|ascend(?!ing)|(?<![a-z])npu|rocm|mi3\d\dx|amd-?smi|amdgpu|vllm|trtllm|tensorrt|"
    r"dynamo|sglang",
    re.IGNORECASE,
)
FAMILY = re.compile(
    r"o200k|harmony|reasoning_content|openai_gptoss|gpt.?oss|reasoning_effort|tiktoken_encodings_base|mxfp4",
    re.IGNORECASE,
)
NAMES = {"platforms": {*NODE_PLATFORMS, *PLATFORMS}, "engines": {*NODE_ENGINES, *ENGINES}}
# A vendor's or an engine's own files: NAME.py, NAME_….py or NAME/ in the folders of platforms and engines. Benchmark
# tools are an engine's as well.
VENDORS_OWN = re.compile(
    r"^plugins/((plugin_utils|module_utils/fleet_node)/(platforms/(%(platforms)s)|engines/(%(engines)s))"
    r"(\.py$|_[a-z_]+\.py$|/)"
    r"|module_utils/fleet_node/measure/tools/[a-z_]+\.py$)"
    % {kind: "|".join(sorted(names)) for kind, names in NAMES.items()}
)
# Files that a node's engine imports are the engine's.
IMPORTED = {module.__name__ for engine in NODE_ENGINES.values() for _name, module in engine.modules}
# The files of the family, and of those whose checks depend on a format or a variable: platforms, tools that measure.
FAMILYS_OWN = re.compile(
    r"^plugins/(plugin_utils/(models|platforms)/|module_utils/fleet_node/(model/(gpt_oss|formats)\.py|platforms/"
    r"|measure/(tools/|aisbench\.)))"
)
REFERENCE = re.compile(r"\bgpt_oss(_evals(_worker)?)?(?= *(\.|\n|$| *,| as\b))")
# {file: why}, five at most of each kind.
VENDORS_ALLOWED = {
    "plugins/module_utils/fleet_node/model/gpt_oss.py": "the parsers that engines have for the model",
    "plugins/module_utils/fleet_node/weights/draft_heads.py": "heads are checked for the one engine with rules",
}
FAMILY_ALLOWED = {
    "plugins/module_utils/fleet_node/weights/encodings_worker.py": "a script for an engine's Python, without ours",
    "plugins/module_utils/fleet_node/weights/known.py": "checksums of one published repository, by its name",
    "plugins/plugin_utils/planning/plan.py": "an example of a path, in a message",
    "plugins/plugin_utils/operations/weights.py": "the folder of the stand-in that the collection carries",
}


def product():
    """The files of plugins, of their templates, and of playbooks, as paths below the clone."""
    plugins = [*(CLONE / "plugins").rglob("*.py"), *(CLONE / "plugins").rglob("*.j2")]
    files = [*plugins, *(CLONE / "playbooks").rglob("*.yml"), CLONE / "site.yml"]
    return sorted(str(path.relative_to(CLONE)) for path in files if "__pycache__" not in path.parts)


def of_a_vendor(path):
    """Whether a vendor or an engine may be named there."""
    module = "ansible_collections.inference.fleet." + path.removesuffix(".py").replace("/", ".")
    return bool(VENDORS_OWN.match(path)) or module in IMPORTED


def of_a_family(path):
    return not path.startswith("plugins/") or not path.endswith(".py") or bool(FAMILYS_OWN.match(path))


def vendors(path, text):
    """["path:line: what"] of the lines that name a vendor or an engine, and the path if it does."""
    lines = dict(enumerate(text.splitlines(), 1))
    if path.endswith(".py"):
        lines = {**python(text, comments=True), **documentation(text)}
    named = [
        "%s:%d: %s" % (path, number, line.strip()) for number, line in sorted(lines.items()) if VENDOR.search(line)
    ]
    return [path + ": its name", *named] if VENDOR.search(path) else named


def family(path, text):
    """The same of lines that name what is a family's own."""
    lines = {number: REFERENCE.sub("", line) for number, line in python(text).items()}
    return ["%s:%d: %s" % (path, number, line.strip()) for number, line in sorted(lines.items()) if FAMILY.search(line)]


@pytest.mark.parametrize(
    ("named", "own", "allowed"),
    [(vendors, of_a_vendor, VENDORS_ALLOWED), (family, of_a_family, FAMILY_ALLOWED)],
    ids=["vendors and engines", "families of models"],
)
def test_generic_code_names_none_except_where_it_must(named, own, allowed):
    lines = {path: named(path, (CLONE / path).read_text(encoding="utf-8")) for path in product() if not own(path)}
    assert {path for path, found in lines.items() if found} == set(allowed), lines
    assert len(allowed) <= 5 and all(allowed.values())


def test_the_schema_allows_what_the_families_have():
    schema = recipe_schema()
    choices = {
        "formats": schema["$defs"]["model"]["properties"]["format"],
        "effort_parameters": schema["properties"]["verify"]["properties"]["effort_parameter"],
        "reasoning_fields": schema["properties"]["reasoning_field"],
    }
    for name, choice in choices.items():
        assert set(choice["enum"]) == {one for found in FAMILIES.values() for one in getattr(found, name)}
