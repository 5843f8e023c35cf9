# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accelerators without a platform are named; graphics of a processor or a BMC are not accelerators."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import preflight
from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

GIB = 1 << 30
INTEL = {"vendor": "0x8086", "class": "0x038000"}
MI100 = {"vendor": "0x1002", "class": "0x038000", "device": "0x738c", "mem_info_vram_total": 32 * GIB, "numa_node": 1}


@pytest.fixture
def node(tmp_path):
    """node(*devices): the sysroot of a node with these devices on its PCI bus."""

    def make(*devices):
        root = tmp_path / "sysroot"
        shutil.copytree(CLONE / "tests/unit/fixtures/sysroot-one-node", root)
        for number, device in enumerate(devices):
            folder = root / "sys/bus/pci/devices" / ("0000:%02x:00.0" % number)
            folder.mkdir(parents=True)
            for key, value in device.items():
                (folder / key).write_text("%s\n" % value)
        return str(root)

    return make


@pytest.mark.parametrize(
    ("device", "vendor", "model", "memory"),
    [
        (MI100, "AMD", "Instinct MI100", 32768),
        ({**MI100, "product_name": "AMD Instinct MI100 OAM"}, "AMD", "AMD Instinct MI100 OAM", 32768),
        ({"vendor": "0x1002", "class": "0x038000", "device": "0x9999"}, "AMD", "PCI 0x1002:0x9999", None),
        ({**MI100, "class": "0x030000", "device": "0x744c"}, "AMD", "PCI 0x1002:0x744c", 32768),
        ({"vendor": "0x1da3", "class": "0x120000", "device": "0x1020"}, "Intel Habana", "Gaudi 2", None),
        ({**INTEL, "device": "0x0bd5", "lmem_total_bytes": GIB}, "Intel", "PCI 0x8086:0x0bd5", None),
        ({"vendor": "0x1e52", "class": "0x120000", "device": "0x401e"}, "Tenstorrent", "PCI 0x1e52:0x401e", None),
    ],
)
def test_an_accelerator_without_a_platform_is_named(node, device, vendor, model, memory):
    found = registry.detect("auto", node(device, device))
    assert (found.accelerator, found.vendor, found.model) == ("unsupported", vendor, model)
    assert [(each.id, each.memory_mib) for each in found.devices] == [(0, memory), (1, memory)]
    assert "2 x %s (%s)" % (vendor, model) in found.warnings[0]


@pytest.mark.parametrize(
    "device",
    [
        {"vendor": "0x1a03", "class": "0x030000", "device": "0x2000"},
        {"vendor": "0x1002", "class": "0x030000", "device": "0x164e", "mem_info_vram_total": GIB // 2},
        {**INTEL, "device": "0x9a60"},
        {"vendor": "0x8086", "class": "0x030000", "device": "0x4c8a"},
        {"vendor": "0x1d0f", "class": "0x020000", "device": "0xec20"},
        {},
    ],
    ids=["BMC", "graphics of a processor", "without memory", "with a screen", "network", "nothing to read"],
)
def test_other_devices_are_not_accelerators(node, device):
    assert registry.detect("auto", node(device)).accelerator == "cpu"


def test_preflight_names_accelerators_without_a_platform(node):
    root = node(MI100)
    result = preflight.preflight(platform="cpu", sysroot=root, root=str(root) + "/r")
    assert any("1 x AMD (Instinct MI100)" in warning for warning in result["warnings"])
    for platform in ("nvidia", "neuron", "ascend"):
        found = error(preflight.preflight, platform=platform, sysroot=root, root=str(root) + "/r")
        (message,) = [each["message"] for each in found.details["problems"] if each["check"] == "hardware"]
        assert "1 x AMD (Instinct MI100)" in message
