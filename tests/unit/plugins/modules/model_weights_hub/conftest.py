# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated hub, and a node that downloads from it."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss
from ansible_collections.inference.fleet.tests.unit.weights_node import REPO, HubWeights


@pytest.fixture
def hub():
    with Hub([gpt_oss(REPO, 30_000, seed=3)]) as running:
        yield running


@pytest.fixture
def node(tmp_path, hub):
    return HubWeights(tmp_path, hub)
