# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker that imports the extension makes agents whose progress thread waits."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import dynamo, nixl_waits

# As NIXL 1.4.1 has it: the config is made and filled by the constructor of an agent.
API = """
import types
class Config:
    pass
nixlBind = types.SimpleNamespace(nixlAgentConfig=Config)
class nixl_agent:
    def __init__(self):
        self.config = nixlBind.nixlAgentConfig()
        self.config.useProgThread = True
        self.config.pthrDelay = 0
        self.config.lthrDelay = 0
"""
PROGRAM = """
import importlib, json, sys
module, _, name = sys.argv[1].rpartition(".")
extension = getattr(importlib.import_module(module), name)
from vllm.distributed.nixl_utils import NixlWrapper
print(json.dumps([[name for name in dir(extension) if not name.startswith("__")], vars(NixlWrapper().config)]))
"""


def test_the_progress_thread_of_agents_waits(tmp_path):
    (tmp_path / "vllm" / "distributed").mkdir(parents=True)
    (tmp_path / "api.py").write_text(API)
    (tmp_path / "vllm" / "distributed" / "nixl_utils.py").write_text("from api import nixl_agent as NixlWrapper\n")
    (name,) = [name for name, module in dynamo.ENGINE.modules if module is nixl_waits]
    (tmp_path / (name + ".py")).write_text(inspect.getsource(nixl_waits))
    argv = [sys.executable, "-c", PROGRAM, "inference_fleet_nixl_waits.Waits"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == [[], {"useProgThread": True, "pthrDelay": 10000, "lthrDelay": 0}], done.stderr
