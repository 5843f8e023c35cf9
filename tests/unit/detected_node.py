# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node below a folder, whose accelerators are detected, and changes of what its tools print."""

from __future__ import annotations

import re

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry
from ansible_collections.inference.fleet.tests.unit.engines import plans
from hypothesis import strategies as st

WORDS = ["N/A", "[N/A]", "ERR!", "GPU is lost", "[Unknown Error]", "[GPU requires reset]", "Insufficient Permissions",
         "", "-1", "99999999999999999999", "0", "\u00b2", "&", "<", "]]>", "\x00", "Enabled", "Yes"]  # fmt: skip
VALUE = re.compile(r"(?<=>)[^<>\n]*(?=<)|(?<=, )[^,\n]+|(?<=\| )[^|\n]+")  # in XML, CSV and tables


class DetectedNode:
    """vendor: the platform that detect() asks for. root: the folder, a string as modules get it; path: as a Path."""

    vendor = "auto"

    def __init__(self, root):
        self.path, self.root = root, str(root)

    def write(self, path, text="", mode=0o644):
        place = self.path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def installed(self, packages):
        """dpkg knows of these packages: {name: version}."""
        blocks = ("Package: %s\nStatus: install ok installed\nVersion: %s\n" % item for item in packages.items())
        self.write("/var/lib/dpkg/status", "\n".join(blocks))

    def detect(self, vendor=None):
        return registry.detect(vendor or self.vendor, self.root)

    def refused(self):
        """Return the FleetError of detect()."""
        return plans.error(self.detect)


@st.composite
def mangled(draw, texts):
    """One of the recorded texts with lines gone, doubled, swapped or with other words in them, or cut off."""
    lines = texts[draw(st.sampled_from(sorted(texts)))].splitlines(keepends=True)
    for _number in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, max(len(lines) - 1, 0)))
        how = draw(st.sampled_from(["drop", "double", "word", "cut", "insert"]))
        if not lines:
            break
        if how == "drop":
            del lines[place]
        elif how == "double":
            lines.insert(place, lines[place])
        elif how == "word":
            word = draw(st.sampled_from(WORDS))
            lines[place] = VALUE.sub(lambda _found, word=word: word, lines[place])
        elif how == "insert":
            lines.insert(place, draw(st.text(max_size=20)) + "\n")
        else:
            lines = ["".join(lines)[: draw(st.integers(0, len("".join(lines))))]]
    return "".join(lines)
