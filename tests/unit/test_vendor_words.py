# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Product code names no vendor and no engine outside of their own files: whatever depends on one asks its registry.

Comments, docstrings and the documentation of modules do not either; examples and samples may.
"""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import ENGINES as NODE_ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import PLATFORM_CLASSES
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.tests.source_lines import documentation, python

CLONE = pathlib.Path(__file__).resolve().parents[2]
WORDS = re.compile(
    r"neuron|nxdi|trainium|nvidia|cuda|ascend(?!ing)|(?<![a-z])npu|rocm|mi3\d\dx|amd-?smi|amdgpu|vllm|trtllm|tensorrt|"
    r"dynamo|sglang",
    re.IGNORECASE,
)
NAMES = {"platforms": {*PLATFORM_CLASSES, *PLATFORMS}, "engines": {*NODE_ENGINES, *ENGINES}}
# A vendor's or an engine's own files: NAME.py, NAME_….py or NAME/ in the folders of platforms and engines. Benchmark
# tools are an engine's as well.
PLACES = re.compile(
    r"^plugins/((plugin_utils|module_utils/fleet_node)/(platforms/(%(platforms)s)|engines/(%(engines)s))"
    r"(\.py$|_[a-z_]+\.py$|/)"
    r"|module_utils/fleet_node/measure/tools/[a-z_]+\.py$)"
    % {kind: "|".join(sorted(names)) for kind, names in NAMES.items()}
)
# Files that a node's engine imports are the engine's.
OWN = {module.__name__ for engine in NODE_ENGINES.values() for _name, module in engine.modules}
# {file: why}, five at most.
ALLOWED = {
    "plugins/module_utils/fleet_node/model/gpt_oss.py": "the parsers that engines have for the model",
    "plugins/module_utils/fleet_node/weights/draft_heads.py": "heads are checked for the one engine with rules",
}


def product():
    """The files of plugins, of their templates, and of playbooks, as paths below the clone."""
    plugins = [*(CLONE / "plugins").rglob("*.py"), *(CLONE / "plugins").rglob("*.j2")]
    files = [*plugins, *(CLONE / "playbooks").rglob("*.yml"), CLONE / "site.yml"]
    return sorted(str(path.relative_to(CLONE)) for path in files if "__pycache__" not in path.parts)


def own(path):
    """Whether a vendor or an engine may be named there."""
    module = "ansible_collections.inference.fleet." + path.removesuffix(".py").replace("/", ".")
    return bool(PLACES.match(path)) or module in OWN


def found(path, text):
    """["path:line: what"] of a file that is nobody's own."""
    lines = dict(enumerate(text.splitlines(), 1))
    if path.endswith(".py"):
        lines = {**python(text, comments=True), **documentation(text)}
    named = ["%s:%d: %s" % (path, number, line.strip()) for number, line in sorted(lines.items()) if WORDS.search(line)]
    return [path + ": its name", *named] if WORDS.search(path) else named


def test_no_vendor_and_no_engine_is_named():
    generic = [path for path in product() if not own(path) and path not in ALLOWED]
    assert [line for path in generic for line in found(path, (CLONE / path).read_text(encoding="utf-8"))] == []


def test_what_is_allowed_is_little_and_needed():
    assert len(ALLOWED) <= 5
    for path, why in ALLOWED.items():
        assert why and found(path, (CLONE / path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ('"""Of vLLM."""\n# CUDA\nEXAMPLES = r"""\nneuron\n"""\n', [1, 2]),
        ('DOCUMENTATION = r"""\nneuron\n"""\nRETURN = "vllm"\n', [2]),
        ('x = 1  # ascending\nif y == "ascend":\n    pass\n', [2]),
        ("import vllm_api_keys\nNEURON_CAP = 1\ninput_ids = 2\nsnpu = '''\nnpu\n'''\n", [1, 2, 5]),
        ("def f():\n    '''TensorRT'''\n    return 'dynamo'\n", [2, 3]),
    ],
)
def test_what_counts(text, numbers):
    assert found("x.py", text) == [
        "x.py:%d: %s" % (number, {**python(text, comments=True), **documentation(text)}[number].strip())
        for number in numbers
    ]


def test_what_counts_in_a_playbook():
    text = "---\n# of neuron\n- hosts: nvidia\n  vars: {}\n"
    assert yaml.safe_load(text) and found("p.yml", text) == ["p.yml:2: # of neuron", "p.yml:3: - hosts: nvidia"]
    assert found("playbooks/neuron.yml", "---\n") == ["playbooks/neuron.yml: its name"]


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("plugins/module_utils/fleet_node/platforms/nvidia/smi.py", True),
        ("plugins/plugin_utils/platforms/ascend.py", True),
        ("plugins/module_utils/fleet_node/platforms/base.py", False),
        ("plugins/module_utils/fleet_node/platforms/nvidiary.py", False),
        ("plugins/module_utils/fleet_node/engines/vllm_api_keys.py", True),
        ("plugins/modules/node.py", False),
    ],
)
def test_whose_files_are_whose(path, is_own):
    assert own(path) is is_own
