# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of npu-smi and files of the driver. The parsers are pure and never raise; `warn` is called with lines that are
not understood."""

from __future__ import annotations

import dataclasses
import re

BUS = re.compile(r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$")
NAMED = re.compile(r"^([0-9]{1,9})\s+([A-Za-z0-9]\S*)$")  # "0     910B3", "32768   310P3"
CHIP = re.compile(r"^([0-9]{1,9})(?:\s+([0-9]{1,9}))?$")  # "0", or "1     3" with the Phy-ID
USAGE = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*$")  # "3379 / 65536", "59693/ 65536"
FIELD = re.compile(r"^\s*([A-Za-z][^:]*?)\s*:\s*(.*?)\s*$")
NOTHING = ("", "NA", "N/A", "-")


@dataclasses.dataclass
class Chip:
    """A row pair of `npu-smi info`. phy: the Phy-ID, None if the table has no such column. bus: "" if the table
    has none. hbm: (used, total) MiB, None if it has none. holders: [{pid, command}]."""

    npu: int
    chip: int
    phy: int | None
    name: str
    health: str
    bus: str
    hbm: tuple | None
    holders: list = dataclasses.field(default_factory=list)


def cells(line):
    """The cells of a row "| a | b |", None for another line."""
    line = line.strip()
    return [cell.strip() for cell in line[1:-1].split("|")] if line[:1] == line[-1:] == "|" and len(line) > 1 else None


def parse_info(text, warn):
    """(version or None, [Chip]) of `npu-smi info`, in its order. Rows that are not understood are warned of."""
    version = re.search(r"npu-smi\s+(\S+)\s+Version:", text)
    chips, pending, in_processes = [], None, False
    for line in text.splitlines():
        row = cells(line)
        if not row or row[0].startswith(("npu-smi", "No running process")):
            continue
        if row[0].startswith(("NPU", "Chip")) or (len(row) == 4 and row[2] == "Bus-Id"):
            in_processes = len(row) > 1 and row[1] == "Process id"
            continue
        # newer boards have one chip, a column for the name, and no number in the second row
        if len(row) == 4 and not in_processes:
            place = row[0] or "0"
            row = ["%s %s" % (place, row[1]) if row[1] else place, *row[2:]]
        if in_processes:
            _add_holder(chips, row, line, warn)
        elif len(row) == 3 and _is_place(row[1]) and CHIP.match(row[0]) and pending:
            chip, phy = CHIP.match(row[0]).groups()
            usage = USAGE.search(row[2])
            hbm = (int(usage.group(1)), int(usage.group(2))) if usage and int(usage.group(2)) else None
            chips.append(Chip(pending[0], int(chip), None if phy is None else int(phy), *pending[1:],
                              row[1].lower() if BUS.match(row[1]) else "", hbm))  # fmt: skip
            pending = None
        elif len(row) == 3 and NAMED.match(row[0]) and not _is_place(row[1]):
            if pending:
                warn("npu-smi info: NPU %d has no second row." % pending[0])
            number, name = NAMED.match(row[0]).groups()
            pending = (int(number), name, row[1])
        else:
            warn("npu-smi info: this line is not understood: %s" % line.strip()[:120])
    if pending:
        warn("npu-smi info: NPU %d has no second row." % pending[0])
    return (version.group(1) if version else None), chips


def _is_place(cell):
    """Whether a cell is an address on the PCI bus, or shows that there is none, as in a virtual machine."""
    return bool(BUS.match(cell)) or cell.upper() in NOTHING


def _add_holder(chips, row, line, warn):
    where = CHIP.match(row[0])
    pid = re.match(r"^[0-9]{1,9}$", row[1]) if len(row) >= 3 else None
    owners = [one for one in chips if where and one.npu == int(where.group(1)) and
              one.chip == int(where.group(2) or 0)]  # fmt: skip
    if not pid or not owners:
        warn("npu-smi info: this process is not understood: %s" % line.strip()[:120])
        return
    owners[0].holders.append({"pid": int(row[1]), "command": row[2]})


def parse_map(text, warn):
    """{(NPU, chip): (logic id, Phy-ID or None)} of `npu-smi info -m`; controllers, which are no chips, left out."""
    found, columns = {}, []
    for line in text.splitlines():
        words = re.split(r"\s{2,}", line.strip())
        if "NPU ID" in words:
            columns = words
        elif line.strip() and columns:
            values = dict(zip(columns, line.split()))
            numbers = [values.get("NPU ID", ""), values.get("Chip ID", "0"), values.get("Chip Logic ID", "")]
            phy = values.get("Chip Phy-ID", "")
            if all(re.match(r"^[0-9]{1,9}$", number) for number in numbers):
                npu, chip, logic = map(int, numbers)
                found[npu, chip] = (logic, int(phy) if re.match(r"^[0-9]{1,9}$", phy) else None)
            elif numbers[2] != "-":
                warn("npu-smi info -m: this line is not understood: %s" % line.strip()[:120])
    return found


def parse_fields(text):
    """[{name: value}] of "name : value" lines, a new mapping for each repeated name: -l, -t board, usages, health."""
    found = [{}]
    for name, value in (match.groups() for match in map(FIELD.match, text.splitlines()) if match):
        if name in found[-1]:
            found.append({})
        found[-1][name] = value
    return found


def error_codes(text):
    """ "80E01801: node type=SOC, …" of `npu-smi info -t health`, "" if it has no error."""
    fields = parse_fields(text)[0]
    words = [fields.get(name, "") for name in ("Error Code", "Error Information")]
    return ": ".join(word for word in words if word.upper() not in NOTHING)


def parse_settings(text):
    """{name: value} of version.info or ascend_install.info."""
    pairs = (line.partition("=") for line in (text or "").splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _equals, value in pairs}
