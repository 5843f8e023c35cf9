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

from ...host.files import fits, folder_lock, read_text, readable_json, write_json
from ...host.paths import PATH
from ...host.processes import ENDED, process
from ...host.server_spec import ARTIFACT_RECORD as RECORD
from ...host.server_spec import artifact_directory, read_entry
from ...supervise.order import is_healthy
from ...supervise.state import digest, read_record, say, weight_records

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
FAULTS = {
    "abandoned": "%s compiled it and ended before it was ready",
    "damaged": "files are missing or cut since %s completed it",
}


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
        return leader in settings_of(self.entry).get("leaders", ()) and is_loadable(self.path, self.entry)

    def prepare(self, state):
        """Prepare the artifact for this start. Returns False if the time for that is over. Raises OSError."""
        try:
            state.artifact, self.begun = take(self.path, self.entry, state, self.options)
        except OSError as error:
            raise OSError("its compiled artifact %s cannot be prepared: %s" % (self.path, error)) from error
        return state.artifact is not None

    def before_execution(self):
        watch(self.path, self.entry, self.options, self.begun)


def settings_of(entry):
    """{key, leaders, variable}: the key of the artifact, the servers before this server that only compile it, the
    variable with which the engine finds it; {} without an artifact."""
    return (entry.get("hooks") or {}).get(NAME) or {}


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
        if lost and record.get("found"):
            return "foreign", {}
        return ("damaged" if lost else "complete"), record
    return ("compiling" if compiler_lives(record) else "abandoned"), record


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

    Values that only one side has are not compared, and files that no server of this collection made always fit.
    """
    if record.get("found"):
        return None
    key = settings_of(entry).get("key")
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


def is_loadable(path, entry):
    """Whether a start of the entry would load the files in the directory `path`."""
    try:
        found, record = state_of(path)
    except OSError:
        return False
    return found == "foreign" or (found == "complete" and misfit_of(entry, record) is None)


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


def _line_of(path):
    """The line in a file of the system, None if it has none."""
    with contextlib.suppress(OSError):
        return (read_text(path) or "").strip() or None
    return None


def is_here(record):
    """Whether the record was written on this machine. Two machines may have one name, and a machine may have no ID."""
    there, here = record.get("machine"), _line_of(MACHINE_ID)
    return record.get("host") == socket.gethostname() and (there is None or here is None or there == here)


def compiler_lives(record):
    """Whether the process that compiles according to the record is alive. A process of another host counts as alive for
    its start budget."""
    if not is_here(record):
        return time.time() - record.get("since", 0) < record.get("budget_s", 0)
    found = process(record.get("pid") or 0)
    return (
        record.get("boot") == _line_of(BOOT_ID)
        and found is not None
        and found.ticks == record.get("ticks")
        and found.state not in ENDED
    )


def clear(path):
    """Delete everything in the directory `path`, the record last. Raises OSError."""
    for name in sorted(os.listdir(path), key=lambda name: name == RECORD):
        file = os.path.join(path, name)
        if os.path.isdir(file) and not os.path.islink(file):
            shutil.rmtree(file)
        else:
            os.unlink(file)


def take(path, entry, state, options):
    """Prepare the artifact for this server's start. Returns (how, record).

    how: "loads", or "compiles" if this server must make it, with the record of that. Waits while another
    server compiles it; how is None if the start budget is over by then. Raises OSError.
    """
    began = time.monotonic()
    reported = None
    while True:
        os.makedirs(path, exist_ok=True)
        with folder_lock(path):
            found, record = state_of(path)
            misfit = misfit_of(entry, record) if found == "complete" else None
            if found == "foreign" or (found == "complete" and misfit is None):
                return "loads", {}
            if found != "compiling":
                if found != "empty":
                    fault = misfit or FAULTS[found] % record.get("server")
                    say("clearing the artifact %s: %s" % (path, fault))
                    clear(path)
                begun = compiling_record(entry)
                write_json(os.path.join(path, RECORD), begun)
                return "compiles", begun
        ready = compiler_if_ready(record, options)
        if ready is not None:
            complete(path, ready, record)
            continue
        if reported != record.get("server"):
            reported = record.get("server")
            say("waiting for %s, which compiles %s" % (reported, path))
            state.write("waiting for %s" % reported, "it compiles")
        if time.monotonic() - began > entry["health"]["budget_s"]:
            say("%s did not finish the artifact %s within %d s" % (reported, path, entry["health"]["budget_s"]))
            return None, {}
        time.sleep(entry["health"]["poll_s"])


def compiler_if_ready(record, options):
    """The entry of the server that compiles according to the record, if it answers, so that only its record is missing.

    None otherwise, also if a server of this root has that name but the compiling server belongs to another root.
    """
    name = "%s.json" % record.get("server")
    entry = read_entry(os.path.join(os.path.dirname(options.entry), name))
    state_path = os.path.join(os.path.dirname(options.state), name)
    state = read_record(state_path)
    if entry is None or not is_here(record):
        return None
    same = all(state.get(key) == record.get(key) for key in ("pid", "ticks"))
    secrets_path = os.path.join(os.path.dirname(options.secrets), name)
    return entry if same and is_healthy(entry, state_path, secrets_path) else None


def compiling_record(entry):
    """The record of the entry's artifact from before the compilation until the server is ready."""
    return {
        "schema": SCHEMA,
        "key": settings_of(entry).get("key"),
        "state": "compiling",
        "server": entry["name"],
        "host": socket.gethostname(),
        "boot": _line_of(BOOT_ID),
        "pid": os.getpid(),
        "ticks": process(os.getpid()).ticks,
        "machine": _line_of(MACHINE_ID),
        "since": round(time.time(), 3),
        "budget_s": entry["health"]["budget_s"],
        **identity_of(entry),
    }


def watch(path, entry, options, begun):
    """Leave a process behind that records the artifact as complete when this process, the future engine, is healthy.

    begun: the record that `take` returned. The process ends then, or with the engine. It is not a child of the engine,
    so that no engine finds a child that it does not know.
    """
    pid, ticks = os.getpid(), process(os.getpid()).ticks
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.chdir("/")
            while True:
                found = process(pid)
                if found is None or found.ticks != ticks or found.state in ENDED:
                    break
                if is_healthy(entry, options.state, options.secrets):
                    complete(path, entry, begun)
                    break
                time.sleep(entry["health"]["poll_s"])
    except Exception as error:  # after any error, this copy of the guard must not continue as a second engine
        say("the artifact %s is not recorded as complete: %s" % (path, error))
    finally:
        os._exit(0)


def complete(path, entry, begun=None):
    """Record that the artifact is complete in its present state; if the server saved nothing, no record is left. Raises
    OSError.

    begun: the record with which the compilation began; {} for files that no server of this collection made. If the
    record is a different one by now, another host considered this compilation dead, cleared its files and began again:
    the artifact is left to that host.
    """
    begun = begun or {}
    record_path = os.path.join(path, RECORD)
    with folder_lock(path):
        files = files_of(path, entry)
        found, record = state_of(path)  # last, since not every file system has locks
        if found == "complete":
            return
        if record != begun:
            whose = "is of %s on %s" % (record.get("server"), record.get("host")) if record else "is gone"
            say("the artifact %s is not recorded as complete: its record %s by now" % (path, whose))
            return
        if not files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(record_path)
            say("the engine is ready and saved nothing in %s; the next start compiles again" % path)
            return
        seconds = time.time() - begun["since"] if "since" in begun else None
        record = {
            # the state when the compilation began, not the present one
            **{name: begun[name] for name in IDENTITY if name in begun},
            "schema": SCHEMA,
            "key": begun.get("key", settings_of(entry).get("key")),
            "state": "complete",
            "server": entry["name"],
            "found": found == "foreign",
            "host": socket.gethostname(),
            "at": round(time.time(), 3),
            "seconds": None if seconds is None else round(seconds, 1),
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
