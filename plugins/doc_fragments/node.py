# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation that modules for a node's servers share."""

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
