# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that a host's plan entries share: variables of secrets, container engines, images and registries."""

from __future__ import annotations

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.server_spec import leaders_to_follow, start_order
from ...module_utils.fleet_node.servers.api_keys import is_file
from ..base.words import show


def secret_names(servers):
    """Return the names of the variables that contain the servers' secrets, sorted, each once."""
    return sorted({one for entry in servers for one in entry["secrets"].values() if not is_file(one)})


def container_engines(servers):
    """Return the engines of this node that run the servers' containers, sorted,
    without engines at a separate address."""
    found = [entry["container"] for entry in servers if entry["container"]]
    return sorted({container["engine"] for container in found if not container["address"]})


def container_images(servers):
    """Return [{engine, address, image, digest}] of the servers' containers, each once, in the servers' order."""
    found = []
    for entry in servers:
        if entry["container"]:
            image = {key: entry["container"][key] for key in ("engine", "address", "image", "digest")}
            found += [image] if image not in found else []
    return found


def registries(images, mirror=""):
    """Return the hosts of the registries of images (container_images), or of the mirror if it is set."""
    from ...module_utils.fleet_node.containers.engine import split_reference
    from ...module_utils.fleet_node.containers.images import DOCKER_HUB, mirrored

    names = (split_reference(mirrored(image["image"], mirror))[0] for image in images)
    return sorted({name or DOCKER_HUB for name in names})


def batches(servers, meant):
    """Return [[names]] of the selected servers, leaders first, each with the servers that restart with it.
    Raises FleetError.

    servers: plan entries of a host. meant: a name, several with commas between them, a list of names, or "all".
    """
    entries = {entry["name"]: entry for entry in servers}
    known = ", ".join(entries) or "none"
    names = [name.strip() for name in meant.split(",") if name.strip()] if isinstance(meant, str) else meant
    strings = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    names = list(entries) if strings and list(names) == ["all"] else names
    if not strings or not names or set(names) - set(entries):
        raise FleetError("restart.server-unknown", show(meant), known)
    found, done = [], set()
    for name in start_order(entries):
        if name in names and name not in done:
            batch = [name]
            for other in start_order(entries):  # leaders come first, so that followers of followers are found
                if other not in batch and set(leaders_to_follow(entries[other])) & set(batch):
                    batch.append(other)
            found.append(batch)
            done.update(batch)
    return found
