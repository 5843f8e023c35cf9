# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that look at a node, as Ansible runs them."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import host as host_operations
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import servers as server_operations
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import detect
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import hardware
from ansible_collections.inference.fleet.tests.unit.operating import operate


@pytest.mark.parametrize("check_mode", [True, False])
def test_accelerator_info_returns_the_form(warnings, check_mode):
    form = detect().as_dict()
    expected = form.pop("warnings")
    assert operate("accelerator_info", check_mode) == dict(form, changed=False)
    assert warnings == expected
    assert operate("accelerator_info", check_mode, vendor="cpu")["devices"] == form["devices"]


def test_accelerator_info_shows_what_is_warned_of(warnings, monkeypatch):
    tree = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "sysroot-offline-cpus"
    monkeypatch.setattr(host_operations, "detect", lambda vendor: detect(vendor, str(tree)))
    assert "warnings" not in operate("accelerator_info")
    assert warnings == ["CPUs 3,7 are offline and are not counted."]


@pytest.mark.parametrize("check_mode", [True, False])
def test_node_preflight(tmp_path, check_mode):
    result = operate(
        "node_preflight", check_mode, root=str(tmp_path), platform="cpu", servers=[],
        hardware={"accelerator": "cpu", "count": "1"}, needs={"accelerators": ["cpu"], "host_memory_gib": 0.1},
    )  # fmt: skip
    assert result == {"changed": False, "accelerators": detect().as_dict(), "problems": [], "unchecked": []}
    assert list(tmp_path.iterdir()) == []
    result = operate("node_preflight", check_mode, root=str(tmp_path), platform="abacus", needs={"cpu_flags": ["warp"]})
    assert [problem["check"] for problem in result["problems"]] == ["hardware", "cpu_flags"]
    assert (result["failed"], result["code"]) == (True, "preflight.problems")
    result = operate("node_preflight", platform="cpu", needs={"teraflops": 7})
    assert result["failed"] and "needs.teraflops" in result["msg"]


def test_preflight_takes_all_that_fleet_hardware_may_have():
    """A key that the plan takes and the module refuses would end every play of the host."""
    options = server_operations.NODE_PREFLIGHT["hardware"]["options"]
    assert set(options) == set(hardware.KEYS)
