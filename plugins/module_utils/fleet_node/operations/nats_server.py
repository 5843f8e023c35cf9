# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nats_server takes and does."""

from __future__ import annotations

from ..shared_services import nats_server as members

ARGUMENTS = {
    "state": {"type": "str", "required": True, "choices": list(members.STATES)},
    "name": {"type": "str", "required": True},
    "members": {"type": "list", "elements": "dict", "required": True},
    "names": {"type": "list", "elements": "str", "default": []},
    "tls": {"type": "dict"},
    "tls_given": {"type": "bool", "default": False},
    "renew_days": {"type": "int", "default": 30},
    "login": {"type": "str", "default": "", "no_log": True},
    "jetstream": {"type": "bool", "default": False},
    "client_port": {"type": "int", "default": 4222},
    "cluster_port": {"type": "int", "default": 6222},
    "monitor_port": {"type": "int", "default": 8222},
    "unit": {"type": "str", "default": "nats.service"},
    "files": {"type": "dict", "default": {}},
    "programs": {"type": "list", "elements": "path", "default": []},
    "version": {"type": "str", "default": ""},
    "container": {"type": "dict", "default": {}},
    "timeout_s": {"type": "int", "default": 120},
}


def run(params, check_mode):
    """What a member of a NATS cluster did. Raises FleetError."""
    return members.run(params, check_mode)
