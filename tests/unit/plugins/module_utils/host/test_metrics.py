# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics of servers in a file for node exporter."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import metrics


@pytest.fixture
def node(tmp_path):
    servers = tmp_path / "servers"
    servers.mkdir()
    for name in ("a", "b"):
        (servers / (name + ".json")).write_text("{}")

    def update(samples):
        metrics.update(str(tmp_path / "metrics"), str(servers), samples)
        text = (tmp_path / "metrics" / "inference-fleet.prom").read_text()
        return [line for line in text.splitlines() if not line.startswith("#")]

    return servers, update


def test_writers_keep_the_metrics_of_others(node, tmp_path):
    servers, update = node
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "inference-fleet.prom").write_bytes(b"\xff not metrics {{{\n")  # of somebody else
    first = {"fleet_server_verified": True, "fleet_server_converged": (True, {"hash": "1"})}
    update({"a": first, "b": {"fleet_server_verified": False}})
    assert update({"a": {"fleet_server_answers": False, "fleet_server_converged": (False, {"hash": "2"})}}) == [
        'fleet_server_verified{server="a"} 1', 'fleet_server_verified{server="b"} 0',
        'fleet_server_converged{server="a",hash="2"} 0', 'fleet_server_answers{server="a"} 0',
    ]  # fmt: skip
    (servers / "a.json").unlink()
    assert update({}) == ['fleet_server_verified{server="b"} 0']
