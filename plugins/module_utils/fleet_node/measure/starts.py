# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tells one start of a server from another: a measurement during which it changes says nothing."""

from __future__ import annotations

from ..servers.model import Observed
from ..servers.observe import observe


def starts_of(node, entries):
    """{name: JSON} of a node's planned servers, as the guard recorded them, and whether that is what runs now: one that
    died has the record of before until it is started again. entries: {name: plan entry}."""
    observed = observe(node.paths, node.manager, entries)
    found = {}
    for name in entries:
        one = observed.get(name) or Observed(name)
        state = one.state if isinstance(one.state, dict) else {}
        found[name] = [
            state.get("hash"), state.get("pid"), state.get("ticks"), state.get("started"), one.fresh,
            sorted(container.id for container in one.containers if container.running),
        ]  # fmt: skip
    return found


def changed(before, after):
    """Names of those that are not what they were, sorted."""
    return sorted(name for name, start in after.items() if before.get(name) != start)
