# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports when a certificate expires."""

from __future__ import annotations

from ..shared_services import certificates

ARGUMENTS = {"path": {"type": "path", "required": True}}
READS = True


def run(params, _check_mode):
    """{expires}: the end of the validity, None without a certificate. Raises FleetError."""
    return {"changed": False, "expires": certificates.expiry(params["path"])}
