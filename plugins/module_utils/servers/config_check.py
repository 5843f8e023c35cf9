# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether engines take their configuration files, asked of their own images while what runs before goes on serving."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid

from ansible_collections.inference.fleet.plugins.module_utils.containers.engine import EngineError, engine_of_entry
from ansible_collections.inference.fleet.plugins.module_utils.engines.registry import engine_of
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_json, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.node.paths import PREFIX
from ansible_collections.inference.fleet.plugins.module_utils.servers.staging import make_folder

CHECK_S = 180  # an engine's own modules take long to import
MARK = "inference-fleet-verdict: "
REMEMBERED = 64


def check_configs(node, servers):
    """FleetError for the first server whose image refuses its configuration file.

    servers: [Desired] that are about to be started. What gives no verdict is a warning of the node's. An image that
    took a file is not asked again for the same one.
    """
    path = node.paths.lib + "/config-checks.json"
    known = read_json(path)
    known = known if isinstance(known, list) else []
    fresh, asked = [], {}
    for server in servers:
        entry = server.entry
        question = engine_of(entry).config_check(entry)
        engine = engine_of_entry(entry)
        if question is None or engine is None or server.config is None:
            continue
        program, arguments = question
        container = entry["container"]
        image = _image(engine, container)
        parts = [image["id"], program, *arguments, server.config]
        key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        if key in known or key in asked:
            continue
        asked[key], words = _ask(engine, entry, image["reference"], program, arguments, server.config)
        if asked[key] == "refused":
            raise FleetError(
                "servers.config-refused",
                "Server '%s': %s, asked in the image %s, refuses its configuration: %s. Correct config.content or take "
                "an image that has it. Nothing was changed.",
                (entry["name"], entry["engine"], container["image"], words.rstrip(".")),
            )
        if asked[key] == "taken":
            fresh.append(key)
        else:
            node.warnings.append(
                "%s: whether %s takes its configuration could not be asked of the image %s (%s). It is started without "
                "that." % (entry["name"], entry["engine"], container["image"], words)
            )
    if fresh:
        make_folder(node.paths.lib)
        write_atomic(path, json.dumps([*known, *fresh][-REMEMBERED:]))


def _image(engine, container):
    """What the engine knows of a container's image, which was there a moment ago; else its name."""
    with contextlib.suppress(EngineError):
        found = engine.find_image(container["image"], container["digest"])
        if found:
            return found
    return {"id": container["image"], "reference": container["image"]}


def _ask(engine, entry, image, program, arguments, text):
    """(taken, refused or unknown, words). A container without network and devices; it writes nowhere."""
    name = "%scheck-%s" % (PREFIX, uuid.uuid4().hex[:12])
    targets = {one["target"]: one["source"] for one in entry["container"]["mounts"]}
    mounts = ["--volume=%s:%s:ro" % (targets[path], path) for path in entry["weights"] if path in targets]
    labels = [flag for flag in entry["container"]["flags"] if flag.startswith("--security-opt=label")]
    argv = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--name=" + name, *labels, *mounts,
            "--entrypoint=python3", image, "-c", program, MARK, *arguments]  # fmt: skip
    try:
        output = engine.call(*argv, timeout=CHECK_S, text=text)
    except EngineError as error:
        if error.kind == "timeout":
            with contextlib.suppress(EngineError):
                engine.call("rm", "--force", name)
        return "unknown", error.words
    lines = [line[len(MARK) :] for line in output.splitlines() if line.startswith(MARK)]
    try:
        found = json.loads(lines[-1])
        return engine_of(entry).config_verdict(found["verdict"], found["words"])
    except (IndexError, KeyError, TypeError, ValueError):
        return "unknown", "it printed no verdict"
