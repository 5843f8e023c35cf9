# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node below a folder, whose accelerators are detected."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms import registry


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
        with pytest.raises(FleetError) as caught:
            self.detect()
        return caught.value
