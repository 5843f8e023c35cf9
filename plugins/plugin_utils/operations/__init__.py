# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of operations that run on the control node, before and after the operation runs on a managed node.

A part is a function OPERATION(action, arguments, task_vars) that returns the result of the task. action: that of
inference.fleet.node. OPERATION_sent(action, arguments), if it exists, returns the arguments for the managed node, or
None if the operation has nothing to do; the operation check uses it. Parts are imported when they are used.
"""

from __future__ import annotations

import importlib
import os

PARTS = {
    "benchmark_run": "measure",
    "check": "check",
    "doctor": "doctor",
    "endpoint_verify": "servers",
    "engine_servers": "servers",
    "engine_servers_info": "servers",
    "evaluation_run": "measure",
    "foreign_servers": "servers",
    "host_key": "host_key",
    "model_weights": "weights",
    "node_removal": "host_key",
    "tiktoken_encodings": "weights",
    "unused_files": "servers",
}
PLATFORMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "platforms")
PACKAGE = __name__.rpartition(".")[0] + ".platforms"


def part_of(operation):
    """Return the part of an operation; None if all of it runs on the managed node."""
    module = _module(operation)
    return module and getattr(module, operation)


def sent(action, operation, arguments):
    """Return the arguments of the first call of an operation on the managed node; None if it needs no call."""
    found = getattr(_module(operation), operation + "_sent", None)
    return arguments if found is None else found(action, arguments)


def _module(operation):
    if operation in PARTS:
        return importlib.import_module("%s.%s" % (__name__, PARTS[operation]))
    if not operation.isidentifier():
        return None
    name = "operation_" + operation
    for platform in sorted(os.listdir(PLATFORMS)):
        if os.path.isfile(os.path.join(PLATFORMS, platform, name + ".py")):
            return importlib.import_module("%s.%s.%s" % (PACKAGE, platform, name))
    return None
