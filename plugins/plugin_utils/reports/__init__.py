# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of the action inference.fleet.report.

KINDS of a module: {kind: (arguments, function(action, given, task_vars) that returns the result)}.
"""
