# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that the roles etcd and nats deploy, with and without a container."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import play

ROLES = Path(__file__).resolve().parents[3] / "roles"
UNIT = "/etc/systemd/system/%s.service"


@pytest.fixture
def unit(tmp_path):
    """Renders a role's unit."""

    def render(role, **variables):
        folder = tmp_path / role
        folder.mkdir(exist_ok=True)
        (folder / "templates").exists() or (folder / "templates").symlink_to(ROLES / role / "templates")
        files = [str(ROLES / role / part / "main.yml") for part in ("defaults", "vars")]
        out = folder / "unit"
        task = {"ansible.builtin.copy": {"content": "{{ %s_files['%s'] }}" % (role, UNIT % role), "dest": str(out)}}
        plays = [{"hosts": role, "connection": "local", "gather_facts": False, "vars_files": files, "tasks": [task]}]
        (folder / "play.yml").write_text(json.dumps(plays))
        (folder / "hosts").write_text("[%s]\nn1\n" % role)
        given = {"ansible_python_interpreter": sys.executable, **variables}
        play(str(folder / "play.yml"), folder / "hosts", variables=given).ok()
        return out.read_text()

    return render


def words_of(text, key="ExecStart"):
    """The arguments of a unit's command, after systemd's expansions."""
    found = re.search(r"(?m)^%s=((?:.*\\\n)*.*)$" % key, text).group(1)
    return [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(found.replace("\\\n", " "))]


def test_etcd(unit):
    assert "ExecStart=/opt/etcd-3.6.14/etcd\n" in unit("etcd")
    text = unit("etcd", etcd_install="container", etcd_certificates={"ca": "/pki/a/ca", "key": "/pki/b/key"},
                etcd_container_flags=["--env=ALLOW_NONE_AUTHENTICATION=yes", "--env=A=$b 5%"])  # fmt: skip
    assert "After=network-online.target docker.service\nRequires=docker.service\n" in text
    shell, flag, script, *words = words_of(text)
    assert (shell, flag) == ("/bin/sh", "-c")
    assert script.startswith("exec docker ") and '--user="$(id -u etcd):$(id -g etcd)" "$@"' in script
    assert {"--network=host", "--pull=never", "--rm"} <= set(script.split())
    assert {
        "--cap-drop=ALL", "--security-opt=no-new-privileges", "--name=inference-fleet.etcd",
        "--mount=type=bind,source=/var/lib/etcd,target=/var/lib/etcd",
        "--mount=type=bind,source=/etc/etcd,target=/etc/etcd,readonly",
        "--mount=type=bind,source=/pki/a,target=/pki/a,readonly",
        "--mount=type=bind,source=/pki/b,target=/pki/b,readonly", "--env-file=/etc/etcd/etcd.env",
        "--env-file=/etc/etcd/initial.env", "--env=ALLOW_NONE_AUTHENTICATION=yes", "--env=A=$b 5%",
    } <= set(words)  # fmt: skip
    assert words[-2:] == ["--entrypoint=etcd", "gcr.io/etcd-development/etcd:v3.6.14"]


def test_nats(unit):
    plain = unit("nats", nats_arguments=["-js", "--trace", "-m", 8222])
    assert words_of(plain)[1:] == ["-c", "/etc/nats/nats.conf", "-js", "--trace", "-m", "8222"]
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in plain
    text = unit("nats", nats_install="container", fleet_container_engine="podman", nats_arguments=["-m", 8222],
                nats_image_digest="sha256:" + "0" * 64)  # fmt: skip
    words = words_of(text)
    image = "docker.io/library/nats:sha256-" + "0" * 64  # the tag that a pull keeps
    assert words[-6:] == ["--entrypoint=nats-server", image, "-c", "/etc/nats/nats.conf", "-m", "8222"]
    assert words[2].startswith("exec podman run ")
    assert "--security-opt=label=disable" in words and "docker" not in text.replace("docker.io", "")
    assert words_of(text, "ExecReload")[1:] == ["podman", "kill", "--signal=HUP", "inference-fleet.nats"]
