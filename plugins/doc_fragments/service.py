# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation that modules for members of shared services have in common."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
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
