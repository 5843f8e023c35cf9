# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripted engine streams faster than an engine, so shorter streams show whether something buffers them."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import streams


@pytest.fixture
def short_streams(monkeypatch):
    monkeypatch.setattr(streams, "SHORT_STREAM_MS", 10)
