# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation that modules which measure servers share."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  tool_version:
    description: Version of the tool, for the result.
    type: str
  wait_s:
    description: Seconds to wait for the end of the job before the module returns.
    type: int
    default: 5
  deployment:
    description: The recipe as resolved for this host, for the result. It is not sent to the node.
    type: dict
    default: {}
  hardware:
    description: As declared in C(fleet_hardware), for the result. It is not sent to the node.
    type: dict
    default: {}
  head:
    description: Filled in by the action plugin, with the keys of the result about recipe and hardware.
    type: dict
    default: {}
  caller:
    description: Filled in by the action plugin, with a value that all calls of a run share.
    type: str
    default: ''
  reports_dir:
    description:
      - Directory on the controller for the reports, with the history in C(measurements). An empty string keeps none.
      - By default as for M(inference.fleet.report).
    type: path
"""
