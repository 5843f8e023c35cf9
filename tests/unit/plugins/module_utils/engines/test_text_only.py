# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that imports image processing at its start runs where torchvision is not installed."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import dynamo, text_only

PROGRAM = """
import json, sys
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
print(json.dumps([__name__, sys.argv[1:], smart_resize]))
"""


def test_the_one_import_is_stood_in_for(tmp_path):
    folder = tmp_path / "transformers" / "models" / "qwen2_vl"
    folder.mkdir(parents=True)
    (folder / "image_processing_qwen2_vl.py").write_text("import torchvision.none_such\n")
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__main__.py").write_text(PROGRAM)
    (name,) = [name for name, module in dynamo.ENGINE.modules if module is text_only]
    (tmp_path / (name + ".py")).write_text(inspect.getsource(text_only))

    def run(*words):
        return subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "ModuleNotFoundError" in run("worker", "--model", "m").stderr
    done = run(name, "worker", "--model", "m")
    assert json.loads(done.stdout) == ["__main__", ["--model", "m"], None], done.stderr
