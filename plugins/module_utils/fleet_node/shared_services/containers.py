# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A shared service in a container: whether its image is on the node, and whether a stopped one is gone.

`container` is {engine, image, digest, name}, empty for a service that is no container. The image is pulled by the role
container_engine.
"""

from __future__ import annotations

import time

from ..containers.engine import Engine, EngineError, pinned_reference
from ..containers.images import ensure_image
from ..containers.launcher import engine_failure
from ..errors import FleetError
from ..node.processes import port_holder

GONE_S = 15
POLL_S = 0.3


def image_fault(container):
    """Why the container could not be started, "" where its image is here."""
    if not container:
        return ""
    image, digest = container["image"], container.get("digest")
    if ensure_image(image, digest, container["engine"], check_mode=True)["changed"]:
        return "the image %s is not on this node" % pinned_reference(image, digest)
    return ""


def engine_missing(container):
    """Whether the program of its engine is not installed."""
    try:
        return bool(container) and not Engine(container["engine"]).program()
    except EngineError:
        return True


def prove_stopped(what, ports, container):
    """FleetError unless all [(address, port)] are free and the container is gone, within some seconds."""
    end = time.monotonic() + GONE_S
    while True:
        left = _left(what, ports, container)
        if not left:
            return
        if time.monotonic() > end:
            raise FleetError(
                "service.still-runs",
                "%s was stopped, but %s is still there. Look at what it is and end it, then run again.",
                (what, left),
            )
        time.sleep(POLL_S)


def _left(what, ports, container):
    for address, port in ports:
        holder = port_holder(address, port)
        if holder is not None:
            return "process %s of %s, which holds port %d" % (holder["pid"] or "?", holder["user"], port)
    if container and not engine_missing(container):
        engine = Engine(container["engine"])
        try:
            holder = engine.holder_of_name(container["name"])
        except EngineError as error:
            raise engine_failure(engine, error, what + ": ") from error
        if holder:
            return "container %s (%s)" % (container["name"], holder[0][:12])
    return ""
