# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load the callback inference.fleet.unreachable for these playbooks, which requires no setting here."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.callback.unreachable import DOCUMENTATION, CallbackModule

__all__ = ["DOCUMENTATION", "CallbackModule"]
