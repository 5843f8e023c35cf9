# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's container runs with, as its engine tells it, and how that differs from the server's entry: another
image than the one that its name leads to now, and limits that `docker update` or `podman update` changed."""

from __future__ import annotations

import contextlib
import re

from ..containers.engine import EngineError, engine_of_entry
from ..node.cpu_list import parse_cpu_list

UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
DIGITS = 12  # of an image's id, for a person


def _size(text):
    number, unit = re.fullmatch(r"([0-9.]+)([bkmgt]?)b?", text.lower()).groups()
    return int(float(number) * UNITS[unit])


def _cpus(text):
    return parse_cpu_list(text) or 0


# What the engines call a limit that can be changed while a container runs: (flags that set it, how their value is read)
LIMITS = {
    "Memory": (("--memory", "-m"), _size),
    "MemoryReservation": (("--memory-reservation",), _size),
    "NanoCpus": (("--cpus",), lambda text: round(float(text) * 1e9)),
    "CpuShares": (("--cpu-shares", "-c"), int),
    "CpusetCpus": (("--cpuset-cpus",), _cpus),
    "CpusetMems": (("--cpuset-mems",), _cpus),
}


def look_at(entry, containers):
    """{image: the id of its image, named: of the one that the entry's name leads to now, None for one that is not here;
    limits: {name: value}} of the running container of an entry; None without one, or without an answer."""
    engine = engine_of_entry(entry)
    running = [one for one in containers if one.running]
    if engine is None or len(running) != 1:
        return None
    with contextlib.suppress(EngineError):
        found = engine.container(running[0].id)
        named = engine.find_image(entry["container"]["image"], entry["container"]["digest"])
        if found:
            own = engine.image(found["Image"]) if named and found.get("Image") else None
            host = found.get("HostConfig") or {}
            return {"image": own and own["id"], "named": named and named["id"],
                    "limits": {name: host.get(name) for name in LIMITS}}  # fmt: skip
    return None


def differences(entry, found):
    """[sentence] of what look_at() found."""
    told = []
    if found["named"] and found["image"] and found["named"] != found["image"]:
        told.append(
            "%s is another image by now (%s) than its container runs (%s)"
            % (entry["container"]["image"], _short(found["named"]), _short(found["image"]))
        )
    launch = entry["launch"][: len(entry["launch"]) - len(entry["command"])]
    for name, (flags, read) in LIMITS.items():
        try:
            texts = [value for flag in flags for value in _values(launch, flag)]
            planned = read(texts[-1]) if texts else 0
            now = found["limits"][name] or 0
            now = read(now) if isinstance(now, str) else now
        except (AttributeError, ValueError):  # in words of an engine that are not known here
            continue
        if now != planned:
            told.append("%s of its container is %s instead of %s" % (name, _shown(now), _shown(planned)))
    return told


def _short(ident):
    return ident.rpartition(":")[2][:DIGITS]


def _values(launch, flag):
    """What an option has been given in an argv, with "=" or as the next word."""
    for at, word in enumerate(launch):
        if word.startswith(flag + "="):
            yield word[len(flag) + 1 :]
        elif word == flag and at + 1 < len(launch):
            yield launch[at + 1]


def _shown(value):
    return ",".join(map(str, sorted(value))) if isinstance(value, (set, frozenset)) else value or "unlimited"
