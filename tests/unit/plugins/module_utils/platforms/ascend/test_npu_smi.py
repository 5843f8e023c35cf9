# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is made of what npu-smi prints: every sample whole, nothing raises, nothing is taken for zero."""

from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import ascend
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).resolve().parents[4] / "fixtures" / "ascend"


def read(name):
    return (FIXTURES / name).read_text()


def parsed(text):
    warnings = []
    version, chips = ascend.parse_info(text, warnings.append)
    return version, chips, warnings


@pytest.mark.parametrize(
    ("name", "version", "count", "held"),
    [
        ("info-a2-24.1.txt", "24.1.rc3", 8, {3: (632268, "python3.1")}),
        ("info-a2-26.1.txt", "26.1.0", 8, {3: (632268, "python3.1")}),
        ("info-a3-24.1.txt", "24.1.rc3.7", 16, {5: (485946, "VLLMWorker_TP")}),
        ("info-a3-26.0.txt", "26.0.rc2", 16, {5: (485946, "VLLMWorker_TP")}),
    ],
)
def test_every_table(name, version, count, held):
    found, chips, warnings = parsed(read(name))
    assert (found, len(chips), warnings) == (version, count, [])
    assert {one.health for one in chips} == {"OK"}
    assert {one.hbm[1] for one in chips} == {65536}
    assert all(re.match(r"^0000:[0-9a-f]{2}:00\.0$", one.bus) for one in chips)
    assert {place: (one.holders[0]["pid"], one.holders[0]["command"]) for place, one in enumerate(chips)
            if one.holders} == held  # fmt: skip
    if count == 8:
        assert [(one.npu, one.chip, one.phy, one.name) for one in chips] == [
            (number, 0, None, "910B3") for number in range(8)
        ]
        assert chips[3].hbm == (59693, 65536)  # no space before the slash
    else:
        assert [(one.npu, one.chip, one.phy) for one in chips] == [(n // 2, n % 2, n) for n in range(16)]


def test_the_table_of_the_950():
    """One chip a board, a column for the name, and in a virtual machine no place on the bus."""
    version, chips, warnings = parsed(read("info-950.txt"))
    assert (version, warnings) == ("25.7.rc1", [])
    assert [(one.npu, one.chip, one.phy, one.name, one.health, one.bus, one.hbm) for one in chips] == [
        (0, 0, None, "Ascend950PR", "Alarm", "0000:71:00.0", (90633, 114688)),
        (1, 0, None, "Ascend950PR", "OK", "", (4857, 98304)),
    ]
    assert [one.holders for one in chips] == [[{"pid": 2066378, "command": "pytest"}], []]


def test_npus_with_numbers_of_five_digits():
    version, chips, warnings = parsed(read("info-310p.txt"))
    assert (version, warnings) == ("25.2.0", [])
    assert [(one.npu, one.chip, one.phy, one.name, one.hbm) for one in chips] == [
        (32768, 0, 0, "310P3", (1529, 44280)), (32768, 1, 1, "310P3", (1412, 43693)),
    ]  # fmt: skip
    assert chips[1].holders == [{"pid": 4711, "command": "python3"}]
    table = "NPU ID  Chip ID  Chip Logic ID  Chip Name\n32768   0        0              310P3\n"
    assert ascend.parse_map(table, pytest.fail) == {(32768, 0): (0, None)}
    newer = "NPU ID  Slot ID  Chip Logic ID  Chip Phy-ID  Chip Name\n3  7  2  2  Ascend950PR\n"
    assert ascend.parse_map(newer, pytest.fail) == {(3, 0): (2, 2)}


def test_the_maps():
    def mapped(name):
        return ascend.parse_map(read(name), pytest.fail)

    assert mapped("map-a2.txt") == {(number, 0): (number, None) for number in range(8)}
    assert mapped("map-a3.txt") == {(number // 2, number % 2): (number, number) for number in range(16)}


ROW = "| 0     %s               | OK            | 97.5        41                0    / 0             |\n"
PLACE = "| 0                         | 0000:%s:00.0  | 0           0    / 0          %s         |\n"


HOLDER = ROW % "910B3" + PLACE % ("C1", "3379 / 65536")
OLD = "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
NEW = "| NPU     Chip       | Process id    | Process name       | Process memory(MB)    | Process id in container |\n"
PROCESSES = [
    (OLD + "| 0       0                 | 632268        | python3.1…               | 56314                   |\n",
     [{"pid": 632268, "command": "python3.1…"}]),
    (NEW + "| 0       0          | 485946        | pytest             | 5175                  | NA            |\n",
     [{"pid": 485946, "command": "pytest"}]),
    (NEW + "| 0       0          | 1002          | python             | 512                   | 101           |\n",
     [{"pid": 1002, "command": "python"}]),
    (NEW.replace("| Process id in", "|Process id in") + "| No running processes found in NPU 0        |\n", []),
    (OLD + "| No running processes found in NPU 0                                                            |\n", []),
    (OLD + 2 * "| 0       0                 | 7             | a                        | 1                       |\n",
     [{"pid": 7, "command": "a"}] * 2),
]  # fmt: skip


@pytest.mark.parametrize(("table", "holders"), PROCESSES)
def test_processes_of_old_and_new_tables(table, holders):
    _version, (chip,), warnings = parsed(HOLDER + table)
    assert (chip.holders, warnings) == (holders, [])


def test_who_holds_a_chip_that_no_table_describes_is_told():
    line = "| 5       0                 | 632268        | python3.1                | 56314                   |"
    assert parsed(HOLDER + OLD + line)[2] == ["npu-smi info: this process is not understood: %s" % line]


def test_files_of_the_driver():
    assert ascend.parse_settings(read("driver-version.info"))["Version"] == "25.0.rc1.1"


def test_a_row_that_is_broken_is_told_and_its_neighbours_stay():
    text = read("info-a2-24.1.txt").replace("0000:81:00.0  ", "not an address")
    _version, chips, warnings = parsed(text)
    assert [one.npu for one in chips] == [0, 1, 3, 4, 5, 6, 7]
    assert any("not an address" in warning for warning in warnings)


def test_another_layout_is_told():
    text = "| NPU ID | Name        | Health | Power(W) |\n| 3      | Ascend950DT | OK     | 100.0    |\n"
    assert parsed(text)[1:] == ([], ["npu-smi info: NPU 3 has no second row."])


NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.suffix in (".txt", ".info"))


@given(
    name=st.sampled_from(NAMES), junk=st.text(max_size=20), data=st.data(),
    cut=st.sampled_from(["delete", "insert", "replace", "truncate"]),
)  # fmt: skip
def test_changed_text_never_raises_and_no_chip_has_no_memory(name, junk, data, cut):
    text = read(name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    text = {"delete": text[:start] + text[end:], "insert": text[:start] + junk + text[start:],
            "replace": text[:start] + junk + text[end:], "truncate": text[:start]}[cut]  # fmt: skip
    _version, chips, _warnings = parsed(text)
    assert all(chip.hbm is None or chip.hbm[1] > 0 for chip in chips)
    ascend.parse_map(text, lambda message: None)
    ascend.error_codes(text)
    ascend.parse_settings(text)
