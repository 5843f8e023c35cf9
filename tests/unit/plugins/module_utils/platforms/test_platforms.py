# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import cpu
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry as accelerators
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.cpu import share
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.host import System
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"


def sysroot(name):
    return str(FIXTURES / ("sysroot-" + name))


def detect(name):
    return accelerators.detect(sysroot=sysroot(name))


@pytest.fixture
def tree(tmp_path):
    """Copies a recorded tree, so that a test can change it: tree("one-node", {path: text or None to remove})."""

    def copy(name, changes):
        root = tmp_path / "sysroot"
        shutil.copytree(sysroot(name), root)
        for path, text in changes.items():
            if text is None:
                os.remove(root / path)
            else:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
        return str(root)

    return copy


# name: (vendor, model, generation, [(id, memory_mib, cores, numa, cpus)], warnings)
RECORDED = {
    "one-node": ("AMD", "AMD EPYC", "avx512_bf16", [(0, 24105, 2, 0, "0-1")], []),
    "two-nodes-gap": (
        "Intel",
        "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz",
        "avx512f",
        [(0, 65536, 8, 0, "0-3,8-11"), (1, 65536, 8, 2, "4-7,12-15")],
        [],
    ),
    "no-numa": ("ARM", "Kunpeng-920", "neon", [(0, 32768, 4, None, "0-3")], []),
    "cgroup2-quota": (
        "AMD",
        "AMD EPYC 9554",
        "avx512_bf16",
        [(0, 8192, 2, 0, "0-3"), (1, 8192, 3, 1, "4-7")],
        [
            "/sys/fs/cgroup/fleet.slice/cpu.max allows 5 CPUs of 8; cores are cut to 5.",
            "/sys/fs/cgroup/fleet.slice/memory.max limits memory to 16384 MiB of 65536 MiB.",
        ],
    ),
    "affinity": (
        "AMD",
        "AMD EPYC 9554",
        "avx512_bf16",
        [(0, 32768, 2, 0, "1-2"), (1, 32768, 1, 1, "6")],
        ["This process may run on CPUs 1-2,6 only (its affinity), of 0-7 online; only those are counted."],
    ),
    "offline-cpus": (
        "Intel",
        "Intel(R) Xeon(R) Platinum 8480+",
        "avx512_bf16",
        [(0, 32768, 6, 0, "0-2,4-6")],
        ["CPUs 3,7 are offline and are not counted."],
    ),
    "garbled": (
        "AMD",
        "AMD EPYC",
        "avx512_bf16",
        [(0, 8192, 2, 0, "0-1")],
        [
            "/proc/self/status is not understood: '0-one' in '0-one' is neither a number nor a range like 0-3",
            "/sys/devices/system/node/node1/cpulist is not understood: '3-2' in '3-2' is neither a number nor a range "
            "like 0-3",
            "/sys/fs/cgroup/a.slice/cpu.max is not understood: half",
            "/sys/fs/cgroup/a.slice/memory.max is not understood: plenty",
        ],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_trees(name):
    vendor, model, generation, devices, warnings = RECORDED[name]
    found = detect(name).as_dict()
    flags = found.pop("flags")
    assert flags == sorted(set(flags)) and len(flags) > 10
    names = ("id", "memory_mib", "cores", "numa", "cpus")
    assert found == {
        "accelerator": "cpu", "vendor": vendor, "model": model, "generation": generation, "driver": None,
        "devices": [dict(zip(names, one), health="ok", holders=[], core_ids=[]) for one in devices],
        "warnings": warnings, "lnc": None, "runtime": None,
    }  # fmt: skip


def test_the_affinity_of_this_process_counts():
    one = min(os.sched_getaffinity(0))
    program = (
        "import json, os; os.sched_setaffinity(0, {%d}); "
        "from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.registry import detect; "
        "print(json.dumps([[device.cores, device.cpus] for device in detect().devices if device.cores]))" % one
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True,
        env=dict(os.environ, PYTHONPATH=str(pathlib.Path(accelerators.__file__).parents[7])),
    )  # fmt: skip
    assert json.loads(done.stdout) == [[1, str(one)]]


def test_flags_are_those_that_all_processors_have(tree):
    text = pathlib.Path(sysroot("one-node"), "proc/cpuinfo").read_text()
    first, second = text.split("\n\n")[:2]
    root = tree("one-node", {"proc/cpuinfo": first + "\n\n" + second.replace(" avx512_bf16", "") + "\n\n"})
    found = accelerators.detect(sysroot=root)
    assert "avx512_bf16" not in found.flags
    assert found.generation == "avx512f"


def test_a_node_that_cannot_be_read_is_an_error(tmp_path):
    assert error(accelerators.detect, sysroot=str(tmp_path)).code == "cpu.unreadable"


def test_auto_takes_the_first_that_is_present(monkeypatch):
    class Special(cpu.Platform):
        here = True

        def present(self, system):
            return self.here

        def detect(self, system):
            return "special"

    monkeypatch.setattr(accelerators, "PLATFORMS", {"special": Special(), "cpu": cpu.Platform()})
    assert accelerators.detect() == "special"
    monkeypatch.setattr(Special, "here", False)
    assert accelerators.detect().accelerator == "cpu"


@pytest.mark.parametrize(
    ("name", "available"),
    [
        ("one-node", 24244848 // 1024),  # MemAvailable; the cgroups set no limit
        ("cgroup2-quota", 16384 - (8192 - 1024)),
        ("garbled", 8000000 // 1024),
    ],
)
def test_memory_for_new_processes(name, available):
    assert System(sysroot(name)).memory_available() == available


@given(
    st.lists(st.integers(min_value=0, max_value=500), min_size=1, max_size=9), st.integers(min_value=0, max_value=3000)
)
def test_shares_add_up_to_the_limit_and_nobody_gets_more_than_before(amounts, limit):
    shares = share(limit, amounts)
    assert sum(shares) == min(limit, sum(amounts))
    assert all(0 <= got <= had for got, had in zip(shares, amounts))
