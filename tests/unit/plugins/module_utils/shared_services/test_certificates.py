# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates that the tasks of the role shared_service create, checked with the real openssl."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import services
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import certificates
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.certificates import serving, write
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.node_helpers import script

TASKS = Path(__file__).resolve().parents[5] / "roles" / "shared_service" / "tasks"
NAMES = ("etcd-1", "127.0.0.1", "fd00::1")
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def create(tmp_path_factory):
    """Runs the role's tasks for a folder, which is a member of `service` or a client of `signer`, whose first member is
    down."""
    tasks = tmp_path_factory.mktemp("tasks")
    for name in ("authority.yml", "certificate.yml"):
        # /etc/SERVICE/tls of a test is a folder, and all files belong to the account of the test
        text = (TASKS / name).read_text().replace("/etc/{{ shared_service_name }}/tls", "{{ etc_tls }}")
        for owner in ("owner: root", 'owner: "{{ shared_service_name }}"'):
            text = text.replace(owner, "owner: " + getpass.getuser())
        (tasks / name).write_text(text)

    sudo = tasks / "sudo"
    script(sudo, 'echo >>"$0.calls"\nwhile [ "$1" != -c ]; do shift; done\nexec /bin/sh "$@"\n')

    def run(folder, names=NAMES, signer=None, failing=None):
        folder.mkdir(exist_ok=True)
        variables = {
            "shared_service_name": "etcd",
            "etc_tls": str(signer or folder),
            "shared_service_authority": "n1",
            "shared_service_found": {"due": ["certificates"]},
            "shared_service_certificate_names": list(names),
            "shared_service_certificate_days": 90,
            "ansible_python_interpreter": sys.executable,
        }
        if signer:
            variables.update(
                shared_service_folder=str(folder), shared_service_owner="", shared_service_signers=["down", "n1"]
            )
        include = {"ansible.builtin.include_tasks": str(tasks / ("certificate.yml" if signer else "authority.yml"))}
        (tasks / "play.yml").write_text(json.dumps([{"hosts": "n1", "gather_facts": False, "tasks": [include]}]))
        hosts = "n1 ansible_connection=local ansible_become_exe=%s\ndown ansible_host=127.0.0.1 ansible_port=1\n" % sudo
        (tasks / "hosts").write_text(hosts)
        sudo.with_suffix(".calls").unlink(missing_ok=True)
        environment = {"ANSIBLE_BECOME_ALLOW_SAME_USER": "1"}
        if failing:
            environment["PATH"] = "%s:%s" % (failing, os.environ["PATH"])
        done = play(str(tasks / "play.yml"), tasks / "hosts", variables=variables, environment=environment)
        if failing:
            return done.failed()
        done.ok()
        assert len(sudo.with_suffix(".calls").read_text()) == 2  # the play's tasks need no root; both of the signer do
        return folder

    return run


def interrupted(folder, program, lines):
    """A folder with a program that ends before it has completed its work."""
    (folder / "bin").mkdir()
    script(folder / "bin" / program, "%s\nexit 1\n" % lines)
    return folder / "bin"


@pytest.fixture(scope="module")
def member(create, tmp_path_factory):
    """The second run completes the member of a first one, whose authority has no certificate."""
    folder = tmp_path_factory.mktemp("member")
    create(folder / "tls", failing=interrupted(folder, "openssl", 'while [ "$1" != -keyout ]; do shift; done; : >"$2"'))
    return create(folder / "tls")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A service with another authority."""
    return write(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def client(create, member, tmp_path_factory):
    return create(tmp_path_factory.mktemp("client") / "tls", ["client"], signer=member)


def files_of(folder):
    return certificates.paths(str(folder))


def test_a_member_s_certificate_and_its_authority(member):
    modes = {path.name: path.stat().st_mode & 0o777 for path in member.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
    assert certificates.faults(files_of(member), NAMES, 30) == []
    assert "GMT" in certificates.expiry(files_of(member)["certificate"])


def test_a_certificate_is_replaced_with_its_key_and_its_authority_stays(create, member, tmp_path):
    folder = tmp_path / "tls"
    shutil.copytree(member, folder)
    create(folder, failing=interrupted(tmp_path, "mv", ""))
    assert certificates.faults(files_of(folder), NAMES, 30) == []


def test_certificates_that_do_not_fit(member, other, tmp_path):
    mine, theirs = files_of(member), files_of(other)
    broken = str(tmp_path / "tls.crt")
    Path(broken).write_text("no certificate")
    assert certificates.expiry(broken) is certificates.expiry("/none") is None
    for changes, names, spare, words in (
        ({}, NAMES, 91, "%s ends in less than 91 days, or has expired" % mine["certificate"]),
        ({}, [*NAMES, "10.0.0.2"], 30, "%s is not valid for 10.0.0.2" % mine["certificate"]),
        ({}, [*NAMES, "other"], 30, "%s is not valid for other" % mine["certificate"]),
        ({"ca": theirs["ca"]}, NAMES, 0, "%s is not signed by %s" % (mine["certificate"], theirs["ca"])),
        ({"key": theirs["key"]}, NAMES, 0, "%s is not the key of %s" % (theirs["key"], mine["certificate"])),
        ({"certificate": broken}, NAMES, 0, "%s is not a certificate in PEM format" % broken),
        ({"key": "/none"}, NAMES, 0, "/none is missing"),
    ):
        assert certificates.faults({**mine, **changes}, names, spare) == [words]
    assert error(certificates.faults_of, "etcd-1", mine, [*NAMES, "other"], 0, True).code == "tls.given-unusable"


def reasons(folder, names=("client",), endpoints=()):
    params = {"path": str(folder), "names": list(names), "renew_days": 30, "endpoints": endpoints}
    found = services.service_certificate(params, True)
    assert found["changed"] is (services.OPERATIONS["service_certificate"].due(found) is not None)
    return found["reasons"]


def test_a_client_has_a_certificate_of_the_service_and_no_authority_key(client, member, other):
    assert sorted(path.name for path in client.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert (client / "ca.crt").read_bytes() == (member / "ca.crt").read_bytes()
    assert "is not valid for another" in reasons(client, ["another"])[0]
    with serving(folder=member) as port:
        assert reasons(client, endpoints=["127.0.0.1:%d" % port]) == []
    closed = "127.0.0.1:%d" % port
    assert reasons(client, endpoints=[closed]) == []  # not reachable
    with serving(folder=other) as port:
        (reason,) = reasons(client, endpoints=[closed, "127.0.0.1:%d" % port])
    assert "does not accept the certificate of 127.0.0.1:%d" % port in reason
