# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What etcd_member takes and does."""

from __future__ import annotations

from ..shared_services import etcd_member as members

ARGUMENTS = {
    "state": {"type": "str", "required": True, "choices": list(members.STATES)},
    "name": {"type": "str", "required": True},
    "members": {"type": "list", "elements": "dict", "required": True},
    "names": {"type": "list", "elements": "str", "default": []},
    "tls": {"type": "dict"},
    "tls_given": {"type": "bool", "default": False},
    "renew_days": {"type": "int", "default": 30},
    "client_port": {"type": "int", "default": 2379},
    "peer_port": {"type": "int", "default": 2380},
    "data_dir": {"type": "path", "default": "/var/lib/etcd"},
    "unit": {"type": "str", "default": "etcd.service"},
    "files": {"type": "dict", "default": {}},
    "programs": {"type": "list", "elements": "path", "default": []},
    "version": {"type": "str", "default": ""},
    "container": {"type": "dict", "default": {}},
    "initial": {"type": "path", "default": "/etc/etcd/initial.env"},
    "empty": {"type": "list", "elements": "str", "default": []},
    "timeout_s": {"type": "int", "default": 120},
}


def run(params, check_mode):
    """What a member of an etcd cluster did. Raises FleetError."""
    return members.run(params, check_mode)
