# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NIXL's progress thread waits for events: `vllm … --worker-extension-cls inference_fleet_nixl_waits.Waits`.

NIXL's Python API sets the longest wait of that thread (pthrDelay) to 0, so it polls without end and uses one CPU core
for each idle worker. vLLM has no option for the wait, but imports the class named above in each worker.

The engine's Python imports a copy on the node, so this module uses only the standard library.
"""

from __future__ import annotations

import sys

try:
    from vllm.distributed.nixl_utils import NixlWrapper
except ImportError:  # outside of a worker
    NixlWrapper = None

MODULE = "inference_fleet_nixl_waits"
LONGEST_US = 10000  # an event ends the wait at once; NIXL checks in between for events that UCX may miss


def wait_for_events(bindings):
    """Make NIXL create agents whose progress thread waits. bindings: NIXL's nixlBind."""

    class Waiting(bindings.nixlAgentConfig):
        def __setattr__(self, name, value):
            super().__setattr__(name, LONGEST_US if (name, value) == ("pthrDelay", 0) else value)

    bindings.nixlAgentConfig = Waiting


class Waits:
    """What vLLM adds to its worker: nothing. Only the import has an effect."""


if NixlWrapper is not None:
    wait_for_events(sys.modules[NixlWrapper.__module__].nixlBind)
