# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/hardware_check.py: identifiers are replaced, and a part that fails does not end the others."""

from __future__ import annotations

import json
import os
import sys
import tarfile

import pytest
import yaml
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tools import hardware_check

UUID = "8f4d2a3c-1b2e-4c5d-9e8f-0123456789ab"
SMI = """<nvidia_smi_log><driver_version>580.105.08</driver_version><gpu><serial>1652123456789</serial>
<uuid>GPU-%s</uuid><board_id>0x1b00</board_id></gpu></nvidia_smi_log>""" % UUID  # fmt: skip


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


def a_play(folder, name, tasks):
    """A playbook in place of a part; its path."""
    path = folder / name
    path.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    return str(path)


def test_a_folder_of_a_local_deployment(tmp_path, monkeypatch):
    """A real play records a stand-in for nvidia-smi; a play that fails stands in for site.yml."""
    script(tmp_path / "nvidia-smi", "cat %s\n" % (tmp_path / "recorded.xml"))
    (tmp_path / "recorded.xml").write_text(SMI)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    fails = a_play(tmp_path, "fails.yml", [{"ansible.builtin.fail": {"msg": "10.1.2.3 on the-host"}}])
    report = {"content": "of the-host", "dest": "{{ fleet_reports_dir }}/the-host.json"}
    folder = {"path": "{{ fleet_reports_dir }}", "state": "directory"}
    writes = a_play(tmp_path, "writes.yml", [{"ansible.builtin.file": folder}, {"ansible.builtin.copy": report}])
    parts = (hardware_check.PARTS[0], ("site", fails, {}), ("verify", writes, {"fleet_verify": "full"}))
    monkeypatch.setattr(hardware_check, "PARTS", parts)
    inventory = tmp_path / "hosts.yml"
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"the-host": host}}}))

    found = tmp_path / "found"
    assert hardware_check.main(["-i", str(inventory), "--output", str(found), "--no-become"]) == 1
    recorded = (found / "hosts" / "host-1" / "nvidia-smi.txt").read_text()
    assert "580.105.08" in recorded and "GPU-UUID" in recorded and "<serial>SERIAL<" in recorded
    assert not (found / "hosts" / "host-1" / "npu-smi.txt").exists()  # this machine has no such program
    assert "ADDRESS on host-1" in (found / "site.log").read_text()
    assert (found / "reports" / "host-1.json").read_text() == "of host-1"
    summary = json.loads((found / "summary.json").read_text())
    assert {name: part["status"] for name, part in summary["parts"].items()} == {"tools": 0, "site": 2, "verify": 0}
    with tarfile.open(str(found) + ".tar.gz") as archive:
        assert "found/hosts/host-1/nvidia-smi.txt" in archive.getnames()
    assert not [path for path in found.rglob("*") if path.is_file() and "the-host" in path.read_text()]
