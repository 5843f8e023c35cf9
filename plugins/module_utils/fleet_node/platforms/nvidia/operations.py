# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation of the role nvidia: compares a node with what its containers require to get GPUs.

That is the vendor's container toolkit, a CDI specification of the GPUs, and a container that has listed them. The role
installs; the driver is never installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil

from ...containers.engine import Engine, EngineError, label_options
from ...discover import Operation
from ...errors import FleetError
from ...host import paths as host_paths
from ...host.files import make_directory, read_json, write_json
from ...host.packages import (
    check_install,
    check_installed,
    check_packages,
    lacking,
    listed,
    numbers,
    package_manager,
    package_versions,
)
from ...host.paths import NodePaths
from ..host import System
from .platform import CDI_FILES, KIND, driver_missing, paths_in, stale

SETTINGS = "/etc/docker/daemon.json"
KEPT_SETTINGS = SETTINGS + ".before-nvidia-toolkit"
RECORD = "/nvidia_toolkit.json"
GPU_FILE = re.compile(r"^nvidia[0-9]+$")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
RUNTIME_FLAGS = ("--gpus", "--runtime=nvidia")
PROOF_S = 300  # the first container of a large image


def compare(servers, packages, installed=False, root="", check_mode=False, sysroot=""):
    """{changed, message, due: {step: reason, or versions to install}, packages: {name: version}, manager, cdi: paths to
    write, keep: docker's settings have to be saved during the installation, diff}.

    servers: plan entries. packages: {name: {version, least}}. installed: the role has installed the packages and
    written the specification, and a container of each engine lists the GPUs. Only the record of that is written. Raises
    FleetError.
    """
    check_packages(packages, "nvidia_packages")
    if len({package["version"] for package in packages.values()}) > 1:
        raise FleetError(
            "packages.versions-differ", listed({name: package["version"] for name, package in packages.items()})
        )
    system = System(sysroot)
    engines, wanted = required(servers)
    if wanted and not sysroot and shutil.which("nvidia-smi", path=host_paths.PATH) is None:
        raise driver_missing(system)
    present = package_versions(system, packages) if wanted else {}
    missing = lacking(packages, present) if wanted else {}
    if missing or len({numbers(version) for version in present.values()}) > 1:
        missing = {name: package["version"] for name, package in packages.items()}
    path, boot = sysroot + NodePaths(root).lib + RECORD, system.value(BOOT_ID)
    record = {"left_out": {}, "proven": {}, **(read_json(path) or {})}
    texts = {place: system.read(place) for place in CDI_FILES}
    fingerprint, changed = _fingerprint(texts[CDI_FILES[0]], present), False
    files = ["/dev/" + name for name in system.listed("/dev") if GPU_FILE.match(name)]
    unproven = [engine for engine in sorted(engines) if record["proven"].get(engine) != fingerprint]
    message = "nothing is due" if wanted else "no server of this node gets GPUs in a container"
    if installed and wanted:
        check_installed(missing, present)
        # a GPU that does not answer is left out of the specification until the next boot
        silent = [file for file in files if file not in paths_in(texts[CDI_FILES[0]] or "")]
        waiting = prove({name: engines[name] for name in unproven}, len(files) - len(silent))
        if waiting:
            message = "%s supports CDI names after its restart in the step serve" % " and ".join(waiting)
        proven = {**record["proven"], **{name: fingerprint for name in unproven if name not in waiting}}
        known, record = record, {"left_out": {boot: silent} if silent else {}, "proven": proven}
        changed, unproven = record != known, []
        if changed:
            make_directory(os.path.dirname(path))
            write_json(path, record)
    files = [file for file in files if file not in record["left_out"].get(boot, ())]
    outdated = {}
    for place in CDI_FILES if engines else ():
        reason = stale(texts[place], files, system.exists)
        if reason and (texts[place] is not None or place == CDI_FILES[0]):
            outdated[place] = reason
    due = {}
    if wanted and os.path.exists(sysroot + KEPT_SETTINGS):
        due["settings"] = "an installation left %s" % KEPT_SETTINGS
    if missing:
        due["packages"] = missing
        check_install(missing, check_mode)
        held = holders(Engine("docker"))
        if held:
            raise FleetError("nvidia.install-takes-gpus", packages[min(packages)]["version"], ", ".join(held))
    if engines and (missing or outdated):
        due["cdi"] = "; ".join("%s: %s" % item for item in outdated.items()) or "new packages"
    if engines and (missing or outdated or unproven):
        names = " and ".join(unproven or sorted(engines))
        due["proof"] = "no container of %s has listed the present GPUs" % names
    lines = ["%s: %s" % (step, listed(why) if step == "packages" else why) for step, why in due.items()]
    return {
        "changed": changed or (check_mode and bool(due)),
        "message": "; ".join(lines) or message,
        "due": due,
        "packages": present,
        "manager": package_manager(system)[0] if missing else None,
        "cdi": list(outdated or CDI_FILES[:1]),
        "keep": bool(missing) and os.path.exists(sysroot + SETTINGS),
        "diff": {"before": "", "after": "".join(line + "\n" for line in lines)},
    }


def required(servers):
    """({engine: container} of this node's own engines whose containers get GPUs by CDI, whether any container requires
    the toolkit). The container is the first of that engine in the entries."""
    engines, wanted = {}, False
    for entry in servers:
        container = entry.get("container") or {}
        if not container or container.get("address"):
            continue
        if any(device.startswith(KIND + "=") for device in container["devices"]):
            engines.setdefault(container["engine"], container)
        wanted = wanted or any(flag.startswith(RUNTIME_FLAGS) for flag in container["flags"])
    return engines, wanted or bool(engines)


def holders(engine):
    """Names of an engine's running containers that have GPUs by --gpus or the vendor's runtime: a daemon-reload, which
    the installation of the toolkit's package does, removes these. [] if the engine cannot be asked."""
    if shutil.which(engine.kind, path=host_paths.PATH) is None:
        return []
    try:
        idents = engine.call("ps", "--quiet").split()
        # one that has ended meanwhile is an error, after the answer about the others
        known = json.loads(engine.call("inspect", *idents, check=False)) if idents else []
    except (EngineError, ValueError):
        return []
    found = []
    for one in known:
        host = one.get("HostConfig") or {}
        requests = [request for request in host.get("DeviceRequests") or [] if request.get("Driver") != "cdi"]
        if requests or host.get("Runtime") == "nvidia":
            found.append(one["Name"].lstrip("/"))
    return sorted(found)


def prove(engines, count):
    """List the GPUs in a container of each engine. Returns the engines that do not support CDI yet.

    engines: {engine: container of a plan entry}. count: GPUs of the specification. Raises FleetError if a container
    lists fewer.
    """
    waiting = []
    for kind, container in engines.items():
        engine = Engine(kind)
        text = problem = ""
        try:
            found = engine.find_image(container["image"], container["digest"]) if engine.cdi()[1] else None
            if found is None:
                waiting.append(kind)
                continue
            text = engine.call("run", "--rm", "--pull=never", "--network=none", *label_options(container),
                               "--device=%s=all" % KIND, "--entrypoint=nvidia-smi", found["reference"], "-L",
                               timeout=PROOF_S)  # fmt: skip
        except EngineError as error:
            problem = error.words
        listed_gpus = len(re.findall(r"^GPU [0-9]+: ", text, re.MULTILINE))
        if listed_gpus == 0 or listed_gpus < count:
            raise FleetError("nvidia.container-lacks-gpus", kind, listed_gpus, count, problem or "no error")
    return waiting


def _fingerprint(text, packages):
    """What a proof is valid for: the specification of the GPUs and the toolkit's packages."""
    return hashlib.sha256(json.dumps([text, sorted(packages.items())]).encode()).hexdigest()[:16]


NVIDIA_TOOLKIT = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "packages": {"type": "dict", "required": True},
    "installed": {"type": "bool", "default": False},
    "root": {"type": "str", "default": ""},
}

OPERATIONS = {
    "nvidia_toolkit": Operation(
        NVIDIA_TOOLKIT,
        lambda params, check_mode: compare(check_mode=check_mode, **params),
        due=lambda result: result["message"] if result["due"] else None,
    ),
}
