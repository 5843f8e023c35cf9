# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that modules which measure share; the fragment inference.fleet.measured documents them."""

from __future__ import annotations

MEASURED_ARGUMENTS = {
    "tool_version": {"type": "str"},
    "wait_s": {"type": "int", "default": 5},
    "deployment": {"type": "dict", "default": {}},
    "hardware": {"type": "dict", "default": {}},
}
