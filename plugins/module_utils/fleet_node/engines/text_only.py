# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a module that imports the image processing of Qwen2-VL at its start, where torchvision is not installed.

    python -m inference_fleet_text_only dynamo.vllm --model …

`dynamo.vllm` uses one function of it, for models that read images. torchvision itself would need PyTorch's own
index: PyPI's build is for CUDA, and fails to import with a PyTorch for CPUs.

The engine's Python imports a copy on the node, so this module uses only the standard library.
"""

from __future__ import annotations

import runpy
import sys
import types

MODULE = "inference_fleet_text_only"
ABSENT = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
NAMES = ("smart_resize",)


def main(argv):
    """Run the module argv[0] with the rest as its arguments."""
    module = types.ModuleType(ABSENT)
    for name in NAMES:
        setattr(module, name, None)
    sys.modules[ABSENT] = module
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
