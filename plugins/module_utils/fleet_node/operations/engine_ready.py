# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engine_ready takes and does: it is polled until every server has answered a completion."""

from __future__ import annotations

from ..errors import FleetError
from ..node.redact import Redactor
from ..servers.model import SERVERS_ARGUMENTS, Node
from ..servers.readiness import check_ready

ARGUMENTS = {
    **SERVERS_ARGUMENTS,
    "timeout": {"type": "int", "default": 30},
    "deployed": {"type": "bool", "default": False},
    "restarts": {"type": "int"},
    "secrets": {"type": "dict", "no_log": True, "default": {}},
}


def run(params, check_mode):
    """Which servers are ready; a FleetError while one is not, and a final one where it will not be.

    `secrets` are masked in both: a server that empties its own file of secrets could log them otherwise.
    """
    given = (value if isinstance(value, list) else [value] for value in params["secrets"].values())
    redactor = Redactor(str(one) for values in given for one in values if one is not None)
    try:
        found = check_ready(
            Node.of_parameters(params), params["servers"], params["only"], timeout=params["timeout"], check=check_mode,
            deployed=params["deployed"], restarts=params["restarts"],
        )  # fmt: skip
        return redactor.value(found)
    except FleetError as error:
        masked = error.rewritten(redactor.text)
        masked.details = redactor.value(masked.details)
        raise masked from None
