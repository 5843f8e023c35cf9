# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of small engines for the modules that run servers."""

from __future__ import annotations

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.inference.fleet.tests.unit.engines import small_node


@pytest.fixture(scope="module")
def watchdog(tmp_path_factory):
    """Kills what the tests of a file leave behind, also when they are killed."""
    with small_node.watched(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture
def node(watchdog, tmp_path):
    node = small_node.SmallNode(tmp_path / "r")
    yield node
    node.end()


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: found.append(text))
    return found
