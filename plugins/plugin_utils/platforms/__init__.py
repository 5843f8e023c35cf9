# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Platforms: one file or folder each, with an object PLATFORM."""

from __future__ import annotations

from ...module_utils.fleet_node.discover import discover

PLATFORMS = discover(__name__, __path__, "PLATFORM")
