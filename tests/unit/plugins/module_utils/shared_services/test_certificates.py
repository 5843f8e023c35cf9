# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates, made and judged by the real openssl."""

from __future__ import annotations

import os
import shutil

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.shared_services import certificates

NAMES = ["etcd-1", "10.0.0.1", "fd00::1"]
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
pytestmark = needs_openssl


def ensure(folder, names=tuple(NAMES), check_mode=False, **others):
    values = {"authority": "etcd", "authority_certificate": None, "authority_key": None, "days": 90, "renew_days": 30,
              "owner": None, **others}  # fmt: skip
    return certificates.ensure(check_mode, str(folder), list(names), **values)


@pytest.fixture
def folder(tmp_path):
    assert ensure(tmp_path)[0] == "there is no authority yet"
    return tmp_path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_made_fits_and_stays(folder):
    before = content(folder)
    assert sorted(before) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert [os.stat(folder / name).st_mode & 0o777 for name in sorted(before)] == [0o644, 0o600, 0o644, 0o600]
    assert ensure(folder) == []
    assert content(folder) == before


def test_check_mode_makes_nothing(tmp_path):
    assert ensure(tmp_path, check_mode=True)
    assert content(tmp_path) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"renew_days": 91}, "ends in less than 91 days"),
        ({"names": [*NAMES, "10.0.0.2"]}, "is not for 10.0.0.2"),
        ({"names": [*NAMES, "other"]}, "is not for other"),
    ],
)
def test_what_does_not_fit_is_made_anew_by_the_same_authority(folder, change, words):
    before = content(folder)
    (reason,) = ensure(folder, days=365, **change)
    assert reason.endswith(words)
    after = content(folder)
    assert after["ca.crt"] == before["ca.crt"] and after["tls.crt"] != before["tls.crt"]
    assert ensure(folder, **change) == []


def test_a_second_member_is_signed_by_the_first_ones_authority(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    given = {"authority_certificate": (folder / "ca.crt").read_text(), "authority_key": (folder / "ca.key").read_text()}
    assert ensure(other, ["etcd-2"], **given)
    assert ensure(other, ["etcd-2"], **given) == []
    assert (other / "ca.crt").read_bytes() == (folder / "ca.crt").read_bytes()
    mixed = {**certificates.paths(str(other)), "ca": str(folder / "ca.crt")}
    assert certificates.faults(mixed, ["etcd-2"], 0) == []


def test_another_authority_and_another_key_are_found(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    ensure(other)
    paths = certificates.paths(str(folder))
    theirs = certificates.paths(str(other))
    assert certificates.faults({**paths, "ca": theirs["ca"]}, NAMES, 0)[0].endswith("is not signed by " + theirs["ca"])
    assert certificates.faults({**paths, "key": theirs["key"]}, NAMES, 0)[0].endswith(
        "is not the key of " + paths["certificate"]
    )


def test_an_expired_one_and_what_is_none(folder):
    paths = certificates.paths(str(folder))
    certificates.make_certificate(str(folder), NAMES, 0)
    assert certificates.faults(paths, NAMES, 0)[0].endswith(("has expired", "ends in less than 0 days"))
    (folder / "tls.crt").write_text("no certificate")
    assert certificates.faults(paths, NAMES, 0) == [paths["certificate"] + " is no certificate in PEM"]
    (folder / "tls.crt").unlink()
    assert certificates.faults(paths, NAMES, 0) == [paths["certificate"] + " is missing"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FleetError) as caught:
        ensure(tmp_path / "none")
    assert caught.value.code == "tls.no-folder"
