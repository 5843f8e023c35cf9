# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What shared_libraries takes and does."""

from __future__ import annotations

from ..node.shared_libraries import missing_libraries

ARGUMENTS = {"libraries": {"type": "list", "elements": "str", "required": True}}


def run(params, check_mode):
    """The result of the module: {changed, message, missing: [names]}. Raises FleetError. Nothing is changed."""
    missing = missing_libraries(params["libraries"])
    message = "missing: %s" % ", ".join(missing) if missing else "all are there"
    return {"changed": bool(missing) and check_mode, "message": message, "missing": missing}
