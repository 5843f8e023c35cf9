# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled artifacts: their keys, the server that compiles each artifact, and the servers that wait for it.

An engine loads any artifact in its directory, silently, whatever it was compiled for. The directory is therefore named
after a hash of everything that a compilation depends on (${artifact_key}).
"""

from __future__ import annotations

import json
import os
import re

from ....module_utils.fleet_node.errors import FleetError
from ....module_utils.fleet_node.host.server_spec import artifact_key, digest, start_order
from ....module_utils.fleet_node.platforms.neuron.kinds import uses_nxdi

VERSION = 1  # increase it if the composition of the key changes: every artifact is compiled again
LENGTH = 16
# Placeholders for the name of the server, its host or directories; keys do not depend on their values.
with open(os.path.join(os.path.dirname(__file__), "keys.json"), encoding="utf-8") as _stream:
    DATA = json.load(_stream)
NEUTRAL, SERVING_FLAGS = frozenset(DATA["neutral"]), frozenset(DATA["serving_flags"])
SERVING_VARIABLES = re.compile("^(%s)$" % "|".join(DATA["serving_variables"]))


def flag_name(flag):
    """Return a flag in argparse's spelling: vLLM accepts max_num_seqs for max-num-seqs."""
    return flag.replace("_", "-")


def neutral_context(context, names=frozenset()):
    """Return ``context`` in which the placeholders of NEUTRAL, and `names`, are replaced by themselves. Placeholders
    without a value remain without a value."""
    neutral = NEUTRAL | names
    return {
        key: "${%s}" % key if key in neutral and value is not None else value
        for key, value in {**context, **dict.fromkeys(neutral - set(context), "")}.items()
    }


def key_of(server):
    """Return the key (hexadecimal) of the artifact that a server compiles or loads. server: planning.plan.Draft.

    It covers everything that a compilation depends on: the environment and its version, target and draft weights, every
    argument and variable that may change a graph, the kind and number of cores, LNC. It does not cover name, port,
    address, core range or directories, so equal servers of all hosts have the same key. An argument counts unless it is
    known to be harmless: an unnecessary compilation is expensive, but a wrong artifact gives wrong results.
    """
    recipe, hardware, model = server.recipe, server.hardware, server.recipe["model"]
    command, arguments, environment, config = server.read(neutral_context(server.context, server.own_names))
    identity = {
        "version": VERSION,
        "engine": recipe["engine"],
        "accelerator": hardware.accelerator,
        "devices": len(server.devices),
        "lnc": hardware.lnc,
        "venv": _environment(recipe.get("venv")),
        "image": {key: (recipe.get("container") or {}).get(key) for key in ("image", "digest")},
        "model": _weights(model),
        "draft": _weights(model["draft"]) if model.get("draft") else None,
        "command": command,
        "arguments": {
            flag_name(flag): value for flag, value in arguments.items() if flag_name(flag) not in SERVING_FLAGS
        },
        "environment": {key: value for key, value in environment.items() if not SERVING_VARIABLES.match(key)},
        "config": config,
    }
    return digest(identity)[:LENGTH]


def _environment(venv):
    if not venv:
        return None
    return {key: venv.get(key) for key in ("path", "version", "packages", "torch", "python") if venv.get(key)}


def _weights(model):
    """Return weights by repository and revision; if the revision is not known, also by their path."""
    keys = ("repo", "revision", "format", "method") if model.get("revision") else ("repo", "format", "method", "path")
    return {key: model[key] for key in keys if model.get(key)}


def order(entries, leader_first):
    """Make servers wait for the server that compiles their artifact, and reject servers that would damage each other's.

    entries: of a host, without their hashes; start.after is completed in place, and so are the leaders of the hook
    compile_cache, with the servers that are waited for only until the artifact is complete. leader_first: names of
    servers; of those that share an artifact directory, the first to start compiles, and the others start after it.

    Raises FleetError if two servers that start together would both compile a shared artifact, if two servers with
    different keys share an artifact, if a compilation would delete another server's artifact, or if servers wait for
    each other.
    """
    _check_compile([entry for entry in entries if entry["devices"] and uses_nxdi(entry["environment"])])
    by_name = {entry["name"]: entry for entry in entries}
    keys = {name: artifact_key(entry) for name, entry in by_name.items()}
    names = start_order(by_name)
    leaders = {}
    for name in names:
        entry = by_name[name]
        if not entry["devices"]:
            continue
        path = entry["directories"]["artifact"]
        leader = leaders.setdefault(path, name)
        if keys[name] != keys[leader]:
            raise _shared(leader, name, path, "have different keys: one would load the other's artifact silently")
        if name in leader_first and name != leader and leader not in entry["start"]["after"]:
            entry["start"]["after"].append(leader)
            if not entry["start"]["restart_with_leader"]:
                entry["hooks"]["compile_cache"]["leaders"].append(leader)
    before = {}
    for name in names:
        after = by_name[name]["start"]["after"]
        before[name] = set(after).union(*(before.get(other, ()) for other in after))
    _check_shared(entries, before)


def _shared(one, other, path, problem):
    return FleetError("plan.artifact-shared", one, other, path, problem)


def is_within(path, folder):
    """Return whether a normalised path is the folder or is located below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _check_compile(entries):
    """Raises FleetError if a server compiles in a directory that contains another server's output,
    in any order of starts.

    entries: of NxD Inference; the plugin has no such directory. A compilation begins by deleting its complete directory
    (ModelBuilder.trace of NxD Core, SDK 2.26 to 2.29). A server that waits for its leader also compiles, if the
    artifact is lost or cannot be loaded.
    """
    for entry in entries:
        path = entry["directories"]["compile"]
        for other in entries:
            kinds = ("artifact",) if other is entry else ("artifact", "compile")
            for kind in kinds:
                if is_within(other["directories"][kind], path):
                    raise FleetError(
                        "plan.compile-directory-not-own",
                        entry["name"],
                        path,
                        kind,
                        other["directories"][kind],
                        other["name"],
                    )


def _check_shared(entries, before):
    users = {}
    for entry in entries:
        if not entry["devices"]:
            continue
        name = entry["name"]
        others = users.setdefault(entry["directories"]["artifact"], [])
        for other in others:
            # Servers that load the artifact of a common leader do not compile.
            led = before[name] & before[other] & set(others)
            if other not in before[name] and name not in before[other] and not led:
                path = entry["directories"]["artifact"]
                raise _shared(other, name, path, "start together: both would compile in it")
        others.append(name)
