# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines that servers run: one file each, with an object ENGINE."""

from __future__ import annotations

from ...module_utils.fleet_node.discover import discover

ENGINES = discover(__name__, __path__, "ENGINE")
