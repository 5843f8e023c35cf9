# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of checksums in the format of sha256sum."""

from __future__ import annotations

import re

from ..errors import FleetError
from . import manifest as manifests

LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def parse(text, where):
    """{path: sha256} of a list. where: its place, for messages. Raises FleetError."""
    found = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if not match or not manifests.is_inside(match[2]):
            raise _invalid(where, "line %d is not 64 hexadecimal digits, two blanks and a relative path" % number)
        if found.setdefault(match[2], match[1].lower()) != match[1].lower():
            raise _invalid(where, "line %d has another checksum of %s than a line before" % (number, match[2]))
    if not found:
        raise _invalid(where, "it names no file")
    return found


def read(path):
    """{path: sha256} of the list in a file. Raises FleetError."""
    try:
        with open(path, encoding="utf-8") as stream:
            return parse(stream.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise _invalid(path, "it can be read neither on the control node nor on this node: %s" % why) from error


def _invalid(where, what):
    return FleetError(
        "weights.sha256sums-invalid",
        "The list of checksums %s cannot be used: %s. Write it with `sha256sum *` in a directory that is right, or "
        "correct its path.",
        (where, what),
    )
