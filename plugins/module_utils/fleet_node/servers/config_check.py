# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether engines take their configuration files and command lines, asked of their own new images and environments.

What runs before goes on serving meanwhile.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import pwd
import shutil
import tempfile
import uuid

from ..containers.engine import EngineError, engine_of_entry
from ..engines.registry import engine_of
from ..errors import FleetError
from ..host import commands
from ..host.files import read_json, write_atomic
from ..host.paths import PREFIX
from .server_files import make_folder

CHECK_S = 180  # an engine's own modules take long to import
MARK = "inference-fleet-verdict: "
REMEMBERED = 256
# What is asked, and what to correct where it is refused.
CONFIG = ("configuration", "config.content or take %s that has it")
COMMAND = ("command line", "arguments or take %s that has them")


class Silent(Exception):
    """A place that does not answer; its words say why."""


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
        found = found or {"id": container["image"], "reference": container["image"]}  # it was there a moment ago
        self.id, self.reference = found["id"], found["reference"]

    def run(self, program, arguments, text):
        name = "%scheck-%s" % (PREFIX, uuid.uuid4().hex[:12])
        targets = {one["target"]: one["source"] for one in self.entry["container"]["mounts"]}
        mounts = ["--volume=%s:%s:ro" % (targets[path], path) for path in self.entry["weights"] if path in targets]
        labels = [flag for flag in self.entry["container"]["flags"] if flag.startswith("--security-opt=label")]
        argv = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--name=" + name, *labels, *mounts,
                "--entrypoint=python3", self.reference, "-c", program, MARK, *arguments]  # fmt: skip
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
        folder = os.path.dirname(os.path.dirname(python))
        self.label = "the environment " + folder
        packages = glob.glob(glob.escape(folder) + "/lib/python3*/site-packages")
        self.id = "\0".join([folder, *("%s %d" % (one, os.stat(one).st_mtime_ns) for one in sorted(packages))])

    def run(self, program, arguments, text):
        home = tempfile.mkdtemp(prefix=PREFIX + "check-")
        user = {}
        try:
            if self.user is not None and os.geteuid() == 0:
                account = pwd.getpwnam(self.user)
                os.chown(home, account.pw_uid, account.pw_gid)
                user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            variables = {"PATH": os.defpath, "LANG": "C.UTF-8", **self.environment, "HOME": home, "TMPDIR": home}
            # the same bytes as the file will have, lone surrogates included
            text = text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
            argv = [self.python, "-c", program, MARK, *arguments]
            done = commands.run(argv, limit_s=CHECK_S, text=text, errors="surrogateescape", cwd=home, env=variables,
                                **user)  # fmt: skip
        except commands.TimedOut as error:
            raise Silent("it did not end within %d s" % CHECK_S) from error
        except (OSError, KeyError, FleetError) as error:
            raise Silent(str(error)) from error
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return done.stdout.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check_configs(node, servers):
    """FleetError for the first server whose image or environment refuses its configuration file or command line.

    servers: [DesiredServer] that are about to be started. If there is no verdict, the node gets a warning. Accepted
    files and commands are not asked again in the same place; the command lines of a place are asked together.
    """
    path = node.paths.lib + "/config-checks.json"
    known = read_json(path)
    known = known if isinstance(known, list) else []
    fresh, refusal = [], None
    for place, program, arguments, what, asked in _questions(servers, set(known)):
        texts = list(asked)
        text = texts[0] if what is CONFIG else json.dumps([json.loads(one) for one in texts])
        try:
            verdicts = _verdicts(place.run(program, arguments, text))
            words = "it printed no verdict"
        except Silent as error:
            verdicts, words = [], str(error)
        for index, one in enumerate(texts):
            server, key = asked[one]
            verdict = verdicts[index] if index < len(verdicts) else {"verdict": "unknown", "words": words}
            found, said = engine_of(server.entry).config_verdict(verdict["verdict"], str(verdict["words"]))
            if found == "taken":
                fresh.append(key)
            elif found == "refused" and refusal is None:
                refusal = (server.entry["name"], server.entry["engine"], place.label, what[0], said.rstrip("."),
                           what[1] % place.kind)  # fmt: skip
            elif found != "refused":
                node.warnings.append(
                    "%s: whether %s takes its %s could not be asked of %s (%s). It is started without that."
                    % (server.entry["name"], server.entry["engine"], what[0], place.label, said)
                )
    if fresh:
        make_folder(node.paths.lib)
        write_atomic(path, json.dumps([*known, *fresh][-REMEMBERED:]))
    if refusal:
        raise FleetError(
            "servers.config-refused",
            "Server '%s': %s, asked in %s, refuses its %s: %s. Nothing was changed. Correct %s.",
            refusal,
        )


def _questions(servers, known):
    """[(place, program, arguments, what, {text: (server, key)})] of what no place is known to take."""
    groups, places = {}, {}
    for server in servers:
        entry, engine = server.entry, engine_of(server.entry)
        found = _place(server)
        if found is None:
            continue
        place = places.setdefault((type(found), found.id), found)
        config, command = engine.config_check(entry), engine.command_check(entry, server.config)
        asked = []
        if config and entry["container"] and server.config is not None:
            asked.append((CONFIG, config[0], tuple(config[1]), server.config))
        if command:
            asked.append((COMMAND, command[0], (), json.dumps(command[1])))
        for what, program, arguments, text in asked:
            parts = [place.id, program, *arguments, text]
            key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
            if key not in known:
                alone = text if what is CONFIG else ""
                group = groups.setdefault((place.id, program, arguments, alone), (place, program, arguments, what, {}))
                group[4].setdefault(text, (server, key))
    return list(groups.values())


def _place(server):
    """Where a server's engine can be asked, None where that is not known."""
    engine = engine_of_entry(server.entry)
    if engine is not None:
        return _Image(server, engine)
    program = server.entry["command"][0]
    python = os.path.join(os.path.dirname(program), "python3")
    return _Environment(server, python) if os.path.isabs(program) and os.access(python, os.X_OK) else None


def _verdicts(output):
    """[{verdict, words}] that a program printed."""
    found = []
    for line in output.splitlines():
        if line.startswith(MARK):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                verdict = json.loads(line[len(MARK) :])
                found.append({"verdict": verdict["verdict"], "words": verdict["words"]})
    return found
