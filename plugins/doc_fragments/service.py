# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation that modules for members of shared services have in common."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  names:
    description: Names and addresses that the certificate must be for.
    type: list
    elements: str
    default: []
  tls:
    description: Paths C(ca), C(certificate) and C(key) of PEM files. Without it everything is plain text.
    type: dict
  tls_given:
    description: The certificates are the operator's. What is wrong with them is an error; others are made anew.
    type: bool
    default: false
  renew_days:
    description: A certificate that ends in fewer days is due.
    type: int
    default: 30
  container:
    description:
      - The container that its unit runs it in, C(engine), C(image), C(digest) and C(name). Empty where it is a program
        of the node. The image must be on the node.
    type: dict
    default: {}
"""
