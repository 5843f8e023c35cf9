# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates, made and judged by the real openssl."""

from __future__ import annotations

import contextlib
import os
import shutil
import socketserver
import ssl
import threading

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import services
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import certificates

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


@pytest.mark.parametrize(("days", "names", "words"), [(0, NAMES, "tls.crt "), (90, ["other"], "is not for other")])
def test_given_ones_that_expired_or_are_for_another_name_are_an_error(folder, days, names, words):
    """Those that are made here are renewed instead."""
    certificates.make_certificate(str(folder), NAMES, days)
    files = certificates.paths(str(folder))
    assert words in certificates.faults_of("etcd-1", files, names, 0, False)[0]
    with pytest.raises(FleetError) as caught:
        certificates.faults_of("etcd-1", files, names, 30, True)
    assert caught.value.code == "tls.given-unusable"
    assert caught.value.values[0] == "etcd-1" and words in caught.value.values[1]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FleetError) as caught:
        ensure(tmp_path / "none")
    assert caught.value.code == "tls.no-folder"


@contextlib.contextmanager
def served(folder):
    """The address of a service that shows the certificate of a folder and asks for one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                context.wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield "127.0.0.1:%d" % server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def looked(folder, names=("client",), endpoints=()):
    params = {"state": "looked", "path": str(folder), "names": list(names), "renew_days": 30, "endpoints": endpoints}
    return services.service_certificate({**params, "authority_key": None}, False)


def client_of(folder, place):
    """A client's folder, signed by a member and brought without the authority's key."""
    given = {"authority_certificate": (folder / "ca.crt").read_text(), "authority_key": (folder / "ca.key").read_text()}
    ensure(place, ["client"], **given)
    (place / "ca.key").unlink()
    return place


def test_a_client_s_certificate_is_looked_at_and_nothing_is_changed(folder, tmp_path_factory):
    place = client_of(folder, tmp_path_factory.mktemp("client"))
    before = content(place)
    assert looked(place)["reasons"] == []
    assert "is not for another" in looked(place, ["another"])["reasons"][0]
    (place / "tls.key").unlink()
    found = looked(place)
    assert found["changed"]
    assert services.service_certificate_due(found) == "%s is missing" % (place / "tls.key")
    assert set(content(place)) == set(before) - {"tls.key"}


def test_a_client_sees_that_the_service_has_another_authority(folder, tmp_path_factory):
    place = client_of(folder, tmp_path_factory.mktemp("client"))
    member, other = tmp_path_factory.mktemp("member"), tmp_path_factory.mktemp("other")
    given = {"authority_certificate": (folder / "ca.crt").read_text(), "authority_key": (folder / "ca.key").read_text()}
    ensure(member, ["127.0.0.1"], **given)
    ensure(other, ["127.0.0.1"])
    with served(member) as address:
        assert looked(place, endpoints=[address])["reasons"] == []
    assert looked(place, endpoints=[address])["reasons"] == []  # away: that is not for the certificate to say
    with served(other) as foreign:
        (reason,) = looked(place, endpoints=[address, foreign])["reasons"]
    assert "does not accept what %s shows" % foreign in reason
