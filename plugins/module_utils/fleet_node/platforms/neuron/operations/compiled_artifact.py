# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What compiled_artifact takes and does."""

from __future__ import annotations

from ....errors import FleetError
from .. import artifact_archives

ARGUMENTS = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "state": {"type": "str", "choices": ["exported", "imported"], "default": "imported"},
    "source": {"type": "path"},
    "remote_source": {"type": "bool", "default": False},
    "destination": {"type": "path"},
    "remote_destination": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
}
RULES = {"required_if": [("state", "exported", ("destination",))]}


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    try:
        if params["state"] == "exported":
            return artifact_archives.export(
                params["servers"], params["destination"], params["force"], check_mode=check_mode
            )
        return artifact_archives.take_over(params["servers"], params["source"], check_mode=check_mode)
    except OSError as error:
        raise FleetError(
            "artifact.cannot-copy",
            "The compiled artifacts cannot be exported or imported: %s. Correct the path or its permissions.",
            (error,),
        ) from error
