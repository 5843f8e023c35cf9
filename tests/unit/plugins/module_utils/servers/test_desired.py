# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets and configuration files of the planned servers; files that are installed together."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import desired
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.desired import config_text
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.server_files import (
    Staging,
    make_folder,
)
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from hypothesis import given
from hypothesis import strategies as st

TEXT = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_secrets_from_files_of_the_node(tmp_path, monkeypatch):
    path = tmp_path / "ca.crt"
    entry = {"name": "frontend-0", "secrets": {"ETCD_AUTH_CA": str(path), "TOKEN": "a_variable"}}
    values = {"a_variable": "x"}
    caught = error(desired.check_secrets, [entry], values)
    assert caught.code == "servers.secret-missing"
    assert "%s, which is missing or empty" % path in caught.message
    desired.check_secrets([entry], values, check_mode=True)  # it may come before
    assert desired.known_secrets(entry, values) == {"TOKEN": "x"}
    path.write_text(TEXT)
    desired.check_secrets([entry], values)
    assert desired.known_secrets(entry, values) == {"ETCD_AUTH_CA": TEXT, "TOKEN": "x"}
    # a status without become may not read it
    monkeypatch.setattr(desired, "read_text", mock.Mock(side_effect=PermissionError))
    assert desired.known_secrets(entry, values) == {"TOKEN": "x"}


ODD = ["yes", "1e-05", "null", "a: b", "# c", "- d", "\u2028", "\x7f", "\ufeff", "%(here)s", "😀", " x ", ""]
TEXTS = st.text(st.characters(exclude_categories=("Cs",))) | st.sampled_from(ODD)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
KEYS = st.sampled_from(["no", "y", "plain_key", "a b", "", "1", "é", "~"]) | st.text(max_size=8).filter(str.isprintable)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_yaml_reads_back(content):
    assert yaml.safe_load(config_text({"format": "yaml", "path": "/c", "content": content})) == content


def test_what_is_not_a_number_and_no_configuration():
    assert config_text({"format": "yaml", "path": "/c", "content": {"a": float("nan")}}) == '{\n  "a": .nan\n}\n'
    assert config_text(None) is None


@pytest.mark.skipif(os.getuid() != 0, reason="gives folders away")
@pytest.mark.parametrize("name", ["link", "link/cache"])
@pytest.mark.parametrize("by", [0, 1234])
def test_a_directory_behind_a_link_of_another_account_keeps_its_owner(tmp_path, name, by):
    (tmp_path / "target" / "cache").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.chown(tmp_path / "link", by, by, follow_symlinks=False)
    path = str(tmp_path / name)
    if by:
        assert error(make_folder, path, (1234, 1234)).code == "node.os-error"
        assert os.stat(path).st_uid == 0
        return
    for _turn in range(2):  # nothing is left to change in the second one
        make_folder(path, (1234, 1234))
    if name != "link":
        make_folder(path, (1235, 1235))
    assert os.stat(path).st_uid == (1234 if name == "link" else 1235)


def test_a_file_that_cannot_be_installed_leaves_the_others_as_they_were(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError), Staging() as staging:
        for name in ("old", "new", "folder"):
            staging.add(str(tmp_path / name), "new")
        staging.commit()
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["folder", "old"]
