# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What service_certificate takes and does."""

from __future__ import annotations

from ..shared_services import certificates

ARGUMENTS = {
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


def run(params, check_mode):
    """The result of the module. Raises FleetError."""
    given = {key: value for key, value in params.items() if key in ARGUMENTS and key not in ("state", "endpoints")}
    if params["state"] == "looked":
        reasons = certificates.faults_of_client(
            given["path"], given["names"], given["renew_days"], params["endpoints"] or ()
        )
    else:
        reasons = certificates.ensure(check_mode, **given)
    diff = {"before": "\n".join(reasons), "after": ""}
    return {"changed": bool(reasons), "reasons": reasons, "diff": diff}


def due(result):
    """Why a certificate is to be made; None where it fits."""
    return "; ".join(result["reasons"]) or None
