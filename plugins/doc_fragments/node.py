# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation that modules share: of a node's servers, read-only modules, measurements, and members of services."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  root:
    description:
      - An absolute path that all files of the fleet lie below, empty for the system's own C(/etc), C(/var) and C(/run).
    type: path
    default: ""
  manager:
    description:
      - The service manager that starts the servers and keeps them up.
      - V(auto) is V(systemd) where the node was booted with it and O(root) is empty, V(supervisord) otherwise.
      - V(systemd) is for the system's own servers and needs an empty O(root) and root's rights.
    type: str
    default: auto
    choices: [auto, systemd, supervisord]
  toolkit:
    description:
      - A virtual environment on the node that contains supervisord, C(var/lib/inference-fleet/toolkit) below O(root) by
        default.
    type: path
"""

    READ_ONLY = r"""
attributes:
  check_mode:
    description: Nothing is changed; it returns the same in check mode.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: N/A
  idempotent:
    description: Nothing is changed.
    support: full
"""

    MEASURED = r"""
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
      - Directory on the control node for the reports, with the history in C(measurements). An empty string keeps none.
      - By default as for M(inference.fleet.report).
    type: path
"""

    SERVICE = r"""
options:
  name:
    description: Name of this member, which O(members) must include.
    type: str
    required: true
  members:
    description: All members, each with C(name) and C(address).
    type: list
    elements: dict
    required: true
  names:
    description: Names and addresses for which the certificate must be valid.
    type: list
    elements: str
    default: []
  tls:
    description: Paths C(ca), C(certificate) and C(key) of PEM files. Empty for connections without TLS.
    type: dict
  tls_given:
    description: Whether the operator provides the certificates. Unusable certificates are then an error.
    type: bool
    default: false
  renew_days:
    description: A certificate that ends in fewer days must be renewed.
    type: int
    default: 30
  programs:
    description: Programs that must be installed.
    type: list
    elements: path
    default: []
  container:
    description:
      - The image that the unit runs, with C(engine), C(image) and C(digest). Empty if the unit runs a program of the
        node.
    type: dict
    default: {}
  version:
    description: The planned release. A running release that it cannot replace in place is an error.
    type: str
    default: ''
  files:
    description: Contents of its files by path, without secrets.
    type: dict
    default: {}
  timeout_s:
    description: Seconds to wait until the member is ready.
    type: int
    default: 120
"""
