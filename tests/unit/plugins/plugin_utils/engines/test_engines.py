# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import flag_argv, text


@pytest.mark.parametrize(
    ("engine", "flag", "value", "argv"),
    [
        ("vllm", "enforce-eager", True, ["--enforce-eager"]),
        ("vllm", "enforce-eager", False, []),
        ("vllm", "enforce-eager", None, []),
        ("vllm", "O", 3, ["-O", "3"]),
        ("vllm", "gpu-memory-utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        # argparse takes several values after one flag, click the flag several times.
        ("vllm", "served-model-name", ["a", "b"], ["--served-model-name", "a", "b"]),
        ("trtllm", "custom_module_dirs", ["a", "b"], ["--custom_module_dirs", "a", "--custom_module_dirs", "b"]),
        ("vllm", "compilation-config", {"sizes": [1, 2]}, ["--compilation-config", '{"sizes": [1, 2]}']),
    ],
)  # fmt: skip
def test_flags(engine, flag, value, argv):
    assert flag_argv(engine, flag, value) == argv


@pytest.mark.parametrize(("value", "shown"), [("x y", "x y"), (True, "true"), (1, "1"), (1.0, "1.0"), ({}, "{}")])
def test_text(value, shown):
    assert text(value) == shown
