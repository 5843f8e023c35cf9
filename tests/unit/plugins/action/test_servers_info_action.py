# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import types

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.servers import engine_servers_info

LOADING = {"name": "server-1", "ready": False, "reason": "loading"}
READY = {"name": "server-0", "ready": True}


@pytest.mark.parametrize(
    ("probe", "servers", "reason"),
    [(True, [READY, LOADING], "server-1: loading"), (True, [READY], None), (False, [READY, LOADING], None)],
)
def test_a_task_that_polls_has_a_reason_when_its_retries_end(probe, servers, reason):
    action = types.SimpleNamespace(
        _task=types.SimpleNamespace(register="seen"), call=lambda *_given: {"servers": servers}
    )
    found = engine_servers_info(action, {"probe": probe, "secrets": {}}, {"inventory_hostname": "node"})
    assert ("msg" in found) == bool(reason)
    assert reason is None or reason in found["msg"]
