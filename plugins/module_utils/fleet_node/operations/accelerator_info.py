# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What accelerator_info takes and does."""

from __future__ import annotations

from ..platforms.registry import detect

ARGUMENTS = {"vendor": {"type": "str", "default": "auto"}}
READS = True


def run(params, check_mode):
    """What accelerators the node has. Raises FleetError."""
    return {"changed": False, **detect(params["vendor"]).as_dict()}
