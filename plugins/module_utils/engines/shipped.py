# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Written by tools/platforms.py: every engine of this folder, so that Ansible ships it to nodes."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.engines import dynamo, trtllm, vllm

ENGINES = {one.ENGINE.name: one.ENGINE for one in (dynamo, trtllm, vllm)}
