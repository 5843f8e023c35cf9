# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's container engine, docker or podman, through its command line: containers of this collection, and images.

Containers are found by their labels, never by their names: another account may own a container of the same name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass

from ..errors import FleetError
from ..host import commands, processes
from ..host import paths as host_paths

ENGINES = ("docker", "podman")
LABEL_SERVER = "inference.fleet.server"
LABEL_HASH = "inference.fleet.hash"
LABEL_ROOT = "inference.fleet.root"
STOP_S = 15  # TERM to KILL
CALL_S = commands.LIMIT_S
QUERY_S = 25  # for queries that an engine answers at once
QUERIES = ("version", "info", "ps", "inspect", "container", "image")
HANGS, HANGS_S = {}, 30  # engines that did not answer a query, and the time for which they are not asked again
NO_CONFIG = "/nonexistent/inference-fleet"  # the client's own configuration may contain proxies and other engines
SEPARATOR = "\x1f"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # podman's, which does not report them
PODMAN_CDI = (4, 1)
FIELDS = ("ID", "Names", "State", "Ports", LABEL_SERVER, LABEL_ROOT, LABEL_HASH)
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # a kernel's name of an architecture: an image's
RUNNING = ("running", "restarting", "paused", "stopping", "removing", "up")  # podman: "Up 5 seconds ago"

PROBLEMS = {  # kind of an EngineError: sentences with the engine's name, its label, its message and the user
    "missing": "There is no {name} on this node. The step prepare installs it (role container_engine); where the node "
               "has another engine, set fleet_container_engine.",
    "down": "{label} does not answer ({words}). Start it: systemctl start {name}. See its log: journalctl -u {name}.",
    "permission": "The user {user} may not use {label} ({words}). Run the play with become, or put that user into the "
                  "group {name}.",
    "timeout": "{label} does not answer: {words}. See its log: journalctl -u {name}.",
}  # fmt: skip

# kind of a failure by the engine's message; the first that matches. images.py has those of pulls.
KINDS = (
    ("permission", r"permission denied while trying to connect|dial unix \S+: connect: permission denied"),
    ("down", r"[Cc]annot connect to the Docker daemon|Is the docker daemon running|[Cc]annot connect to Podman|"
             r"error during connect"),
    ("absent", r"[Nn]o such (?:image|container|object)|image not known|tag not known|no container with name or ID|"
               r": not found"),
)  # fmt: skip


class EngineError(Exception):
    """A call that failed. kind: missing, timeout, other, or a key of KINDS; words: the engine's message in one line."""

    def __init__(self, kind, words):
        super().__init__(words)
        self.kind = kind
        self.words = words

    @classmethod
    def of(cls, output):
        """The error of a client with this output."""
        return cls(kind_of(output), one_line(output))


@dataclass
class Container:
    """A container of this collection. id: the complete ID; root: "/" for an empty root; ports: the ports that it
    publishes on the node, none if it uses the node's network."""

    id: str
    name: str
    running: bool
    server: str
    root: str
    hash: str | None = None
    ports: frozenset = frozenset()


def published(text):
    """The ports on the node in the field Ports of an engine's list, such as "127.0.0.1:8000-8001->8000-8001/tcp"."""
    ranges = re.findall(r":(\d+)(?:-(\d+))?->", text)
    return frozenset(port for first, last in ranges for port in range(int(first), int(last or first) + 1))


def container_name(server, root):
    """Name of a server's container. It contains a hash of the root, so that several roots can use an engine."""
    suffix = "-" + hashlib.sha256(os.fsencode(root)).hexdigest()[:8] if root else ""
    return host_paths.PREFIX + server + suffix


def one_line(text):
    """The last line of an engine's output that reports an error, without the client's prefixes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("See '", "Run '"))] or ["no output"]
    errors = [at for at, line in enumerate(lines) if re.match(r"(?i)error|cannot|docker:", line)] or [len(lines) - 1]
    last = lines[errors[-1]]
    if last.endswith(":"):  # podman lists several answers of a registry below "errors:"
        last = " ".join(lines[errors[-1] :])
    return re.sub(r"^(?:Error response from daemon|docker: Error response from daemon|Error|docker): ", "", last)


def kind_of(words):
    """The kind of a failure (see KINDS) by what the engine printed."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, words)), "other")


class Engine:
    """The client of an engine. kind: docker or podman; address: unix:///PATH of an engine at another socket.

    environment: further variables of the client (an authentication file, proxies). call_s: seconds within which it
    must answer.
    """

    def __init__(self, kind="docker", address=None, environment=None, call_s=CALL_S):
        self.kind = kind
        self.address = address
        self.environment = dict(environment or {})
        self.call_s = call_s

    @property
    def label(self):
        """Its name in messages."""
        return self.kind + (" at %s" % self.address if self.address else "")

    def argv(self, *arguments):
        """The client's argv, with the name of its program."""
        option = "--host" if self.kind == "docker" else "--url"
        return [self.kind, *([option, self.address] if self.address else []), *arguments]

    def client_environment(self):
        """The environment of the client, {str: str}, without variables that select another engine."""
        environment = {"PATH": host_paths.PATH, "LANG": "C.UTF-8", "HOME": os.path.expanduser("~")}
        runtime = os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % os.getuid()
        if os.path.isdir(runtime):  # a rootless engine finds its socket there
            environment["XDG_RUNTIME_DIR"] = runtime
        if self.kind == "docker":
            environment["DOCKER_CONFIG"] = NO_CONFIG
        environment.update(self.environment)
        return environment

    def program(self):
        """The client's path. Raises EngineError (missing)."""
        found = shutil.which(self.kind, path=host_paths.PATH)
        if found is None:
            raise EngineError("missing", "there is no program %s" % self.kind)
        return found

    def call(self, *arguments, timeout=None, check=True, text=None):
        """Return the client's output. Raises EngineError if it fails (unless check is false) or exceeds the time limit.

        text: its input.
        """
        since, late = HANGS.get(self.label, (None, None))
        if late is not None and time.monotonic() < since + HANGS_S:
            raise EngineError("timeout", late.words) from late.__cause__
        timeout = timeout or (min(self.call_s, QUERY_S) if arguments[0] in QUERIES else self.call_s)
        argv = [self.program(), *self.argv(*arguments)[1:]]
        try:
            done = commands.run(argv, limit_s=timeout, text=text, env=self.client_environment())
        except commands.TimedOut as error:
            late = EngineError("timeout", "%s %s did not end within %d s" % (self.kind, arguments[0], timeout))
            if arguments[0] in QUERIES:
                HANGS[self.label] = (time.monotonic(), late)
            raise late from error
        except OSError as error:
            raise EngineError("other", "%s cannot be executed: %s" % (argv[0], error.strerror)) from error
        if check and done.returncode:
            raise EngineError.of(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def ping(self):
        """Return the engine's version. Raises EngineError unless it answers."""
        command, field = ("version", "Server") if self.kind == "docker" else ("info", "Version")
        return self.call(command, "--format", "{{.%s.Version}}" % field).strip()

    def fault(self):
        """The EngineError of an engine that does not answer, or None."""
        try:
            self.ping()
        except EngineError as error:
            return error
        return None

    def cdi(self):
        """(version of the engine, folders in which it looks for descriptions of CDI devices; none without CDI)."""
        if self.kind == "docker":
            known = self.info()
            return known.get("ServerVersion"), known.get("CDISpecDirs") or []
        version = self.ping()
        number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        return version, CDI_FOLDERS if number >= PODMAN_CDI else []

    def info(self):
        """{key: value} of `docker info`, which returns 0 even if no daemon answers. Raises EngineError."""
        known = json.loads(self.call("info", "--format", "{{json .}}"))
        words = one_line("\n".join(known.get("ServerErrors") or ()))
        if known.get("ServerErrors") or not known.get("ServerVersion"):
            raise EngineError("down" if words == "no output" else kind_of(words), words)
        return known

    # ---- containers

    def containers(self, root, server=None):
        """[Container] of this root in all states; server: only those of this server."""
        label = '{{.Label "%s"}}' if self.kind == "docker" else '{{index .Labels "%s"}}'
        form = SEPARATOR.join(label % field if "." in field else "{{.%s}}" % field for field in FIELDS)
        text = self.call("ps", "--all", "--no-trunc", "--filter", "label=" + LABEL_SERVER, "--format", form)
        found = []
        for line in text.splitlines():
            values = line.split(SEPARATOR)
            if len(values) != len(FIELDS):
                continue
            ident, name, state, ports, of_server, of_root, of_hash = values
            if of_root == (root or "/") and server in (None, of_server):
                running = state.lower().split(" ")[0] in RUNNING
                found.append(Container(ident, name, running, of_server, of_root, of_hash or None, published(ports)))
        return sorted(found, key=lambda one: (one.server, one.name))

    def container(self, name):
        """`inspect` of a container by its name or ID, None if it does not exist."""
        return self._inspect("container", name)

    def _inspect(self, kind, name):
        """The output of `inspect`, None if nothing has the name. It differs less between engines than templates."""
        try:
            return json.loads(self.call(kind, "inspect", name))[0]
        except EngineError as error:
            if error.kind == "absent":
                return None
            raise

    def stop(self, containers, seconds=STOP_S):
        """End these containers at once: TERM, and KILL after that time. Missing containers are ignored."""
        running = [one.id for one in containers if one.running]
        if running:
            self._end("stop", "--time", str(seconds), *running, more_s=seconds)

    def remove(self, containers):
        """Kill and remove these containers. Missing containers are ignored."""
        if self.kind == "podman":  # its `rm --force` first waits for the end, as long as --stop-timeout
            self.stop(containers, 0)
        if containers:
            self._end("rm", "--force", *[one.id for one in containers])

    def _end(self, command, *arguments, more_s=0):
        try:
            self.call(command, *arguments, timeout=self.call_s + more_s)
        except EngineError as error:
            # podman stops no container that is paused or half removed; `rm --force` removes it
            ended = r"is already in progress|is not running|can only stop created or running containers"
            if error.kind != "absent" and not re.search(ended, error.words):
                raise

    # ---- images

    def image(self, reference):
        """{id, digests: [NAME@DIGEST], architecture, environment} of an image of this node, or None.

        architecture: amd64, arm64, …; None if the engine does not report it. environment: {variable: value}.
        """
        found = self._inspect("image", reference)
        if not found:
            return None
        ident = found["Id"] if ":" in found["Id"] else "sha256:" + found["Id"]
        variables = (found.get("Config") or {}).get("Env") or []
        return {"id": ident, "digests": found.get("RepoDigests") or [],
                "architecture": found.get("Architecture") or None,
                "environment": dict(word.partition("=")[::2] for word in variables)}  # fmt: skip

    def find_image(self, image, digest=None):
        """image() of NAME:TAG, with that digest if it is given, and `reference`, its name for `run`; None without one.

        The digest of an image from a mirror has the mirror's name; such an image is found by a tag, such as
        digest_tag(), and its digest is compared.
        """
        if not digest:
            found = self.image(image)
            return found and dict(found, reference=image)
        pinned = pinned_reference(image, digest)
        found = self.image(pinned)
        if found:
            return dict(found, reference=pinned)
        for name in (digest_tag(image, digest), image):
            found = self.image(name)
            if found and any(one.endswith("@" + digest) for one in found["digests"]):
                return dict(found, reference=found["id"])
        return None


def check_architecture(engine, wanted, found):
    """Raises FleetError if an image (image()) has another architecture than this machine. wanted: its name."""
    machine = os.uname().machine
    own = MACHINES.get(machine)
    if own and found["architecture"] not in (None, own):
        raise FleetError("containers.image-architecture", wanted, found["architecture"], own, machine, engine.kind)


def split_reference(image):
    """(registry or "", name without it, tag or "") of an image's reference; a digest is not part of it."""
    image = image.partition("@")[0]
    first, slash, rest = image.partition("/")
    if not slash or not (set(first) & set(".:") or first == "localhost"):
        first, rest = "", image
    folder, slash, last = rest.rpartition("/")
    name, _colon, tag = last.partition(":")
    return first, folder + slash + name, tag


def pinned_reference(image, digest):
    """NAME@DIGEST of an image NAME:TAG; the image itself without a digest."""
    return "%s@%s" % (_untagged(image), digest) if digest else image


def digest_tag(image, digest):
    """NAME:sha256-HEX of an image NAME:TAG and its digest, a tag that no other image has."""
    return "%s:%s" % (_untagged(image), digest.replace(":", "-"))


def _untagged(image):
    registry, name, _tag = split_reference(image)
    return "%s%s" % (registry + "/" if registry else "", name)


def engine_of_entry(entry, call_s=CALL_S):
    """The Engine of the container of a plan entry, None without a container."""
    container = (entry or {}).get("container") or {}
    if container.get("engine") not in ENGINES:
        return None
    return Engine(container["engine"], container.get("address"), call_s=call_s)


def label_options(container):
    """The options about SELinux's labels of a plan entry's container, without which it may not use devices and files of
    the node."""
    return [flag for flag in container["flags"] if flag.startswith("--security-opt=label")]


def engine_problem(engine, error):
    """Sentences on a call of `engine` that ended with an EngineError: the problem and the remedy."""
    sentences = PROBLEMS.get(error.kind, "{label} failed: {words}.")
    user = processes.user_name(os.geteuid())
    return sentences.format(name=engine.kind, label=engine.label, words=error.words.rstrip("."), user=user)


def engine_failure(engine, error, where=""):
    """The FleetError for a call of `engine` that ended with an EngineError. where: a prefix of the message."""
    found = FleetError("containers.engine-problem", where, engine_problem(engine, error))
    found.__cause__ = error
    return found


def silent_engine(entry):
    """Why the engine of an entry's container does not answer; None if it does, and without a container."""
    engine = engine_of_entry(entry)
    error = engine and engine.fault()
    return engine_problem(engine, error) if error else None


def our_containers(root, entries):
    """{server: [Container]} of this root with the engines of `entries`.

    An engine that does not answer lists nothing; the processes of its containers are found in /proc, and the launcher
    reports that when a server is started or stopped.
    """
    engines = {engine.label: engine for engine in map(engine_of_entry, entries) if engine is not None}
    found = {}
    for engine in engines.values():
        with contextlib.suppress(EngineError):
            for one in engine.containers(root):
                found.setdefault(one.server, []).append(one)
    return found


def port_holder(bind, port, root, containers, sockets=None):
    """processes.port_holder(). A port that one of `containers` ({server: [Container]} of this root) publishes belongs
    to its server, although a process of the engine listens on it."""
    holder = processes.port_holder(bind, port, sockets)
    if holder is not None and holder["server"] is None:
        for server, ones in containers.items():
            if any(port in one.ports for one in ones):
                return dict(holder, server=server, root=root or "/")
    return holder
