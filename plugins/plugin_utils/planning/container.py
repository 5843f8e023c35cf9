# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container of a plan entry: what a recipe says of it, with mounts, devices and the whole `docker run`."""

from __future__ import annotations

import posixpath
import re

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import (
    LABEL_HASH,
    LABEL_ROOT,
    LABEL_SERVER,
    STOP_S,
    container_name,
    pinned_reference,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import registry
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.processes import (
    MARKER_ROOT,
    MARKER_SERVER,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import invalid, unknown_key
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import close_to, show, visible

DEFAULT_ENGINE = "docker"
# What the launcher sets itself: why, or the recipe's key for it.
OWN_FLAGS = {
    "--name": "the name is the server's",
    "--rm": "the container is always removed",
    "--init": "there always is an init",
    "--detach": "the service manager watches it in the foreground",
    "--interactive": "a server has no input",
    "--tty": "a server has no terminal",
    "--restart": "the service manager restarts it",
    "--pull": "the image is there before the start",
    "--sig-proxy": "signals are passed on",
    "--stop-timeout": "it is %d s" % STOP_S,
    "--log-driver": "the output is the service manager's",
    "--env": "use environment, or secrets",
    "--env-file": "use environment, or secrets",
    "--label-file": "use --label",
    "--volume": "use container.mounts",
    "--mount": "use container.mounts",
    "--device": "use container.devices",
    "--network": "use container.network",
    "--net": "use container.network",
    "--ipc": "use container.ipc",
    "--shm-size": "use container.shm_size",
    "--ulimit": "use container.ulimits",
    "--user": "use container.user",
    "--workdir": "use container.workdir",
    "--entrypoint": "use container.entrypoint",
    "--cpuset-cpus": "use cpus",
    "--publish": "ports are published of themselves where container.network is not the host's",
    "--publish-all": "ports are published of themselves where container.network is not the host's",
    "--stop-signal": "servers are ended by SIGTERM",
    "--volumes-from": "use container.mounts",
    "--attach": "the service manager reads the output",
    "--cidfile": "the container is found by its labels",
    "--help": "nothing would be started",
    "--pid": "the guard finds the server's processes in a namespace of their own",
    "--quiet": "the image is there before the start",
}
# What `docker run` and `podman run` take beyond that.
TAKEN = """
add-host annotation arch authfile blkio-weight blkio-weight-device cap-add cap-drop cgroup-conf cgroup-parent cgroupns
cgroups chrootdirs cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-mems
decryption-key detach-keys device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops
disable-content-trust dns dns-option dns-search domainname expose gpus group-add group-entry health-cmd health-interval
health-log-destination health-on-failure health-retries health-start-interval health-start-period health-startup-cmd
health-timeout hostname hostuser http-proxy image-volume init-path ip ip6 isolation label link link-local-ip log-opt
mac-address memory memory-reservation memory-swap memory-swappiness network-alias no-healthcheck no-hostname no-hosts
oom-kill-disable oom-score-adj os passwd passwd-entry personality pids-limit platform privileged rdt-class read-only
read-only-tmpfs runtime seccomp-policy secret security-opt shm-size-systemd storage-opt sysctl systemd timezone
tls-verify tmpfs tz uidmap gidmap umask unsetenv use-api-socket userns uts variant volume-driver
"""
OPTIONS = frozenset("--" + name for name in TAKEN.split())
# Folders that a mount may not cover inside, and those of the node that would open it to the container.
COVERED = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr",
           "/usr/bin", "/usr/lib", "/usr/sbin", "/var", "/var/lib")  # fmt: skip
OPENED = ("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/usr", "/var", "/var/lib", "/var/run")
BELOW = ("/proc", "/sys", "/etc/shadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh", "/root/.ssh", "/var/lib/docker",
         "/var/lib/containers", "/run/docker", "/run/containerd")  # fmt: skip
SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock", "dockerd.sock")
ULIMITS = ("as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
           "rtprio", "rttime", "sigpending", "stack")  # fmt: skip
IPC = re.compile(r"host|private|shareable|none|(container|ns):\S+")
DEVICE = re.compile(r"/dev/[^:\s]+(:/[^:\s]+)?(:[rwm]{1,3})?|[a-z0-9][a-z0-9.-]*\.[a-z]+/[A-Za-z0-9_.-]+=[\w.:-]+")
# Options without a value; any other without "=" would take the next word, the image at last.
SWITCHES = (
    "--disable-content-trust", "--no-healthcheck", "--oom-kill-disable", "--privileged", "--publish-all", "--read-only",
)  # fmt: skip
# Variables that steer the engine's client or the programs that it starts; a secret of that name would do so too.
CLIENT_VARIABLES = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "LD_", "XDG_")


def mount_word(mount):
    """A bind mount as the value of --mount: a line of CSV, so that commas and quotes in paths stay what they are."""
    fields = ["type=bind", "source=" + mount["source"], "target=" + mount["target"]]
    if mount["read_only"]:
        fields.append("readonly")
    return ",".join('"%s"' % field.replace('"', '""') if set(field) & set(',"') else field for field in fields)


def has_own_network(recipe_container):
    """Whether the container's ports are not the node's own."""
    network = recipe_container.get("network", "host")
    return network not in ("host", "none") and not network.startswith(("container:", "ns:"))


def with_defaults(declared, defaults):
    """A recipe's container with what its platform adds: mounts and devices that it lacks, other keys where not set."""
    result = {**defaults, **declared}
    for key, same in (("mounts", lambda one: one.get("target") or one["source"]), ("devices", str)):
        given = declared.get(key, [])
        taken = {same(one) for one in given}
        added = [one for one in defaults.get(key, []) if same(one) not in taken]
        if given or added:
            result[key] = [*given, *added]
    return result


def check_flags(container, where):
    """FleetError for a flag that the launcher sets, that would swallow the next word, or that loses its devices."""
    for flag in container.get("flags", []):
        name, equals, value = flag.partition("=")
        label = value.partition("=")[0] if name == "--label" else ""
        why = OWN_FLAGS.get(name)
        if name == "--gpus" and not container.get("gpus_flag_allowed"):
            why = (
                "a systemctl daemon-reload removes such devices from a running container; use container.devices, or "
                "set container.gpus_flag_allowed: true if nothing on the node runs daemon-reload"
            )
        elif label in (LABEL_SERVER, LABEL_ROOT, LABEL_HASH):
            why = "this label is set by the launcher"
        elif why is None and name not in OPTIONS:
            close = close_to(name, [*OPTIONS, *OWN_FLAGS])
            why = "docker run and podman run have no such option" + ("; did you mean %s?" % close if close else "")
        elif why is None and not equals and name not in SWITCHES:
            why = "it has no value; write one word, %s=VALUE" % name
        if why is not None:
            raise FleetError(
                "plan.container-flag",
                "%s: container.flags has %s: %s. Correct or remove the flag.",
                (where, show(flag), why),
            )


def check_values(container, where):
    """FleetError for a value that the engine would refuse only when it starts the container, or that pins no image."""
    image, ipc = container["image"], container.get("ipc")
    where += ": container."
    if not container.get("digest") and ":" not in image.rpartition("/")[2]:
        raise invalid(where + "image", image, "an image with a tag or with container.digest")
    if ipc and not IPC.fullmatch(ipc):
        raise invalid(where + "ipc", ipc, "host, private, shareable, none, container:NAME")
    if container.get("network") == "none":
        raise invalid(where + "network", "none", "host, or a network's name")
    for name, value in container.get("ulimits", {}).items():
        soft, _colon, hard = str(value).partition(":")
        if name not in ULIMITS:
            raise unknown_key(where + "ulimits", name, value, ULIMITS)
        if hard and int(hard) != -1 and not 0 <= int(soft) <= int(hard):
            raise invalid("%sulimits.%s" % (where, name), value, "SOFT:HARD, with a soft limit up to the hard limit")
    for index, device in enumerate(container.get("devices", [])):
        if not DEVICE.fullmatch(device.replace("${device}", "0")) or "/.." in device:
            allowed = "a path below /dev, or a CDI name, VENDOR/CLASS=NAME"
            raise invalid("%sdevices[%d]" % (where, index), device, allowed)


def _check_mount(where, mount, targets):
    """FleetError for a mount that hides files that the image needs, or that exposes the node."""
    source, target = ("/" + posixpath.normpath(mount[key]).lstrip("/") for key in ("source", "target"))
    below = any(source == one or source.startswith(one + "/") for one in BELOW)
    why = None
    if not mount["source"].startswith("/") or not mount["target"].startswith("/"):
        why = "is not an absolute path"
    elif set(source + target) & set("\0\r\n"):
        why = "contains a line break"
    elif target in targets:
        why = "has the target of another mount"
    elif target == "/" or target in COVERED or target.startswith(("/proc/", "/sys/")):
        why = "would hide files that the image needs"
    elif source == "/" or source in OPENED or below or posixpath.basename(source) in SOCKETS:
        why = "would let the container change the node"
    if why:
        raise FleetError(
            "plan.container-mount",
            "%s: %s:%s %s. Mount a folder that is only for this server, for example /srv/data.",
            (where, visible(source), visible(target), why),
        )


def check_texts(where, texts):
    """FleetError for a string that does not reach a container as it is: engines take them as JSON, which is Unicode."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise invalid(where, text, "valid Unicode in a container's command and environment") from None


def check_secrets(where, secrets):
    """FleetError for a variable that goes through the client's environment, as secrets do, and that it would read."""
    for name in secrets:
        if name in ("PATH", "HOME") or name.startswith(CLIENT_VARIABLES):
            raise invalid(
                where + ": the name of a secret", name, "names that the container engine's client does not read"
            )


def resolve(declared, where, engine, devices, inputs, directories, texts):
    """The entry's `container` from the recipe's (placeholders replaced, ${device} apart).

    engine: what `auto` means. devices: numbers of the server's devices. inputs: paths that are mounted for reading
    where one of `texts` names them. directories: the server's own, mounted for writing. Raises FleetError.
    """
    check_flags(declared, where)
    check_values(declared, where)
    engine, given = engine_of(declared, engine), declared.get("flags", [])
    mounts, targets = [], set()
    for mount in declared.get("mounts", []):
        mount = {"source": mount["source"], "target": mount.get("target") or mount["source"],
                 "read_only": mount.get("read_only", False)}  # fmt: skip
        _check_mount(where + ": container.mounts", mount, targets)
        targets.add(posixpath.normpath(mount["target"]))
        mounts.append(mount)
    named = [path for path in inputs if path and _is_named(path, texts)]
    automatic = [(path, True) for path in named] + [(path, False) for path in directories]
    for path, read_only in dict(automatic).items():
        if posixpath.normpath(path) not in targets:
            targets.add(posixpath.normpath(path))
            mounts.append({"source": path, "target": path, "read_only": read_only})
    found = []
    for item in declared.get("devices", []):
        found += [item.replace("${device}", str(device)) for device in devices] if "${device}" in item else [item]
    flags = ["--network=" + declared.get("network", "host")]
    options = {"ipc": "ipc", "shm-size": "shm_size", "user": "user"}
    flags += ["--%s=%s" % (option, declared[key]) for option, key in options.items() if declared.get(key)]
    flags += ["--ulimit=%s=%s" % item for item in declared.get("ulimits", {}).items()]
    if engine == "podman" and not any(flag.startswith("--security-opt=label") for flag in given):
        flags.append("--security-opt=label=disable")  # the node's files are not relabelled for SELinux
    flags += given
    return {
        "engine": engine,
        "address": declared.get("address"),
        "image": declared["image"],
        "digest": declared.get("digest"),
        "mounts": mounts,
        "devices": found,
        "flags": flags,
        "workdir": declared.get("workdir") or directories[0],
        "entrypoint": declared.get("entrypoint"),
        "user": declared.get("user"),
    }


def _is_named(path, texts):
    """Whether a path is in one of the strings, also with a file or folder below it."""
    pattern = re.compile(re.escape(path) + r"(?![\w.-])")
    return any(pattern.search(text) for text in texts)


def engine_of(declared, engine):
    """docker or podman, of a recipe's container; engine: what `auto` means."""
    chosen = declared.get("engine", "auto")
    return chosen if chosen != "auto" else engine or DEFAULT_ENGINE


def named_variables(engine, environment):
    """Names whose values the client takes from its own environment, where the guard puts them.

    podman (4.3) drops the carriage return before a line feed of a value in its argv.
    """
    return [name for name, value in environment.items() if engine == "podman" and "\r\n" in value]


def launch_argv(entry, root):
    """The whole foreground run command of an entry whose `container` and `command` are set.

    Its label with the entry's hash, which this is a part of, is added by the guard when it starts it.
    """
    container = entry["container"]
    argv = [container["engine"]]
    if container["address"]:
        argv += ["--host" if container["engine"] == "docker" else "--url", container["address"]]
    argv += ["run", "--rm", "--init", "--pull=never", "--log-driver=none", "--stop-timeout=%d" % STOP_S]
    argv += ["--name=" + container_name(entry["name"], root)]
    argv += ["--label=%s=%s" % item for item in ((LABEL_SERVER, entry["name"]), (LABEL_ROOT, root or "/"))]
    argv += container["flags"]
    if entry["cpus"]:
        argv.append("--cpuset-cpus=" + entry["cpus"])
    argv.append("--workdir=" + container["workdir"])
    argv += ["--mount=" + mount_word(mount) for mount in container["mounts"]]
    argv += ["--device=" + device for device in container["devices"]]
    # By these two the container's processes are found in the node's /proc, as those of a process are; see the guard.
    markers = {MARKER_SERVER: entry["name"], MARKER_ROOT: root or "/"}
    environment = {**registry.engine_of(entry).environment, **entry["environment"], **markers}
    by_name = named_variables(container["engine"], environment)
    argv += ["--env=" + (name if name in by_name else "%s=%s" % (name, value)) for name, value in environment.items()]
    argv += ["--env=" + name for name in entry["secrets"]]
    if container["entrypoint"] is not None:
        argv.append("--entrypoint=" + container["entrypoint"])
    image, digest = container["image"], container["digest"]
    return [*argv, pinned_reference(image, digest), *entry["command"]]
