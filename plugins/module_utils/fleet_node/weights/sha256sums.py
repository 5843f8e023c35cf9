# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of checksums as sha256sum writes it."""

from __future__ import annotations

import re

from ..errors import FleetError
from . import manifest as manifests

LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def parse(text, where):
    """{path: sha256} of the list `text`; `where` it is from, for messages. Raises FleetError."""
    found = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if not match or not manifests.is_inside(match[2]):
            raise FleetError(
                "sha256sums.invalid",
                "%s, line %d is no line of a list of checksums; allowed: 64 hexadecimal digits, two blanks and the "
                "path of a file below the checkpoint's directory, as `sha256sum *` writes it there.",
                (where, number),
            )
        if found.setdefault(match[2], match[1].lower()) != match[1].lower():
            raise FleetError(
                "sha256sums.invalid",
                "%s, line %d has another checksum of %s than a line before. Correct the list.",
                (where, number, match[2]),
            )
    if not found:
        raise FleetError(
            "sha256sums.invalid", "%s names no file. Write it by `sha256sum *` in a directory that is right.", (where,)
        )
    return found


def read(path):
    """{path: sha256} of the list in a file. Raises FleetError."""
    try:
        with open(path, encoding="utf-8") as stream:
            return parse(stream.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(
            "sha256sums.invalid",
            "sha256sums is %s, which can be read neither on the controller nor on this node: %s. Check the path.",
            (path, getattr(error, "strerror", None) or "it is no text"),
        ) from error


def check(request, folder, records):
    """Raise FleetError where files {name: {sha256, or None}} are not what the user's list says."""
    if not (request.sums and records):
        return
    wrong = {
        name: "has sha256 %s" % records[name]["sha256"] if name in records else "is missing"
        for name, sha256 in request.sums.items()
        if records.get(name, {"sha256": ""})["sha256"] not in (None, sha256)
    }
    wrong.update(
        {name: "is not in the list" for name in records if name.endswith(manifests.SHARD) and name not in request.sums}
    )
    if wrong:
        texts = manifests.faults_text(wrong)
        raise FleetError(
            "sha256sums.differs",
            "%s does not hold what the list of sha256sums says: %s. Bring these files again, or check the list (in a "
            "play: model_weights_sha256sums).",
            (folder, texts),
            details={"rotted": sorted(wrong)},
        )


def filled(request, wanted):
    """The wanted files with the checksums of the user's list."""
    if not (request.sums and wanted):
        return wanted
    return {name: {**one, "sha256": request.sums.get(name, one["sha256"])} for name, one in wanted.items()}
