# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service that servers share (etcd, NATS) as a container: its unit, and how programs of its image run."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import (
    ENGINES,
    NO_CONFIG,
    digest_tag,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.systemd import (
    DOCKER,
    unit_command,
    unit_word,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.container import SWITCHES, mount_word

STOP_S = 15  # TERM to KILL
NAME = "inference-fleet.%s"  # no server's container has a dot there
RUN = ("run", "--rm", "--pull=never", "--log-driver=none", "--network=host")
# The account has its number from the node, which nobody knows before it is made.
WITH_ACCOUNT = 'account=$1; shift; exec %s --user="$(id -u "$account"):$(id -g "$account")" "$@"'
UNIT = """# Written by inference.fleet, role %(service)s.
[Unit]
Description=%(description)s, in a container of %(engine)s
Documentation=%(documentation)s
Wants=network-online.target
After=network-online.target%(needed)s
%(requires)s
[Service]
Type=exec
ExecStartPre=-%(remove)s
ExecStart=%(start)s
ExecStop=-%(stop)s
ExecStopPost=-%(remove)s
%(reload)s# of a process that TERM has ended
SuccessExitStatus=143
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target%(needed)s
"""
# What the unit sets itself, and why.
OWN_FLAGS = {
    "--name": "the name is the service's",
    "--rm": "the container is always removed",
    "--init": "there always is an init",
    "--detach": "systemd watches it in the foreground",
    "--restart": "systemd restarts it",
    "--pull": "the image is there before the start",
    "--log-driver": "the output is the journal's",
    "--network": "it has the node's own network, where the configuration says what it listens on",
    "--net": "it has the node's own network, where the configuration says what it listens on",
    "--publish": "it has the node's own network, where the configuration says what it listens on",
    "--user": "it runs as the service's account",
    "--entrypoint": "the image's program is called directly",
}


def service_container(service, engine, image, account, words, description, documentation, digest="", flags=(),
                      env_files=(), written=(), read=(), tool_written=(), reloads=False,
                      require_digest=False):  # fmt: skip
    """{image, unit, tool, reference} of a service in a container.

    image: what is to be on the node, {engine, image, digest, address}, and the container's `name`. unit: the text of
    its unit. tool, reference: a program of the image runs by tool, --entrypoint=PROGRAM, reference, arguments.

    words: the program and its arguments. written, read: folders that it writes and reads, at the same paths.
    tool_written: folders that programs of the image write. reloads: whether HUP has it read its configuration again.
    Raises FleetError.
    """
    words = [str(one) for one in words]  # a port in an inventory is a number
    _check(service, engine, image, digest, flags, require_digest)
    name = NAME % service
    reference = digest_tag(image, digest) if digest else image  # the tag that a pull keeps it under
    client = [engine, "--config", NO_CONFIG] if engine == "docker" else [engine]
    label = ["--security-opt=label=disable"] if engine == "podman" else []  # the node's files are not relabelled

    def call(*more):
        return unit_command(["/usr/bin/env", *client, *more])

    arguments = ["--init", "--name=" + name, "--stop-timeout=%d" % STOP_S]
    arguments += ["--cap-drop=ALL", "--security-opt=no-new-privileges", *label]
    arguments += [*_mounts(written, False), *_mounts(read, True)]
    arguments += [*("--env-file=" + path for path in env_files), *flags, "--entrypoint=" + words[0]]
    script = WITH_ACCOUNT % " ".join([*client, *RUN])
    start = unit_command(["/bin/sh", "-c", script, "sh", account])
    unit = UNIT % {
        "service": service,
        "description": description,
        "engine": engine,
        "documentation": documentation,
        "needed": " " + DOCKER if engine == "docker" else "",
        "requires": "Requires=%s\n" % DOCKER if engine == "docker" else "",
        "remove": call("rm", "--force", name),
        "start": " \\\n  ".join([start, *map(unit_word, arguments), " ".join(map(unit_word, [reference, *words[1:]]))]),
        "stop": call("stop", "-t", str(STOP_S), name),
        "reload": "ExecReload=%s\n" % call("kill", "--signal=HUP", name) if reloads else "",
    }
    return {
        "image": {"engine": engine, "image": image, "digest": digest or None, "address": None, "name": name},
        "unit": unit,
        "tool": [*client, *RUN, *label, "--user=0:0", *_mounts(tool_written, False), *_mounts(read, True)],
        "reference": reference,
    }


def _mounts(folders, read_only):
    return ["--mount=" + mount_word({"source": one, "target": one, "read_only": read_only}) for one in folders]


def _check(service, engine, image, digest, flags, require_digest):
    """FleetError for what no container can have."""
    if engine not in ENGINES:
        raise FleetError(
            "service.container-engine-unknown",
            "%s_container_engine is %s; allowed: %s.",
            (service, show(engine), ", ".join(ENGINES)),
        )
    if require_digest and not digest:
        raise FleetError(
            "service.image-without-digest",
            "%s_image is %s without a digest, which fleet_require_digests demands. Look it up with `docker buildx "
            "imagetools inspect` and set %s_image_digest.",
            (service, show(image), service),
        )
    for flag in flags:
        name, equals, _value = flag.partition("=")
        if name in OWN_FLAGS:
            raise FleetError(
                "service.container-flag-reserved",
                "%s_container_flags holds %s; remove it: %s.",
                (service, show(flag), OWN_FLAGS[name]),
            )
        if not name.startswith("--") or (not equals and name not in SWITCHES):
            raise FleetError(
                "service.container-flag-invalid",
                "%s_container_flags holds %s; write an option of `docker run` as one word, --NAME=VALUE. Without a "
                "value allowed: %s.",
                (service, show(flag), ", ".join(SWITCHES)),
            )
