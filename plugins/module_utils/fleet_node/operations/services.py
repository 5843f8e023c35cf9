# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on members of etcd and NATS, and on their certificates."""

from __future__ import annotations

from ..discover import Operation
from ..shared_services import certificates, etcd_member, nats_server

MEMBER = {  # of a cluster of either service
    "name": {"type": "str", "required": True},
    "members": {"type": "list", "elements": "dict", "required": True},
    "names": {"type": "list", "elements": "str", "default": []},
    "tls": {"type": "dict"},
    "tls_given": {"type": "bool", "default": False},
    "renew_days": {"type": "int", "default": 30},
    "files": {"type": "dict", "default": {}},
    "programs": {"type": "list", "elements": "path", "default": []},
    "version": {"type": "str", "default": ""},
    "container": {"type": "dict", "default": {}},
    "timeout_s": {"type": "int", "default": 120},
}

ETCD_MEMBER = {
    **MEMBER,
    "state": {"type": "str", "required": True, "choices": list(etcd_member.STATES)},
    "client_port": {"type": "int", "default": 2379},
    "peer_port": {"type": "int", "default": 2380},
    "data_dir": {"type": "path", "default": "/var/lib/etcd"},
    "unit": {"type": "str", "default": "etcd.service"},
    "initial": {"type": "path", "default": "/etc/etcd/initial.env"},
    "empty": {"type": "list", "elements": "str", "default": []},
    "leaving": {"type": "dict", "default": {}},
}

NATS_SERVER = {
    **MEMBER,
    "state": {"type": "str", "required": True, "choices": list(nats_server.STATES)},
    "login": {"type": "str", "default": "", "no_log": True},
    "jetstream": {"type": "bool", "default": False},
    "client_port": {"type": "int", "default": 4222},
    "cluster_port": {"type": "int", "default": 6222},
    "monitor_port": {"type": "int", "default": 8222},
    "unit": {"type": "str", "default": "nats.service"},
}

SERVICE_CERTIFICATE = {
    "path": {"type": "path", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
    "renew_days": {"type": "int", "default": 30},
    "endpoints": {"type": "list", "elements": "str", "default": []},
}


def service_certificate(params, _check_mode):
    """Why a client's certificate must be made, as `reasons`; [] if it can be used. Raises FleetError."""
    found = certificates.faults_of_client(params["path"], params["names"], params["renew_days"], params["endpoints"])
    return {"changed": bool(found), "reasons": found, "diff": {"before": "\n".join(found), "after": ""}}


def certificate_expiry(params, _check_mode):
    """The end of a certificate's validity as `expires`, None without a certificate. Raises FleetError."""
    return {"changed": False, "expires": certificates.expiry(params["path"])}


OPERATIONS = {
    "etcd_member": Operation(ETCD_MEMBER, etcd_member.run),
    "nats_server": Operation(NATS_SERVER, nats_server.run),
    "service_certificate": Operation(
        SERVICE_CERTIFICATE, service_certificate, due=lambda result: "; ".join(result["reasons"]) or None
    ),
    "certificate_expiry": Operation({"path": {"type": "path", "required": True}}, certificate_expiry, reads=True),
}
