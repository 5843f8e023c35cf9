# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all servers of a root share: the program that starts them, what runs beside engines, log limits, the link to the
node's Python."""

from __future__ import annotations

import inspect
import json
import os

from .. import program
from ..engines.registry import ENGINES
from ..node import python as node_python
from ..node import trust
from ..node.files import as_bytes, read_bytes
from ..services.base import LOG_LIMITS


def shared_changes(node):
    """{path: content} of the files that all servers share and that differ from what they should be, and the service
    manager's own. The program, where it does, is among them without content."""
    texts = {node.paths.guard: None}
    for engine in ENGINES.values():
        for name, module in engine.modules:
            texts["%s/%s.py" % (node.paths.engine_lib, name)] = inspect.getsource(module)
    texts.update(node.manager.shared_files())
    limits, limits_path = node.manager.log_limits(), node.manager.log_limits_path()
    if limits != LOG_LIMITS or os.path.exists(limits_path):
        texts[limits_path] = json.dumps(limits, sort_keys=True) + "\n"
    return {path: text for path, text in texts.items() if shared_fault(node.paths, path, text)}


def shared_fault(paths, path, text):
    """How a shared file differs from this collection's, its owner and mode included, as a clause; None where it does
    not. Service managers start it, in part as root, at every boot."""
    if text is None:
        return program.current_fault(paths.lib)
    wrong = trust.misplaced(path, 0o644)
    return wrong if wrong or read_bytes(path) == as_bytes(text) else "differs from this collection's"


def python_link_differs(node):
    """Whether this run chose a Python that the node's link does not lead to, or somebody else made that link."""
    return node.manager.interpreter is not None and not node_python.leads_to(node.paths, node.manager.interpreter)
