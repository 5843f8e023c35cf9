# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What service managers start the servers with, as one file on the node."""

from __future__ import annotations

import functools
import os

from ansible_collections.inference.fleet.plugins.module_utils.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.node.archive import packed
from ansible_collections.inference.fleet.plugins.module_utils.platforms.registry import PLATFORMS
from ansible_collections.inference.fleet.plugins.module_utils.supervise import hooks, main

MAIN = """from %s import PLACES
from %s import main

PLACES.update(%r)
raise SystemExit(main())
"""


def path(paths):
    """Where it lies. It is a zip in spite of its name, which is in the definitions of servers that run."""
    return paths.lib + "/lib/guard.py"


def obsolete(paths):
    """Files of versions before it was one, where no guard of such a version waits that would read them."""
    found = [one for one in (paths.lib + "/lib/container_engine.py",) if os.path.lexists(one)]
    if found:
        ours = [pid for pids in processes.marked_processes(paths.root).values() for pid in pids]
        return [] if any(path(paths) in processes.argv(pid) for pid in ours) else found
    return found


@functools.cache
def content():
    """Its bytes."""
    places = {name: module.__name__ for one in PLATFORMS.values() for name, module in one.start_hooks.items()}
    return packed([main.__name__, *places.values()], MAIN % (hooks.__name__, main.__name__, places))
