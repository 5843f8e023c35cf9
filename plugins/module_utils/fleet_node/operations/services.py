# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on members of etcd and NATS, and on their certificates."""

from __future__ import annotations

from ..discover import Operation, lists, options, required
from ..shared_services import certificates, etcd_member, nats_server

MEMBER = {  # of a cluster of either service
    **required("str", "name"),
    **required("list", "members", elements="dict"),
    **lists("str", "names"),
    **lists("path", "programs"),
    **options("dict", "tls", files={}, container={}),
    **options("bool", tls_given=False),
    **options("int", renew_days=30, timeout_s=120),
    **options("str", version=""),
}

ETCD_MEMBER = {
    **MEMBER,
    "state": {"type": "str", "required": True, "choices": list(etcd_member.STATES)},
    **options("int", client_port=2379, peer_port=2380),
    **options("path", data_dir="/var/lib/etcd", initial="/etc/etcd/initial.env"),
    **options("str", unit="etcd.service"),
    **options("dict", leaving={}),
    **lists("str", "empty"),
}

NATS_SERVER = {
    **MEMBER,
    "state": {"type": "str", "required": True, "choices": list(nats_server.STATES)},
    "login": {"type": "str", "default": "", "no_log": True},
    **options("bool", jetstream=False),
    **options("int", client_port=4222, cluster_port=6222, monitor_port=8222),
    **options("str", unit="nats.service"),
}

SERVICE_CERTIFICATE = {
    **required("path", "path"),
    **required("list", "names", elements="str"),
    **options("int", renew_days=30),
    **lists("str", "endpoints"),
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
    "certificate_expiry": Operation(required("path", "path"), certificate_expiry, reads=True),
}
