# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the guard's tests."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.tests.unit.engines import guard_place


@pytest.fixture(scope="module", autouse=True)
def watched(tmp_path_factory):
    with guard_place.small_node.watched(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture
def place(tmp_path):
    made = guard_place.Place(tmp_path)
    yield made
    made.node.end()
