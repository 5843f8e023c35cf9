# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks configuration files and command lines with the engines' own parsers, in their new images and environments,
while the old servers run."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import pwd
import shutil
import tempfile
import uuid

from ..containers.engine import EngineError, engine_of_entry, label_options
from ..engines.registry import engine_of
from ..errors import FleetError
from ..host import commands
from ..host.files import read_json, write_atomic
from ..host.paths import PREFIX
from .desired import owner_of
from .server_files import make_folder

CHECK_S = 180  # engines are slow to import
MARK = "inference-fleet-verdict: "
REMEMBERED = 256
# The subject of a question, and what to correct if it is refused.
CONFIG = ("configuration", "config.content or use %s that has it")
COMMAND = ("command line", "arguments or use %s that has them")


class Silent(Exception):
    """A place did not answer; the message is the reason."""


class _Image:
    """The image of a container, in which a program runs without network and devices; it writes nowhere."""

    kind = "an image"

    def __init__(self, server, engine):
        self.entry, self.engine = server.entry, engine
        container = self.entry["container"]
        self.label = "the image " + container["image"]
        found = None
        with contextlib.suppress(EngineError):
            found = engine.find_image(container["image"], container["digest"])
        found = found or {"id": container["image"], "reference": container["image"]}  # it existed a moment ago
        self.id, self.reference = found["id"], found["reference"]

    def run(self, program, arguments, text):
        name = "%scheck-%s" % (PREFIX, uuid.uuid4().hex[:12])
        targets = {one["target"]: one["source"] for one in self.entry["container"]["mounts"]}
        mounts = ["--volume=%s:%s:ro" % (targets[path], path) for path in self.entry["weights"] if path in targets]
        argv = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--name=" + name,
                *label_options(self.entry["container"]), *mounts, "--entrypoint=python3", self.reference, "-c", program,
                MARK, *arguments]  # fmt: skip
        try:
            return self.engine.call(*argv, timeout=CHECK_S, text=text)
        except EngineError as error:
            if error.kind == "timeout":
                with contextlib.suppress(EngineError):
                    self.engine.call("rm", "--force", name)
            raise Silent(error.words) from error


class _Environment:
    """The Python environment that a process runs in, as the user of that process and with its variables."""

    kind = "an environment"

    def __init__(self, server, python):
        self.python, self.user, self.environment = python, server.user, server.entry["environment"]
        self.cache, self.owner = server.entry["directories"].get("cache"), owner_of(server.entry["name"], server.user)
        folder = os.path.dirname(os.path.dirname(python))
        self.label = "the environment " + folder
        packages = glob.glob(glob.escape(folder) + "/lib/python3*/site-packages")
        self.id = "\0".join([folder, *("%s %d" % (one, os.stat(one).st_mtime_ns) for one in sorted(packages))])

    def run(self, program, arguments, text):
        if self.cache and not os.path.isdir(self.cache):
            make_folder(self.cache, self.owner)  # the engine may keep in it what it finds out about the model
        home = tempfile.mkdtemp(prefix=PREFIX + "check-")
        user = {}
        try:
            if self.user is not None and os.geteuid() == 0:
                account = pwd.getpwnam(self.user)
                os.chown(home, account.pw_uid, account.pw_gid)
                user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            variables = {"PATH": os.defpath, "LANG": "C.UTF-8", **self.environment, "HOME": home, "TMPDIR": home}
            argv = [self.python, "-c", program, MARK, *arguments]
            done = commands.run(argv, limit_s=CHECK_S, text=text, errors="replace", cwd=home, env=variables, **user)
        except commands.TimedOut as error:
            raise Silent("it did not end within %d s" % CHECK_S) from error
        except (OSError, KeyError, FleetError) as error:
            raise Silent(str(error)) from error
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return done.stdout


@dataclasses.dataclass
class _Question:
    """A question to a place. what: CONFIG or COMMAND; key: identifies the question and the place."""

    server: object
    place: object
    what: tuple
    program: str
    arguments: tuple
    text: str

    @property
    def key(self):
        parts = [self.place.id, self.program, *self.arguments, self.text]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def check_configs(node, servers):
    """Raises FleetError for the first server whose image or environment refuses its configuration file or command line.

    servers: [DesiredServer] that are about to be started. If there is no verdict, the node gets a warning. Accepted
    files and commands are not checked again in the same place; the command lines of a place are checked together.
    """
    path = node.paths.lib + "/config-checks.json"
    known = read_json(path) or []
    asked = {one.key: one for server in servers for one in _questions(server) if one.key not in known}
    fresh, refusals = [], []
    for together in _groups(asked.values()):
        for one, (verdict, words) in zip(together, _verdicts(together)):
            entry = one.server.entry
            found, said = engine_of(entry).config_verdict(verdict, words)
            named = (entry["name"], entry["engine"])
            if found == "taken":
                fresh.append(one.key)
            elif found == "refused":
                refusals.append((*named, one.place.label, one.what[0], said.rstrip("."), one.what[1] % one.place.kind))
            else:
                node.warnings.append(
                    "%s: whether %s accepts its %s could not be checked by %s (%s). It is started without that."
                    % (*named, one.what[0], one.place.label, said)
                )
    if fresh:
        make_folder(node.paths.lib)
        write_atomic(path, json.dumps([*known, *fresh][-REMEMBERED:]))
    if refusals:
        raise FleetError("servers.config-refused", *refusals[0])


def _questions(server):
    entry, engine = server.entry, engine_of(server.entry)
    place = _place(server)
    if place is None:
        return
    config, command = engine.config_check(entry), engine.command_check(entry, server.config)
    if config and entry["container"] and server.config is not None:
        yield _Question(server, place, CONFIG, config[0], tuple(config[1]), server.config)
    if command:
        yield _Question(server, place, COMMAND, command[0], (), json.dumps(command[1]))


def _groups(questions):
    """[[_Question]]: the command lines of a place together, and each file by itself."""
    groups = {}
    for one in questions:
        groups.setdefault((one.place.id, one.program, one.key if one.what is CONFIG else ""), []).append(one)
    return groups.values()


def _place(server):
    """Where a server's engine can be run for the check, None if that is not known."""
    engine = engine_of_entry(server.entry)
    if engine is not None:
        return _Image(server, engine)
    program = server.entry["command"][0]
    python = os.path.join(os.path.dirname(program), "python3")
    return _Environment(server, python) if os.path.isabs(program) and os.access(python, os.X_OK) else None


def _verdicts(together):
    """[(verdict, words)] of questions that are checked together; "unknown" for those without an answer."""
    first = together[0]
    text = first.text if first.what is CONFIG else "[%s]" % ", ".join(one.text for one in together)
    found, words = [], "it printed no verdict"
    try:
        for line in first.place.run(first.program, first.arguments, text).splitlines():
            if line.startswith(MARK):
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    verdict = json.loads(line[len(MARK) :])
                    found.append((verdict["verdict"], str(verdict["words"])))
    except Silent as error:
        found, words = [], str(error)
    return found + [("unknown", words)] * (len(together) - len(found))
