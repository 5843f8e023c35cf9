# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The family of all other models that answer chat completions. parsers.json has the parsers of each engine."""

from __future__ import annotations

import json
import os
import types

from .base import Family

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "parsers.json"), encoding="utf-8") as stream:
    PARSERS = json.load(stream)

MODEL_FAMILY = Family(
    name="chat",
    label="chat models",
    parsers=types.MappingProxyType(PARSERS),
    reasoning_fields=("reasoning", "reasoning_content"),
)
