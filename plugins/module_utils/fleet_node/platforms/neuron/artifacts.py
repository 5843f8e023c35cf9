# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled artifacts of servers on Neuron, as the guard keeps them.

An engine compiles a model for 20 to 40 minutes and saves the result in a directory that other servers of the same
configuration load. The engine's files do not show whether they are complete, so the guard writes a record into the
directory: before the first file, which server compiles it, and when that server is healthy, the list of its files. If
two servers would compile the same artifact, the second waits for the first. Files of a compilation that did not end are
cleared before the next compilation. A directory with files and no record is not managed by this collection: it is
loaded unchanged, never cleared. An engine loads any files that it finds, so the record also contains what they were
compiled for: the plan's key, the packages of the environment and the weights. An artifact that was compiled for
anything else is compiled again.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import socket
import time

from ...host.files import fits, folder_lock, readable_json, write_json
from ...host.paths import PATH
from ...host.processes import process
from ...host.server_spec import ARTIFACT_RECORD as RECORD
from ...host.server_spec import artifact_directory, artifact_key, artifact_leaders
from ...supervise.order import is_healthy
from ...supervise.state import digest, recorded_pid, say, weight_records
from ..host import System

NAME = "compile_cache"  # of the hook in an entry's hooks
VARIABLE = "NEURON_COMPILED_ARTIFACTS"
SCHEMA = 1
MACHINE_ID, BOOT_ID = "/etc/machine-id", "/proc/sys/kernel/random/boot_id"
IDENTITY = ("versions", "weights")  # of a record, kept in archives
# Distributions that a compilation depends on, if an environment has them.
PACKAGES = ("vllm", "vllm-neuron", "neuronx-cc", "neuronx-distributed-inference", "libneuronxla", "torch-neuronx")
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SHARD = ".safetensors"
DIGITS = 12  # of a digest, for a person
UNRECORDED = "the artifact %s is not recorded as complete: %s"
AGAIN_S = 60  # after a record that could not be written
# {state: clause that describes an artifact, with the server of its record}
STATES = {
    "empty": "it is empty or missing",
    "compiling": "it is being compiled by {}",
    "abandoned": "it has files of a compilation by {} that did not end",
    "damaged": "files are missing or cut since {} completed it",
    "foreign": "it has files that no server of this collection made",
    "complete": "it is complete",
}
LOADED = ("complete", "foreign")  # by the next start
CLEARED = ("abandoned", "damaged", "unfit")


class StartHook:
    """The guard's actions for an artifact at the start of a server; see supervise.run.hooks_of()."""

    def __init__(self, entry, options, path):
        self.entry = entry
        self.options = options
        self.path = path
        self.begun = None

    @classmethod
    def of(cls, entry, options):
        """The hook of an entry, None for an engine without an artifact."""
        path = artifact_directory(entry)
        return None if path is None else cls(entry, options, path)

    def replaces(self, leader):
        """Whether the server need not wait for `leader`, since the artifact that `leader` would compile exists."""
        with contextlib.suppress(OSError):
            return leader in artifact_leaders(self.entry) and assess(self.path, self.entry)[0] in LOADED
        return False

    def prepare(self, state):
        """Prepare the artifact for this start. Returns False if the time for that is over. Raises OSError."""
        try:
            self.begun = take(self.path, self.entry, state)
        except OSError as error:
            raise OSError("its compiled artifact %s cannot be prepared: %s" % (self.path, error)) from error
        if self.begun is not None:
            state.artifact = "compiles" if self.begun else "loads"
        return self.begun is not None

    def before_execution(self):
        if self.begun:
            watch(self.path, self.entry, self.options, self.begun)


def files_of(path, entry=None):
    """{name below `path`: bytes} of the artifact's files, without the record. Raises OSError.

    entry: omit the files that its engine keeps in VLLM_CACHE_ROOT next to compiled graphs, which it changes at any
    time.
    """
    files = {}
    cache = (entry or {}).get("environment", {}).get("VLLM_CACHE_ROOT")
    graphs = os.path.join(cache, "neuron", "compile_cache", "") if cache else None
    for folder, folders, names in os.walk(path):
        for name in sorted(names):
            file = os.path.join(folder, name)
            relative = os.path.relpath(file, path)
            if relative == RECORD or relative.startswith("." + RECORD):
                continue
            if cache and file.startswith(os.path.join(cache, "")) and not file.startswith(graphs):
                continue
            files[relative] = os.lstat(file).st_size
        folders.sort()
    return files


# of the record, which the server's account can write
SHAPE = {
    "key": (str, None), "state": str, "server": (str, None), "host": (str, None), "machine": (str, None),
    "boot": (str, None), "pid": (int, None), "ticks": (int, None), "since": float, "budget_s": float,
    "files": {"*": int}, "versions": ({"*": (str, None)}, None),
    "weights": ([({"files": (str, None), "content": (str, None)}, None)], None),
}  # fmt: skip


def state_of(path):
    """(state, record) of the directory `path`; record is {} if there is none.

    state: "empty", "complete", "damaged" (once complete, and files are missing or have another size), "compiling" (by
    a process that is alive), "abandoned" (by a process that is not) or "foreign" (files that no server of this
    collection made). Raises OSError.
    """
    record = readable_json(os.path.join(path, RECORD))
    if not isinstance(record, dict) or not fits(record, SHAPE):
        return ("foreign" if files_of(path) else "empty"), {}
    if record.get("state") == "complete":
        files = files_of(path)
        lost = [name for name, size in record.get("files", {}).items() if files.get(name) != size]
        return ("damaged" if lost else "complete"), record
    return ("compiling" if compiler_lives(record) else "abandoned"), record


def assess(path, entry):
    """(state, record, clause that describes it) of the artifact `path` for a start of the entry.

    The state is that of state_of(), or "unfit" for an artifact that was compiled for anything else. Raises OSError.
    """
    state, record = state_of(path)
    misfit = misfit_of(entry, record) if state == "complete" else None
    return "unfit" if misfit else state, record, misfit or STATES[state].format(record.get("server"))


def identity_of(entry):
    """The packages and weights that a compilation for the entry depends on, in addition to the plan's key.

    {versions: {package: version}, weights: [weights_identity() of each of its folders]}.
    """
    return {
        "versions": environment_versions(entry),
        "weights": [weights_identity(folder) for folder in entry.get("weights", ())],
    }


def misfit_of(entry, record):
    """The reason why the artifact of a record (or an archive's manifest) does not fit the entry, or None.

    Values that only one side has are not compared.
    """
    key = artifact_key(entry)
    if key and record.get("key") not in (None, key):
        return "it was compiled for another configuration (key %s, this server has %s)" % (record["key"], key)
    now = identity_of(entry)
    old, new = record.get("versions") or {}, now["versions"]
    differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if old and new and differing:
        before, after = (
            ", ".join("%s %s" % (name, side.get(name, "none")) for name in differing) for side in (old, new)
        )
        return "it was compiled with %s, and this node has %s" % (before, after)
    for folder, old, new in zip(entry.get("weights", ()), record.get("weights") or (), now["weights"]):
        for kind in ("files", "content") if old and new else ():
            if old.get(kind) and new[kind] and old[kind] != new[kind]:
                return "it was compiled from other weights (digest %s) than those in %s (digest %s)" % (
                    old[kind][:DIGITS], folder, new[kind][:DIGITS])  # fmt: skip
    return None


def environment_versions(entry):
    """{package: version} of PACKAGES in the environment of the entry's command, {} if none is found.

    It reads the names of installed packages and imports nothing. The packages of a container follow from its image,
    which is in the plan's key; that is certain only if the image is named by its digest.
    """
    if entry.get("launcher") == "container" or not entry.get("command"):
        return {}
    environment = entry["environment"]
    path = environment.get("PATH", PATH)
    programs = [shutil.which(name, path=path) for name in (entry["command"][0], "python3")]
    first, second = (os.path.dirname(os.path.dirname(program)) if program else None for program in programs)
    for root in filter(None, (first, environment.get("VIRTUAL_ENV"), second)):
        found = {}
        for folder in sorted(glob.glob(os.path.join(glob.escape(root), "lib*", "python3*", "*-packages"))):
            with contextlib.suppress(OSError):
                found.update(_versions_in(folder))
        if found:
            return found
    return {}


def _versions_in(folder):
    versions = {}
    for name in sorted(os.listdir(folder)):
        stem, ending = os.path.splitext(name)
        package, _dash, version = stem.partition("-")
        package = package.replace("_", "-").replace(".", "-").lower()
        if ending == ".dist-info" and package in PACKAGES:
            versions[package] = version
    return versions


def compiler_lives(record):
    """Whether the process that compiles according to the record is alive. A process of another host counts as alive for
    its start budget. Two machines may have the same name, and a machine may have no ID."""
    system = System()
    machines = {system.value(MACHINE_ID), record.get("machine")} - {"", None}
    if record.get("host") == socket.gethostname() and len(machines) < 2:
        return record.get("boot") == system.value(BOOT_ID) and recorded_pid(record) is not None
    return time.time() - record.get("since", 0) < record.get("budget_s", 0)


def clear(path):
    """Delete everything in the directory `path`, the record last. Raises OSError."""
    for name in sorted(os.listdir(path), key=lambda name: name == RECORD):
        file = os.path.join(path, name)
        if os.path.isdir(file) and not os.path.islink(file):
            shutil.rmtree(file)
        else:
            os.unlink(file)


def take(path, entry, state):
    """Prepare the artifact for this server's start. Returns the record of the compilation that begins, {} if the server
    loads the artifact. Waits while another server compiles; None if the start budget is over by then. Raises OSError.
    """
    end, reported = time.monotonic() + entry["health"]["budget_s"], None
    while True:
        os.makedirs(path, exist_ok=True)
        with folder_lock(path):
            found, record, words = assess(path, entry)
            if found in LOADED:
                return {}
            if found != "compiling":
                if found in CLEARED:
                    say("clearing the artifact %s: %s" % (path, words))
                    clear(path)
                begun = compiling_record(entry)
                write_json(os.path.join(path, RECORD), begun)
                return begun
        if reported != record.get("server"):
            reported = record.get("server")
            say("waiting for %s, which compiles %s" % (reported, path))
            state.write("waiting for %s" % reported, "it compiles")
        if time.monotonic() > end:
            say("%s did not finish the artifact %s within %d s" % (reported, path, entry["health"]["budget_s"]))
            return None
        time.sleep(entry["health"]["poll_s"])


def compiling_record(entry):
    """The record of the entry's artifact from before the compilation until the server is ready."""
    system = System()
    return {
        "schema": SCHEMA,
        "key": artifact_key(entry),
        "state": "compiling",
        "server": entry["name"],
        "host": socket.gethostname(),
        "boot": system.value(BOOT_ID),
        "pid": os.getpid(),
        "ticks": process(os.getpid()).ticks,
        "machine": system.value(MACHINE_ID) or None,
        "since": round(time.time(), 3),
        "budget_s": entry["health"]["budget_s"],
        **identity_of(entry),
    }


def watch(path, entry, options, begun):
    """Leave a process behind that records the artifact as complete when this process, the future engine, is healthy.

    begun: the record that `take` returned. The process ends then, or with the engine. It is not a child of the engine,
    so that no engine finds a child that it does not know.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.chdir("/")
            while recorded_pid(begun) is not None and not _completed(path, entry, options, begun):
                time.sleep(entry["health"]["poll_s"])
    except Exception as error:  # after any error, this copy of the guard must not continue as a second engine
        say(UNRECORDED % (path, error))
    finally:
        os._exit(0)


def _completed(path, entry, options, begun):
    """Whether the server is healthy and there is nothing left to do for its artifact."""
    if not is_healthy(entry, options.state, options.secrets):
        return False
    try:
        complete(path, entry, begun)
    except Exception as error:  # such as a full disk: other servers wait for the record
        say(UNRECORDED % (path, error))
        time.sleep(AGAIN_S)
        return False
    return True


def complete(path, entry, begun):
    """Record that the artifact is complete in its present state; if the server saved nothing, no record is left. Raises
    OSError.

    begun: the record with which the compilation began. If the record is a different one by now, another host considered
    this compilation dead, cleared its files and began again: the artifact is left to that host.
    """
    record_path = os.path.join(path, RECORD)
    with folder_lock(path):
        files = files_of(path, entry)
        record = state_of(path)[1]  # last, since not every file system has locks
        if record != begun:
            whose = "is of %s on %s" % (record.get("server"), record.get("host")) if record else "is gone"
            say(UNRECORDED % (path, "its record %s by now" % whose))
            return
        if not files:
            os.unlink(record_path)
            say("the engine is ready and saved nothing in %s; the next start compiles again" % path)
            return
        record = {
            # packages and weights of the time when the compilation began
            **{name: begun[name] for name in ("schema", "key", "server", "host", *IDENTITY)},
            "state": "complete",
            "at": round(time.time(), 3),
            "files": files,
        }
        write_json(record_path, record)
    say("the artifact %s is complete: %d files, %d bytes" % (path, len(files), sum(files.values())))


def weights_identity(folder):
    """Digests of a checkpoint: {files: of its configuration, index and the sizes of its shards, content: of the
    manifest's checksums, None without a manifest}; None if there is no checkpoint in the folder.
    """
    try:
        shards = {name: os.stat(os.path.join(folder, name)).st_size
                  for name in os.listdir(folder) if name.endswith(SHARD)}  # fmt: skip
        texts = {}
        for name in (CONFIG, INDEX):
            with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as stream:
                texts[name] = hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None
    if CONFIG not in texts:
        return None
    sums = {name: record.get("sha256") for name, record in (weight_records(folder) or {}).items()
            if name in texts or name in shards}  # fmt: skip
    return {"files": digest([texts, shards]), "content": digest(sums) if sums else None}
