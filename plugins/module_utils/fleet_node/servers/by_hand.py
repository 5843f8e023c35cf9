# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of a known engine on planned ports that were started by hand, as a process or in a container."""

from __future__ import annotations

import contextlib
import os
import re

from ..containers.engine import Engine, EngineError
from ..engines.registry import ENGINES
from ..host import processes
from ..host.files import read_text

# In the name of a control group. libpod-conmon: podman's monitor, which listens on published ports.
CONTAINER = re.compile(r"(docker|libpod)(?:-conmon)?[-/]([0-9a-f]{64})")
PROXY = "docker-proxy"  # which listens on published ports
ENGINE_S = 10
END_S, KILL_S = 60, 5
SECRET = re.compile(r"(?i)-{1,2}(?:[\w-]*[-_])?(?:keys?|token|secret|password|passwd|auth|credentials?)")


def recognise(holder):
    """{engine, words, pid, image, container} of the server behind a port, None if it is not of a known engine.

    holder: processes.port_holder()'s. words: the masked arguments after the engine's program; container: (kind of the
    container engine, id) or None.
    """
    if holder["pid"] is None:
        return None
    container, found = None, None
    with contextlib.suppress(EngineError):
        container, found = _container(holder["pid"])
    for pid in (holder["pid"], *([found["State"]["Pid"]] if found else [])):
        words = processes.argv(pid)
        for name, engine in ENGINES.items():
            arguments = _after(words, engine.programs)
            if arguments is not None:
                image = found["Config"]["Image"] if found else None
                return {"engine": name, "words": masked(arguments), "pid": pid, "image": image, "container": container}
    return None


def end(found):
    """End a recognised server: TERM, and KILL after END_S. Returns whether it has ended."""
    if found["container"]:
        kind, ident = found["container"]
        engine = Engine(kind, call_s=END_S + ENGINE_S)
        with contextlib.suppress(EngineError):  # it would start it again; podman before 5 cannot change that
            engine.call("update", "--restart=no", ident)
        with contextlib.suppress(EngineError):
            engine.call("stop", "--time", str(END_S), ident)
    return not processes.terminate([found["pid"]], END_S, KILL_S)


def masked(words):
    """The words of a command with keys, tokens and passwords masked. An option can have several values."""
    found, secret = [], False
    for word in words:
        if word.startswith("-"):
            secret = bool(SECRET.fullmatch(word))
        found.append(processes.MASK if secret and not word.startswith("-") else _masked(word))
    return found


def _masked(word):
    name, equals, _value = word.partition("=")
    if equals and SECRET.fullmatch(name):
        return name + equals + processes.MASK
    return word if word.startswith("--") else processes.masked(word)


def _after(words, programs):
    """The words after the first of these programs in a command, None if it has none of them."""
    names = [os.path.basename(word) for word in words]
    for program in programs:
        for at in range(len(words)):
            if tuple(names[at : at + len(program)]) == program:
                return words[at + len(program) :]
    return None


def _container(pid):
    """((kind, id), inspected) of the container that a process is in or publishes ports for, (None, None) if there is
    none. Raises EngineError."""
    words = processes.argv(pid)
    found = CONTAINER.search(read_text("/proc/%d/cgroup" % pid) or "")
    kind, ident = ("podman" if found[1] == "libpod" else found[1], found[2]) if found else ("docker", None)
    engine = Engine(kind, call_s=ENGINE_S)
    if words and os.path.basename(words[0]) == PROXY and "-host-port" in words[:-1]:
        port = words[words.index("-host-port") + 1]
        ident = engine.call("ps", "--quiet", "--no-trunc", "--filter", "publish=" + port).strip() or None
    inspected = engine.container(ident) if ident else None
    return ((kind, ident), inspected) if inspected else (None, None)
