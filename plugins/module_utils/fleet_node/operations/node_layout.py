# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What node_layout takes and does."""

from __future__ import annotations

from ..node import accounts

ARGUMENTS = {
    "root": {"type": "str", "default": ""},
    "user": {"type": "str"},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "keep": {"type": "list", "elements": "path", "default": []},
}


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    if params["state"] == "absent":
        return accounts.remove(params["root"], params["keep"], check_mode=check_mode)
    return accounts.ensure(params["root"], params["user"] or None, check_mode=check_mode)
