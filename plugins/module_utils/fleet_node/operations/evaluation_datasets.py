# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What evaluation_datasets takes and does."""

from __future__ import annotations

import os

from ..measure import datasets

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "evals": {"type": "list", "elements": "str", "required": True},
    "checksums": {"type": "dict", "default": {}},
}
READS = True


def run(params, check_mode):
    """What datasets are there. Raises FleetError."""
    if check_mode and not os.path.isdir(params["path"]):
        return {"changed": False, "datasets": {}}
    found = datasets.look(params["path"], params["evals"], params["checksums"])
    return {"changed": False, "datasets": found}
