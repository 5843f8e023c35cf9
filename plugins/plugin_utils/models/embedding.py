# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The family of models that answer embeddings."""

from __future__ import annotations

import types

from .base import Family

MODEL_FAMILY = Family(
    name="embedding",
    label="embedding models",
    parsers=types.MappingProxyType({"tool": {}, "reasoning": {}}),
    headless=True,
    adapters=False,
)
