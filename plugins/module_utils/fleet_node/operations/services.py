# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on members of etcd and NATS, and on their certificates."""

from __future__ import annotations

from ..operation import Operation
from ..shared_services import certificates, etcd_member, nats_server

ETCD_MEMBER = {
    "state": {"type": "str", "required": True, "choices": list(etcd_member.STATES)},
    "name": {"type": "str", "required": True},
    "members": {"type": "list", "elements": "dict", "required": True},
    "names": {"type": "list", "elements": "str", "default": []},
    "tls": {"type": "dict"},
    "tls_given": {"type": "bool", "default": False},
    "renew_days": {"type": "int", "default": 30},
    "client_port": {"type": "int", "default": 2379},
    "peer_port": {"type": "int", "default": 2380},
    "data_dir": {"type": "path", "default": "/var/lib/etcd"},
    "backup_dir": {"type": "path", "default": "/var/backups/etcd"},
    "unit": {"type": "str", "default": "etcd.service"},
    "files": {"type": "dict", "default": {}},
    "programs": {"type": "list", "elements": "path", "default": []},
    "etcdctl": {"type": "list", "elements": "str", "default": ["etcdctl"]},
    "container": {"type": "dict", "default": {}},
    "initial": {"type": "path", "default": "/etc/etcd/initial.env"},
    "token": {"type": "str", "default": "inference-fleet", "no_log": False},
    "empty": {"type": "list", "elements": "str", "default": []},
    "timeout_s": {"type": "int", "default": 120},
}

NATS_SERVER = {
    "state": {"type": "str", "required": True, "choices": list(nats_server.STATES)},
    "name": {"type": "str", "required": True},
    "members": {"type": "list", "elements": "dict", "required": True},
    "names": {"type": "list", "elements": "str", "default": []},
    "tls": {"type": "dict"},
    "tls_given": {"type": "bool", "default": False},
    "renew_days": {"type": "int", "default": 30},
    "user": {"type": "str", "default": "fleet"},
    "password": {"type": "str", "default": "", "no_log": True},
    "jetstream": {"type": "bool", "default": False},
    "client_port": {"type": "int", "default": 4222},
    "cluster_port": {"type": "int", "default": 6222},
    "monitor_port": {"type": "int", "default": 8222},
    "unit": {"type": "str", "default": "nats.service"},
    "account": {"type": "str", "default": "nats"},
    "conf": {"type": "path", "default": "/etc/nats/nats.conf"},
    "files": {"type": "dict", "default": {}},
    "programs": {"type": "list", "elements": "path", "default": []},
    "nats_server": {"type": "list", "elements": "str", "default": ["nats-server"]},
    "arguments": {"type": "list", "elements": "str", "default": []},
    "container": {"type": "dict", "default": {}},
    "timeout_s": {"type": "int", "default": 120},
}

SERVICE_CERTIFICATE = {
    "state": {"type": "str", "default": "present", "choices": ["present", "looked"]},
    "path": {"type": "path", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
    "authority": {"type": "str", "default": "inference-fleet"},
    "authority_certificate": {"type": "str"},
    "authority_key": {"type": "str", "no_log": True},
    "days": {"type": "int", "default": 365},
    "renew_days": {"type": "int", "default": 30},
    "owner": {"type": "str"},
    "endpoints": {"type": "list", "elements": "str", "default": []},
}


def service_certificate(params, check_mode):
    """The result of the module. Raises FleetError."""
    given = {
        key: value for key, value in params.items() if key in SERVICE_CERTIFICATE and key not in ("state", "endpoints")
    }
    if params["state"] == "looked":
        reasons = certificates.faults_of_client(
            given["path"], given["names"], given["renew_days"], params["endpoints"] or ()
        )
    else:
        reasons = certificates.ensure(check_mode, **given)
    diff = {"before": "\n".join(reasons), "after": ""}
    return {"changed": bool(reasons), "reasons": reasons, "diff": diff}


def service_certificate_due(result):
    """Why a certificate is to be made; None where it fits."""
    return "; ".join(result["reasons"]) or None


OPERATIONS = {
    "etcd_member": Operation(ETCD_MEMBER, etcd_member.run),
    "nats_server": Operation(NATS_SERVER, nats_server.run),
    "service_certificate": Operation(SERVICE_CERTIFICATE, service_certificate, due=service_certificate_due),
}
