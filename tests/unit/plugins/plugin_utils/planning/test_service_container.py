# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit of a service in a container, word by word, and what no container can have."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.filter.services import service_container

DIGEST = "sha256:" + "0" * 64
GIVEN = {
    "engine": "docker",
    "image": "docker.io/library/nats:2.11.4",
    "account": "nats",
    "words": ["nats-server", "-c", "/etc/nats/nats.conf", "-js", "-m", "8222"],
    "description": "NATS",
    "documentation": "https://docs.nats.io",
    "written": ["/var/lib/nats"],
    "read": ["/etc/nats"],
    "env_files": ["/etc/nats/x.env"],
    "flags": ["--env=A=$b 5%"],
    "reloads": True,
}
CLIENT = '"/usr/bin/env" "docker" "--config" "/nonexistent/inference-fleet" '
DOCKER = (
    r"""# Written by inference.fleet, role nats.
[Unit]
Description=NATS, in a container of docker
Documentation=https://docs.nats.io
Wants=network-online.target
After=network-online.target docker.service
Requires=docker.service

[Service]
Type=exec
ExecStartPre=-%(client)s"rm" "--force" "inference-fleet.nats"
ExecStart="/bin/sh" "-c" "account=$$1; shift; exec docker --config /nonexistent/inference-fleet run --rm """
    r"""--pull=never --log-driver=none --network=host """
    r"""--user=\"$$(id -u \"$$account\"):$$(id -g \"$$account\")\" \"$$@\"" "sh" "nats" \
  "--init" \
  "--name=inference-fleet.nats" \
  "--stop-timeout=15" \
  "--cap-drop=ALL" \
  "--security-opt=no-new-privileges" \
  "--mount=type=bind,source=/var/lib/nats,target=/var/lib/nats" \
  "--mount=type=bind,source=/etc/nats,target=/etc/nats,readonly" \
  "--env-file=/etc/nats/x.env" \
  "--env=A=$$b 5%%%%" \
  "--entrypoint=nats-server" \
  "docker.io/library/nats:2.11.4" "-c" "/etc/nats/nats.conf" "-js" "-m" "8222"
ExecStop=-%(client)s"stop" "-t" "15" "inference-fleet.nats"
ExecStopPost=-%(client)s"rm" "--force" "inference-fleet.nats"
ExecReload=%(client)s"kill" "--signal=HUP" "inference-fleet.nats"
# of a process that TERM has ended
SuccessExitStatus=143
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target docker.service
""" % {"client": CLIENT}
)
SWITCHES = (
    "--disable-content-trust, --no-healthcheck, --oom-kill-disable, --privileged, --publish-all, --read-only"
)  # fmt: skip


def made(**changed):
    return service_container("nats", **{**GIVEN, **changed})


def test_the_whole_unit_with_docker():
    assert made()["unit"] == DOCKER
    assert "ExecReload" not in made(reloads=False)["unit"]


def test_podman_has_no_daemon_to_follow_and_does_not_relabel():
    unit = made(engine="podman")["unit"]
    assert "docker.service" not in unit
    assert "--config" not in unit
    assert '"--security-opt=label=disable" \\\n' in unit
    assert 'ExecStop=-"/usr/bin/env" "podman" "stop"' in unit


def test_an_image_with_a_digest_is_started_by_the_tag_that_the_pull_keeps_it_under():
    found = made(digest=DIGEST)
    kept = "docker.io/library/nats:sha256-" + "0" * 64
    assert '  "%s" "-c"' % kept in found["unit"]
    assert found["reference"] == kept
    assert found["image"] == {
        "engine": "docker", "image": "docker.io/library/nats:2.11.4", "digest": DIGEST, "address": None,
        "name": "inference-fleet.nats",
    }  # fmt: skip
    assert made()["image"]["digest"] is None


def test_other_programs_of_the_image_run_as_root_with_what_they_read_and_write():
    assert made(tool_written=["/var/backups"])["tool"] == [
        "docker", "--config", "/nonexistent/inference-fleet", "run", "--rm", "--pull=never", "--log-driver=none",
        "--network=host", "--user=0:0", "--mount=type=bind,source=/var/backups,target=/var/backups",
        "--mount=type=bind,source=/etc/nats,target=/etc/nats,readonly",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"engine": "lxc"}, 'nats_container_engine is "lxc"; allowed: docker, podman.'),
        (
            {"require_digest": True},
            'nats_image is "docker.io/library/nats:2.11.4" without a digest, which fleet_require_digests demands. Look '
            "it up with `docker buildx imagetools inspect` and set nats_image_digest.",
        ),
        (
            {"flags": ["--publish=4222:4222"]},
            'nats_container_flags holds "--publish=4222:4222"; remove it: it has the node\'s own network, where the '
            "configuration says what it listens on.",
        ),
        (
            {"flags": ["-p", "4222:4222"]},
            'nats_container_flags holds "-p"; write an option of `docker run` as one word, --NAME=VALUE. Without a '
            "value allowed: %s." % SWITCHES,
        ),
        (
            {"flags": ["--memory"]},
            'nats_container_flags holds "--memory"; write an option of `docker run` as one word, --NAME=VALUE. Without '
            "a value allowed: %s." % SWITCHES,
        ),
    ],
)
def test_what_no_container_can_have(changed, words):
    with pytest.raises(AnsibleFilterError) as caught:
        made(**changed)
    assert str(caught.value) == words


def test_a_digest_is_enough_where_digests_are_demanded():
    assert made(require_digest=True, digest=DIGEST, flags=["--read-only"])["unit"]
