# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks the certificate of a client of a shared service."""

from __future__ import annotations

from ..shared_services import certificates

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
    "renew_days": {"type": "int", "default": 30},
    "endpoints": {"type": "list", "elements": "str", "default": []},
}
READS = True


def run(params, _check_mode):
    """Why a client's certificate must be made, as `reasons`; [] if it can be used. Raises FleetError."""
    found = certificates.faults_of_client(params["path"], params["names"], params["renew_days"], params["endpoints"])
    return {"changed": bool(found), "reasons": found, "diff": {"before": "\n".join(found), "after": ""}}


def due(result):
    """Why a certificate must be made; None if it can be used."""
    return "; ".join(result["reasons"]) or None
