# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/hardware_check.py: identifiers are replaced, and a part that fails does not end the others."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.tools import hardware_check

UUID = "8f4d2a3c-1b2e-4c5d-9e8f-0123456789ab"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("GPU 0: NVIDIA B200 (UUID: GPU-%s)" % UUID, "GPU 0: NVIDIA B200 (UUID: GPU-UUID)"),
        ("<serial>165</serial><board_id>0x1b00</board_id>", "<serial>SERIAL</serial><board_id>SERIAL</board_id>"),
        ("Serial Number : 2102C", "Serial Number : SERIAL"),
        ("<pdi>0x1234</pdi> GPU PDI : 0x1234", "<pdi>SERIAL</pdi> GPU PDI : SERIAL"),
        ("instance-id: i-0123456789abcdef0", "instance-id: INSTANCE"),
        ("link/ether 0a:1b:2c:3d:4e:5f brd", "link/ether MAC brd"),
        ("http://10.1.2.3:8000/v1", "http://ADDRESS:8000/v1"),
        ("http://127.0.0.1:8000, driver 580.105.08, aws-neuronx-dkms 2.31.7.0, 0.24.0.1.1.0", None),
        ("ok: [node-1] node-12 my.node-1 node-1.example", "ok: [host-1] node-12 my.node-1 host-2"),
    ],
)
def test_identifiers(given, expected):
    hosts = {"node-1": "host-1", "node-1.example": "host-2"}
    assert hardware_check.scrub(given, hosts) == (given if expected is None else expected)
