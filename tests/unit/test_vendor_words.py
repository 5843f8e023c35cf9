# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Product code names no vendor and no engine outside of their own files: whatever depends on one asks its registry.

Comments and docstrings do not either; the documentation of modules may, in examples.
"""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.platforms.shipped import PLATFORM_CLASSES
from ansible_collections.inference.fleet.tests.source_lines import python

CLONE = pathlib.Path(__file__).resolve().parents[2]
WORDS = re.compile(
    r"neuron|nxdi|trainium|nvidia|cuda|ascend(?!ing)|(?<![a-z])npu|vllm|trtllm|tensorrt|dynamo", re.IGNORECASE
)
# A vendor's or an engine's own files: a module may be a platform's, by the platform's name before its own.
# gpt_oss.py names the parsers that engines have for the model.
PLACES = re.compile(
    r"^plugins/((plugin_utils|module_utils)/(platforms|engines)/[a-z]|module_utils/verify/gpt_oss\.py$"
    r"|modules/(%s)_[a-z_]+\.py$)" % "|".join(PLATFORM_CLASSES)
)
# {file: why}, five at most.
ALLOWED = {
    "plugins/action/compiled_artifact.py": "brings archives of the one platform that compiles; playbooks use its name",
    "plugins/modules/compiled_artifact.py": "the same",
    "plugins/module_utils/verify/workers.py": "names of one engine's metrics, which a probe of disaggregation counts",
    "plugins/module_utils/weights/draft_heads.py": "the one place that names what checks a draft's head",
}


def product():
    """The files of plugins, of their templates, and of playbooks, as paths below the clone."""
    plugins = [*(CLONE / "plugins").rglob("*.py"), *(CLONE / "plugins").rglob("*.j2")]
    files = [*plugins, *(CLONE / "playbooks").rglob("*.yml"), CLONE / "site.yml"]
    return sorted(str(path.relative_to(CLONE)) for path in files if "__pycache__" not in path.parts)


def found(path, text):
    """["path:line: what"] of a file that is nobody's own."""
    lines = python(text, comments=True) if path.endswith(".py") else dict(enumerate(text.splitlines(), 1))
    named = ["%s:%d: %s" % (path, number, line.strip()) for number, line in sorted(lines.items()) if WORDS.search(line)]
    return [path + ": its name", *named] if WORDS.search(path) else named


@pytest.mark.parametrize("path", product())
def test_no_vendor_and_no_engine_is_named(path):
    if not PLACES.match(path) and path not in ALLOWED:
        assert found(path, (CLONE / path).read_text(encoding="utf-8")) == []


def test_what_is_allowed_is_little_and_needed():
    assert len(ALLOWED) <= 5
    for path, why in ALLOWED.items():
        assert why and found(path, (CLONE / path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ('"""Of vLLM."""\n# CUDA\nDOCUMENTATION = r"""\nneuron\n"""\n', [1, 2]),
        ('x = 1  # ascending\nif y == "ascend":\n    pass\n', [2]),
        ("import vllm_api_keys\nNEURON_CAP = 1\ninput_ids = 2\nsnpu = '''\nnpu\n'''\n", [1, 2, 5]),
        ("def f():\n    '''TensorRT'''\n    return 'dynamo'\n", [2, 3]),
    ],
)
def test_what_counts(text, numbers):
    assert found("x.py", text) == [
        "x.py:%d: %s" % (number, python(text, comments=True)[number].strip()) for number in numbers
    ]


def test_what_counts_in_a_playbook():
    text = "---\n# of neuron\n- hosts: nvidia\n  vars: {}\n"
    assert yaml.safe_load(text) and found("p.yml", text) == ["p.yml:2: # of neuron", "p.yml:3: - hosts: nvidia"]
    assert found("playbooks/neuron.yml", "---\n") == ["playbooks/neuron.yml: its name"]
