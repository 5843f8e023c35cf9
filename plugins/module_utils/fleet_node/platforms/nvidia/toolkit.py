# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a node with what its containers require to get GPUs: the vendor's container toolkit, a CDI specification of
the GPUs, and a container that has listed them. The role nvidia installs; the driver is never installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil

from ...containers.engine import Engine, EngineError
from ...errors import FleetError
from ...host import paths as host_paths
from ...host.directories import make_directory
from ...host.files import read_json, write_atomic
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
from ..vendor_tools import listed as names_in

CDI_KIND = "nvidia.com/gpu"
# The second is written by the toolkit's own service (from 1.18 on) some time after a boot, and precedes the first,
# which is present when servers start.
CDI_FILES = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")
SETTINGS = "/etc/docker/daemon.json"
KEPT_SETTINGS = SETTINGS + ".before-nvidia-toolkit"
RECORD = "/nvidia_toolkit.json"
GPU_FILE = re.compile(r"^nvidia[0-9]+$")
RUNTIME_FLAGS = ("--gpus", "--runtime=nvidia")
PROOF_S = 300  # the first container of a large image
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def compare(servers, packages, installed=False, root="", check_mode=False, sysroot=""):
    """{changed, message, due: {step: reason, or versions to install}, packages: {name: version}, manager, cdi: paths to
    write, keep: docker's settings have to be saved during the installation, diff}.

    servers: plan entries. packages: {name: {version, least}}. installed: the role has installed the packages and
    written the specification; a container of each engine lists the GPUs, and GPUs that the specification lacks are
    left out until the next boot. Only the record of that is written. Raises FleetError.
    """
    check_packages(packages, "nvidia_packages")
    if len({package["version"] for package in packages.values()}) > 1:
        raise FleetError(
            "packages.versions-differ",
            "The packages of nvidia_packages have different versions (%s) and require each other in the same version. "
            "Set the same version for all.",
            (listed({name: package["version"] for name, package in packages.items()}),),
        )
    system = System(sysroot)
    engines, wanted = required(servers)
    result = {"changed": False, "message": "nothing is due", "due": {}, "packages": {}, "manager": None, "cdi": [],
              "keep": False, "diff": {"before": "", "after": ""}}  # fmt: skip
    if not wanted:
        return {**result, "message": "no server of this node gets GPUs in a container"}
    if not sysroot and shutil.which("nvidia-smi", path=host_paths.PATH) is None:
        raise FleetError(
            "nvidia.toolkit-needs-driver",
            "This node has no NVIDIA driver: nvidia-smi is missing. The role does not install it, because a driver "
            "depends on kernel and board. Install it (docs/using/nvidia.md has the commands), reboot, and run again.",
        )
    present = package_versions(system, packages)
    missing = lacking(packages, present)
    if missing or len({numbers(version) for version in present.values()}) > 1:
        missing = {name: package["version"] for name, package in packages.items()}
    record = Record(sysroot + NodePaths(root).lib + RECORD, (system.read(BOOT_ID) or "").strip())
    specifications = {path: system.read(path) for path in CDI_FILES}
    if installed:
        check_installed(missing, present)
        described = paths_in(specifications[CDI_FILES[0]] or "")
        record.leave_out([path for path in gpu_files(system) if path not in described])
    files = [path for path in gpu_files(system) if path not in record.left_out]
    stale_files = {}
    for path in CDI_FILES if engines else ():
        reason = stale(specifications[path], files, lambda one: os.path.exists(sysroot + one))
        if reason and (specifications[path] is not None or path == CDI_FILES[0]):
            stale_files[path] = reason
    fingerprint = _fingerprint(specifications[CDI_FILES[0]], present)
    unproven = [engine for engine in sorted(engines) if record.proven.get(engine) != fingerprint]
    if installed:
        waiting = prove(record, {name: engines[name] for name in unproven}, fingerprint, len(files))
        if waiting:
            result["message"] = "%s supports CDI names after its restart in the step serve" % " and ".join(waiting)
        unproven = []
    steps = {
        "settings": "an installation left %s" % KEPT_SETTINGS if os.path.exists(sysroot + KEPT_SETTINGS) else None,
        "packages": missing,
        "cdi": "; ".join("%s: %s" % item for item in stale_files.items()) or (engines and missing and "new packages"),
        "proof": (unproven or (engines and (missing or stale_files)))
        and "no container of %s has listed the present GPUs" % " and ".join(unproven or sorted(engines)),
    }
    result.update(packages=present, cdi=list(stale_files or CDI_FILES[:1]), changed=record.changed)
    result["due"] = {step: reason for step, reason in steps.items() if reason}
    if missing:
        check_install(missing, check_mode)
        _check_holders(packages)
        result["manager"] = package_manager(system)[0]
        result["keep"] = os.path.exists(sysroot + SETTINGS)
    if result["due"]:
        lines = ["%s: %s" % (step, listed(reason) if step == "packages" else reason)
                 for step, reason in result["due"].items()]  # fmt: skip
        result.update(changed=check_mode or record.changed, message="; ".join(lines))
        result["diff"]["after"] = "".join(line + "\n" for line in lines)
    return result


def required(servers):
    """({engine: (image, digest)} of this node's own engines whose containers get GPUs by CDI, whether any container
    requires the toolkit). The image is the first that a container of that engine has."""
    engines, wanted = {}, False
    for entry in servers:
        container = entry.get("container") or {}
        if not container or container.get("address"):
            continue
        if any(device.startswith(CDI_KIND + "=") for device in container["devices"]):
            engines.setdefault(container["engine"], (container["image"], container["digest"]))
        wanted = wanted or any(flag.startswith(RUNTIME_FLAGS) for flag in container["flags"])
    return engines, wanted or bool(engines)


def gpu_files(system):
    """Paths of the GPUs' device files, sorted by number."""
    names = filter(GPU_FILE.match, names_in(system, "/dev"))
    return ["/dev/" + name for name in sorted(names, key=lambda name: int(name[6:]))]


def stale(text, files, exists):
    """Why a CDI specification has to be written again, or None. Pure.

    files: the GPUs' device files. exists: called with each path in it.
    """
    if text is None:
        return "it is missing"
    named = paths_in(text)
    new = [path for path in files if path not in named]
    if new:
        return "it lacks %s" % ", ".join(new)
    # files of hooks and mounts disappear with the driver that the specification was written for
    gone = sorted(path for path in named if not exists(path))
    return "it names %s, which does not exist" % ", ".join(gone[:2]) if gone else None


def paths_in(text):
    """Paths of the node in a CDI specification."""
    return set(re.findall(r"""(?:hostPath|path)["']?\s*:\s*["']?(/[^\s"',}]+)""", text))


def holders(engine):
    """Names of an engine's running containers that have GPUs by --gpus or the vendor's runtime: a daemon-reload, which
    the installation of the toolkit's package does, removes these. [] if the engine cannot be asked."""
    if shutil.which(engine.kind, path=host_paths.PATH) is None:
        return []
    try:
        idents = engine.call("ps", "--quiet").split()
        known = json.loads(engine.call("inspect", *idents)) if idents else []
    except (EngineError, ValueError):
        return []
    found = []
    for one in known:
        host = one.get("HostConfig") or {}
        requests = [request for request in host.get("DeviceRequests") or [] if request.get("Driver") != "cdi"]
        if requests or host.get("Runtime") == "nvidia":
            found.append(one["Name"].lstrip("/"))
    return sorted(found)


class Record:
    """The node's record: engines whose containers have listed the GPUs, and GPUs that the specification lacks."""

    def __init__(self, place, boot):
        self.place, self.boot, self.changed = place, boot, False
        self.content = read_json(place) or {}
        self.proven = self.content.get("proven") or {}  # {engine: fingerprint of what was proven}
        left_out = self.content.get("left_out") or {}
        self.left_out = left_out.get("files", []) if left_out.get("boot") == boot else []

    def leave_out(self, files):
        """Leave these device files out until the next boot."""
        if files or self.left_out:
            self.left_out = files
            self._write({"left_out": {"boot": self.boot, "files": files}})

    def prove(self, engine, fingerprint):
        self.proven = {**self.proven, engine: fingerprint}
        self._write({"proven": self.proven})

    def _write(self, more):
        content = {**self.content, **more}
        if content != self.content:
            make_directory(os.path.dirname(self.place))
            write_atomic(self.place, json.dumps(content, indent=1, sort_keys=True) + "\n")
            self.content, self.changed = content, True


def prove(record, engines, fingerprint, count):
    """List the GPUs in a container of each engine and record it. Returns the engines that do not support CDI yet.

    engines: {engine: (image, digest)}. count: GPUs of the node. Raises FleetError if a container lists fewer.
    """
    waiting = []
    for kind, (image, digest) in engines.items():
        engine = Engine(kind)
        text = problem = ""
        try:
            found = engine.find_image(image, digest) if engine.cdi()[1] else None
            if found is None:
                waiting.append(kind)
                continue
            text = engine.call("run", "--rm", "--pull=never", "--network=none", "--device=%s=all" % CDI_KIND,
                               "--entrypoint=nvidia-smi", found["reference"], "-L", timeout=PROOF_S)  # fmt: skip
        except EngineError as error:
            problem = error.words
        listed_gpus = len(re.findall(r"^GPU [0-9]+: ", text, re.MULTILINE))
        if listed_gpus == 0 or listed_gpus < count:
            raise FleetError(
                "nvidia.container-lacks-gpus",
                "A container of %s lists %d of this node's %d GPUs: %s. Check `nvidia-smi` on the node and "
                "`nvidia-ctk cdi list`.",
                (kind, listed_gpus, count, problem or "no error"),
            )
        record.prove(kind, fingerprint)
    return waiting


def _fingerprint(text, packages):
    """What a proof is valid for: the specification of the GPUs and the toolkit's packages."""
    return hashlib.sha256(json.dumps([text, sorted(packages.items())]).encode()).hexdigest()[:16]


def _check_holders(packages):
    """Raises FleetError if an installation would remove GPUs from containers."""
    held = holders(Engine("docker"))
    if held:
        raise FleetError(
            "nvidia.install-takes-gpus",
            "The installation of the container toolkit %s reloads systemd, which removes the GPUs from the containers "
            "%s, started with --gpus. Nothing was changed. Stop these containers, or start them with CDI names "
            "(--device nvidia.com/gpu=all).",
            (packages[min(packages)]["version"], ", ".join(held)),
        )
