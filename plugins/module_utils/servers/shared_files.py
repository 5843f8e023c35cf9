# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that all servers of a root share: what runs beside engines, log limits, the link to the node's Python."""

from __future__ import annotations

import inspect
import json
import os

from ansible_collections.inference.fleet.plugins.module_utils.engines.registry import ENGINES
from ansible_collections.inference.fleet.plugins.module_utils.node import python as node_python
from ansible_collections.inference.fleet.plugins.module_utils.node.files import as_bytes, read_bytes
from ansible_collections.inference.fleet.plugins.module_utils.services.base import LOG_LIMITS
from ansible_collections.inference.fleet.plugins.module_utils.supervise import archive


def shared_changes(node):
    """{path: content} of the files that all servers share and that differ from what they should be, the guard and the
    service manager's own; None: it has to go."""
    texts = {archive.path(node.paths): archive.content()}
    for engine in ENGINES.values():
        for name, module in engine.modules:
            texts["%s/%s.py" % (node.paths.engine_lib, name)] = inspect.getsource(module)
    texts.update(node.manager.shared_files())
    limits, limits_path = node.manager.log_limits(), node.manager.log_limits_path()
    if limits != LOG_LIMITS or os.path.exists(limits_path):
        texts[limits_path] = json.dumps(limits, sort_keys=True) + "\n"
    changed = {path: text for path, text in texts.items() if read_bytes(path) != as_bytes(text)}
    return {**changed, **dict.fromkeys(archive.obsolete(node.paths))}


def python_link_differs(node):
    """Whether this run chose a Python that the node's link does not lead to."""
    return node.manager.interpreter is not None and not node_python.leads_to(node.paths, node.manager.interpreter)
