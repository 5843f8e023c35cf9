# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container of a plan entry: the recipe's settings, mounts, devices and the complete `docker run` command."""

from __future__ import annotations

import json
import os
import posixpath
import re

from ...module_utils.fleet_node.containers.engine import (
    LABEL_HASH,
    LABEL_ROOT,
    LABEL_SERVER,
    STOP_S,
    container_name,
    pinned_reference,
)
from ...module_utils.fleet_node.engines import registry
from ...module_utils.fleet_node.host.processes import MARKER_ROOT, MARKER_SERVER
from ..base.checks import invalid, unknown_key
from ..base.words import close_to

DEFAULT_ENGINE = "docker"
# own: options that the launcher or keys of the recipe (environment, secrets, cpus, container.*) set; other: further
# options of `docker run` and `podman run`; switches: options without a value. covered: folders that a mount must not
# hide; opened, below, sockets: paths of the node that a mount must not expose.
with open(os.path.join(os.path.dirname(__file__), "container_options.json"), encoding="utf-8") as _stream:
    TABLES = json.load(_stream)
OWN_FLAGS, OPTIONS, SWITCHES = (frozenset("--" + one for one in TABLES[name]) for name in ("own", "other", "switches"))
# Variables that configure the container engine's client or the programs that it starts. A secret of that name would
# configure them, too.
CLIENT_VARIABLES = ("DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "LD_", "XDG_")


def mount_word(mount):
    """Return a bind mount as the value of --mount: a line of CSV, which preserves commas and quotes in paths."""
    fields = ["type=bind", "source=" + mount["source"], "target=" + mount["target"]]
    if mount["read_only"]:
        fields.append("readonly")
    return ",".join('"%s"' % field.replace('"', '""') if set(field) & set(',"') else field for field in fields)


def has_own_network(recipe_container):
    """Return whether the container's ports differ from the node's ports."""
    network = recipe_container.get("network", "host")
    return network != "host" and not network.startswith(("container:", "ns:"))


def with_defaults(declared, defaults):
    """Return a recipe's container with the defaults of its platform:
    missing mounts and devices, and other keys that are not set."""
    result = {**defaults, **declared}
    for key, same in (("mounts", lambda one: one.get("target") or one["source"]), ("devices", str)):
        given = declared.get(key, [])
        taken = {same(one) for one in given}
        added = [one for one in defaults.get(key, []) if same(one) not in taken]
        if given or added:
            result[key] = [*given, *added]
    return result


def check_flags(container, where):
    """Raises FleetError for a flag that the launcher sets, that lacks its value, or that loses its devices."""
    for flag in container.get("flags", []):
        name, equals, value = flag.partition("=")
        label = value.partition("=")[0] if name == "--label" else ""
        allowed = None
        if name == "--gpus" and not container.get("gpus_flag_allowed"):
            allowed = (
                "container.devices, since a systemctl daemon-reload removes the devices of --gpus from a running "
                "container; or container.gpus_flag_allowed: true if nothing on the node runs daemon-reload"
            )
        elif name in OWN_FLAGS or label in (LABEL_SERVER, LABEL_ROOT, LABEL_HASH):
            allowed = "options that neither the launcher nor other keys set: environment, secrets, cpus, container.*"
        elif name not in OPTIONS:
            close = close_to(name, [*OPTIONS, *OWN_FLAGS])
            allowed = "options of docker run and podman run" + (", such as %s" % close if close else "")
        elif not equals and name not in SWITCHES:
            allowed = "one word with a value, %s=VALUE" % name
        if allowed is not None:
            raise invalid(where + ": container.flags", flag, allowed)


def check_values(container, where):
    """Raises FleetError for a value that the container engine rejects at the start,
    or for an image that is not pinned."""
    image, where = container["image"], where + ": container."
    if not container.get("digest") and ":" not in image.rpartition("/")[2]:
        raise invalid(where + "image", image, "an image with a tag or with container.digest")
    for name, value in container.get("ulimits", {}).items():
        soft, _colon, hard = str(value).partition(":")
        if name not in TABLES["ulimits"]:
            raise unknown_key(where + "ulimits", name, value, TABLES["ulimits"])
        if hard and int(hard) != -1 and not 0 <= int(soft) <= int(hard):
            raise invalid("%sulimits.%s" % (where, name), value, "SOFT:HARD, with a soft limit up to the hard limit")


def _check_mount(where, mount, targets):
    """Raises FleetError for a mount that hides files that the image needs, or that exposes the node."""
    source, target = ("/" + posixpath.normpath(mount[key]).lstrip("/") for key in ("source", "target"))
    below = any(source == one or source.startswith(one + "/") for one in TABLES["below"])
    why = None
    if not mount["source"].startswith("/") or not mount["target"].startswith("/"):
        why = "absolute paths"
    elif target in targets:
        why = "each target once"
    elif target == "/" or target in TABLES["covered"] or target.startswith(("/proc/", "/sys/")):
        why = "a target that hides no files of the image"
    elif source == "/" or source in TABLES["opened"] or below or posixpath.basename(source) in TABLES["sockets"]:
        why = "a source that does not let the container change the node"
    if why:
        raise invalid(where, "%s:%s" % (source, target), why + ", for example /srv/data:/data")


def check_texts(where, texts):
    """Raises FleetError for a string that is not Unicode: container engines pass strings to containers as JSON."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise invalid(where, text, "valid Unicode in a container's command and environment") from None


def check_secrets(where, secrets):
    """Raises FleetError for a secret whose name is a variable of the container engine's client."""
    for name in secrets:
        if name in ("PATH", "HOME") or name.startswith(CLIENT_VARIABLES):
            allowed = "names that the container engine's client does not read"
            raise invalid(where + ": the name of a secret", name, allowed)


def resolve(declared, where, engine, devices, inputs, directories, texts):
    """Return the entry's `container` from the recipe's container (placeholders replaced, except ${device}).

    engine: the engine that `auto` selects. devices: numbers of the server's devices. inputs: paths that are mounted
    read-only if a string in `texts` contains them. directories: the server's directories, mounted for writing. Raises
    FleetError.
    """
    check_flags(declared, where)
    check_values(declared, where)
    chosen, given, mounts = declared.get("engine", "auto"), declared.get("flags", []), {}
    engine = chosen if chosen != "auto" else engine or DEFAULT_ENGINE
    for one in declared.get("mounts", []):
        mount = {"source": one["source"], "target": one.get("target") or one["source"]}
        _check_mount(where + ": container.mounts", mount, mounts)
        mounts[posixpath.normpath(mount["target"])] = {**mount, "read_only": one.get("read_only", False)}
    automatic = [(path, True) for path in inputs if path and _is_named(path, texts)]
    for path, read_only in dict(automatic + [(path, False) for path in directories]).items():
        mounts.setdefault(posixpath.normpath(path), {"source": path, "target": path, "read_only": read_only})
    found = []
    for item in declared.get("devices", []):
        found += [item.replace("${device}", str(device)) for device in devices] if "${device}" in item else [item]
    flags = ["--network=" + declared.get("network", "host")]
    options = {"ipc": "ipc", "shm-size": "shm_size", "user": "user"}
    if engine == "podman" and (declared.get("ipc") or "private") not in ("private", "shareable"):
        del options["shm-size"]  # another /dev/shm than the container's own, or none; podman refuses both
    flags += ["--%s=%s" % (option, declared[key]) for option, key in options.items() if declared.get(key)]
    flags += ["--ulimit=%s=%s" % item for item in declared.get("ulimits", {}).items()]
    if engine == "podman" and not any(flag.startswith("--security-opt=label") for flag in given):
        flags.append("--security-opt=label=disable")  # the node's files are not relabelled for SELinux
    if engine == "podman" and not any(flag.startswith("--pids-limit=") for flag in given):
        flags.append("--pids-limit=-1")  # podman's default is 2048 threads, docker's none
    flags += given
    return {
        "engine": engine,
        **{key: declared.get(key) for key in ("address", "image", "digest")},
        "mounts": list(mounts.values()),
        "devices": found,
        "flags": flags,
        "workdir": declared.get("workdir") or directories[0],
        **{key: declared.get(key) for key in ("entrypoint", "user")},
    }


def _is_named(path, texts):
    """Return whether a string contains a path, or a file or folder below it."""
    pattern = re.compile(re.escape(path) + r"(?![\w.-])")
    return any(pattern.search(text) for text in texts)


def launch_argv(entry, root):
    """Return the complete foreground run command of an entry whose `container` and `command` are set.

    The guard adds the label with the entry's hash when it starts the container, because the hash covers this command.
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
    # These two identify the container's processes in the node's /proc, as they identify other processes; see the guard.
    markers = {MARKER_SERVER: entry["name"], MARKER_ROOT: root or "/"}
    environment = {**registry.engine_of(entry).environment, **entry["environment"], **markers}
    argv += ["--env=%s=%s" % item for item in environment.items()]
    argv += ["--env=" + name for name in entry["secrets"]]
    if container["entrypoint"] is not None:
        argv.append("--entrypoint=" + container["entrypoint"])
    return [*argv, pinned_reference(container["image"], container["digest"]), *entry["command"]]
