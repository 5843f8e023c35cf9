# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets that come from a file of the node instead of a variable of the controller."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.filter.servers import secret_names
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import desired

TEXT = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def entry_with(path):
    return {"name": "frontend-0", "secrets": {"ETCD_AUTH_CA": str(path), "TOKEN": "a_variable"}}


def test_its_text_is_the_secret_s_value(tmp_path):
    path = tmp_path / "ca.crt"
    path.write_text(TEXT)
    assert desired.known_secrets(entry_with(path), {"a_variable": "x"}) == {"ETCD_AUTH_CA": TEXT, "TOKEN": "x"}
    desired.check_secrets([entry_with(path)], {"a_variable": "x"})


def test_one_that_is_missing_is_named_but_in_check_mode_where_it_may_come_before(tmp_path):
    entry = entry_with(tmp_path / "ca.crt")
    with pytest.raises(FleetError) as caught:
        desired.check_secrets([entry], {"a_variable": "x"})
    assert caught.value.code == "servers.secret-missing"
    assert "%s, which is missing or empty" % (tmp_path / "ca.crt") in caught.value.message
    desired.check_secrets([entry], {"a_variable": "x"}, check_mode=True)
    assert desired.known_secrets(entry, {"a_variable": "x"}) == {"TOKEN": "x"}


def test_the_controller_is_asked_for_variables_alone(tmp_path):
    assert secret_names([entry_with(tmp_path / "ca.crt")]) == ["a_variable"]
