# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""FleetErrors as failed tasks."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail


def action_fail(error):
    """Return the AnsibleActionFail of a FleetError. The result of the task contains the code."""
    return AnsibleActionFail(error.message, result=error.details)
