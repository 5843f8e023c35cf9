# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""FleetErrors as failed tasks."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail


def action_fail(error):
    """The AnsibleActionFail of a FleetError; the task's result has its code."""
    return AnsibleActionFail(error.message, result=error.details)
