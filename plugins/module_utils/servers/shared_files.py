# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that all servers of a root share: what runs beside engines, log limits, the link to the node's Python."""

from __future__ import annotations

import hashlib
import inspect
import json
import os

from ansible_collections.inference.fleet.plugins.module_utils.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.engines.registry import ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.node import python as node_python
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_text
from ansible_collections.inference.fleet.plugins.module_utils.services import LOG_LIMITS
from ansible_collections.inference.fleet.plugins.module_utils.supervise import guard


def shared_changes(node):
    """{path: text} of the files that all servers share and that differ from what they should be: the guard's copy and
    the service manager's own."""
    texts = {"%s/lib/%s.py" % (node.paths.lib, name): inspect.getsource(module)
             for name, module in (("container_engine", container_engine), ("guard", guard))}  # fmt: skip
    for engine in ENGINES.values():
        for name, module in engine.modules:
            texts["%s/%s.py" % (node.paths.engine_lib, name)] = inspect.getsource(module)
    texts.update(node.manager.shared_files())
    limits, limits_path = node.manager.log_limits(), node.manager.log_limits_path()
    if limits != LOG_LIMITS or os.path.exists(limits_path):
        texts[limits_path] = json.dumps(limits, sort_keys=True) + "\n"
    return {path: text for path, text in texts.items() if _digest(read_text(path)) != _digest(text)}


def _digest(text):
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def python_link_differs(node):
    """Whether this run chose a Python that the node's link does not lead to."""
    return node.manager.interpreter is not None and not node_python.leads_to(node.paths, node.manager.interpreter)
