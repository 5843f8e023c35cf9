# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the operation accelerator_info on a managed node."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.action.node import ActionModule

__all__ = ["ActionModule"]
