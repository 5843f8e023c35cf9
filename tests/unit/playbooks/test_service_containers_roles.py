# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that the roles etcd and nats write for what their variables say, in a container and without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import play

ROLES = Path(__file__).resolve().parents[3] / "roles"
UNIT = "/etc/systemd/system/%s.service"


@pytest.fixture
def unit(tmp_path):
    """Renders a role's unit: (its text, the Run)."""

    def render(role, **variables):
        folder = tmp_path / role
        folder.mkdir(exist_ok=True)
        (folder / "templates").exists() or (folder / "templates").symlink_to(ROLES / role / "templates")
        files = [str(ROLES / role / part / "main.yml") for part in ("defaults", "vars")]
        out = folder / "unit"
        out.write_text("")
        task = {"ansible.builtin.copy": {"content": "{{ %s_files['%s'] }}" % (role, UNIT % role), "dest": str(out)}}
        plays = [{"hosts": role, "connection": "local", "gather_facts": False, "vars_files": files, "tasks": [task]}]
        (folder / "play.yml").write_text(json.dumps(plays))
        (folder / "hosts").write_text("[%s]\nn1\n" % role)
        given = {"ansible_python_interpreter": sys.executable, **variables}
        run = play(str(folder / "play.yml"), folder / "hosts", variables=given)
        return out.read_text(), run

    return render


def test_etcd(unit):
    text, run = unit("etcd")
    run.ok()
    assert "ExecStart=/opt/etcd-3.6.14/etcd\n" in text
    text, run = unit("etcd", etcd_install="container", etcd_certificates={"ca": "/pki/a/ca", "key": "/pki/b/key"},
                     etcd_container_flags=["--env=ALLOW_NONE_AUTHENTICATION=yes"])  # fmt: skip
    run.ok()
    assert "Description=etcd, a member of inference.fleet's cluster, in a container of docker\n" in text
    words = [line.strip(' "\\') for line in text.splitlines() if line.startswith("  ")]
    assert words == [
        "--init", "--name=inference-fleet.etcd", "--stop-timeout=15", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", "--mount=type=bind,source=/var/lib/etcd,target=/var/lib/etcd",
        "--mount=type=bind,source=/etc/etcd,target=/etc/etcd,readonly",
        "--mount=type=bind,source=/pki/a,target=/pki/a,readonly",
        "--mount=type=bind,source=/pki/b,target=/pki/b,readonly",
        "--env-file=/etc/etcd/etcd.env", "--env-file=/etc/etcd/initial.env", "--env=ALLOW_NONE_AUTHENTICATION=yes",
        "--entrypoint=etcd", "gcr.io/etcd-development/etcd:v3.6.14",
    ]  # fmt: skip


def test_nats(unit):
    text, run = unit("nats", nats_arguments=["-js", "--trace", "-m", 8222])
    run.ok()
    assert 'ExecStart=/opt/nats-server-2.11.17/nats-server -c /etc/nats/nats.conf "-js" "--trace" "-m" "8222"\n' in text
    text, run = unit("nats", nats_install="container", fleet_container_engine="podman", nats_arguments=["-m", 8222])
    run.ok()
    assert text.splitlines()[text.splitlines().index('  "--entrypoint=nats-server" \\') + 1] == (
        '  "docker.io/library/nats:2.11.17" "-c" "/etc/nats/nats.conf" "-m" "8222"'
    )
    assert "exec podman run" in text


def test_an_image_must_have_a_digest_where_that_is_demanded(unit):
    unit("nats", nats_install="container", fleet_require_digests=True)[1].failed("set nats_image_digest")
    digest = "sha256:" + "0" * 64
    text, run = unit("nats", nats_install="container", fleet_require_digests=True, nats_image_digest=digest)
    run.ok()
    assert '"docker.io/library/nats:sha256-%s"' % ("0" * 64) in text
    unit("nats", fleet_require_digests=True)[1].ok()
