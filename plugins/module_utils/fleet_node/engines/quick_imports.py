# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a module whose imports last long, without garbage collection during the imports.

    python -m inference_fleet_quick_imports vllm.entrypoints.openai.api_server --model …

vLLM imports 4,600 modules, whose objects stay. Garbage collection among them lasts a quarter of the time, in each
process that it starts. The objects are then exempt from garbage collection, as vLLM's own are when it is ready.

The engine's Python imports a copy on the node, so this module uses only the standard library.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import sys

MODULE = "inference_fleet_quick_imports"
VARIABLE = "INFERENCE_FLEET_QUICK_IMPORTS"  # the module, for processes that multiprocessing spawns
PARENT, CHILD = "__main__", "__mp_main__"  # names of this module there


def load(name):
    """Import the module `name`."""
    gc.disable()
    try:
        importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()


if __name__ == PARENT:
    sys.argv[:] = sys.argv[1:]
    os.environ[VARIABLE] = sys.argv[0]
if __name__ in (PARENT, CHILD):
    load(os.environ[VARIABLE])
if __name__ == PARENT:
    del sys.modules[sys.argv[0]]  # runpy warns about a module that is imported already
    runpy.run_module(sys.argv[0], run_name=PARENT)
