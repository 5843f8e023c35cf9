# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node lacks until its containers are given GPUs: the vendor's container toolkit, CDI's description of the GPUs,
and one container that listed them. The role nvidia brings it; the driver is looked at, never installed.

One step at a time is due, in the order of STEPS, since each depends on what the one before it leaves.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil

from ...containers.engine import Engine, EngineError
from ...errors import FleetError
from ...node import paths as node_paths
from ...node.directories import make_directory
from ...node.files import read_json, write_atomic
from ...node.packages import (
    check_install,
    check_packages,
    family,
    lacking,
    listed,
    numbers,
    os_release,
    package_versions,
)
from ...node.paths import NodePaths
from ..host import System

STEPS = ("settings", "packages", "cdi", "proof")
CDI_KIND = "nvidia.com/gpu"
# The second is written by the toolkit's own service (from 1.18 on) some time after a boot, and goes before the first,
# which is there when servers start.
CDI_FILES = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")
SETTINGS = "/etc/docker/daemon.json"
KEPT_SETTINGS = SETTINGS + ".before-nvidia-toolkit"
SOURCES = "/etc/apt/sources.list.d"
OWN_SOURCE = SOURCES + "/nvidia-container-toolkit.list"
# Repositories of the vendor that hold the same packages, older names included.
REPOSITORY = r"nvidia\.github\.io/(?:libnvidia-container|nvidia-docker|nvidia-container-runtime)"
RECORD = "/nvidia_toolkit.json"
GPU_FILE = re.compile(r"^nvidia[0-9]+$")
RUNTIME_FLAGS = ("--gpus", "--runtime=nvidia")
PROOF_S = 300  # the first container of a large image
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def check_versions(packages):
    """Raise FleetError unless it is {name: {version, least}}, with one version for all."""
    check_packages(packages, "nvidia_packages")
    versions = sorted({str(package["version"]) for package in packages.values()})
    if len(versions) > 1:
        raise FleetError(
            "nvidia.package-versions-differ",
            "nvidia_packages has the versions %s, and the toolkit's packages need each other in one. Give all the same "
            "version.",
            (", ".join(versions),),
        )


def decide(packages, installed):
    """{name: version to install}: all of them where one is missing, too old or of another version. Pure."""
    same = len({numbers(version) for version in installed.values()}) < 2
    fit = same and not lacking(packages, installed)
    return {} if fit else {name: package["version"] for name, package in packages.items()}


def needs(servers):
    """({engine: (image, digest)} of this node's own engines whose containers get GPUs by CDI, whether any container of
    it needs the toolkit). The image is the first that a container of that engine has."""
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
    try:
        names = filter(GPU_FILE.match, os.listdir(system.sysroot + "/dev"))
    except OSError:
        names = ()
    return ["/dev/" + name for name in sorted(names, key=lambda name: int(name[6:]))]


def stale(text, files, exists):
    """Why a description has to be written again, None where it is right. Pure.

    files: the GPUs' device files. exists: called with a path that it names; whether it is there.
    """
    if text is None:
        return "there is none"
    named = _named(text)
    new = [path for path in files if path not in named]
    if new:
        return "it lacks %s" % ", ".join(new)
    # what hooks and mounts name goes with the driver that it was written for
    gone = sorted(path for path in named if not exists(path))
    return "it names %s, which is not there" % ", ".join(gone[:2]) if gone else None


def _named(text):
    """Paths of the node that a description names."""
    return set(re.findall(r"""(?:hostPath|path)["']?\s*:\s*["']?(/[^\s"',}]+)""", text))


def conflicts(system, url):
    """[{path, regexp, replace}]: lines of apt's other source files that name the same repository, with another key or
    none. apt reads nothing at all while there are two."""
    place = re.sub(r"^[a-z+]+://", "", url or "").split("$")[0].rstrip("/")
    pattern = "(?:%s)" % "|".join([REPOSITORY, *([re.escape(place)] if place else [])])
    rules = {".list": (r"^(\s*deb(?:-src)?\s.*%s.*)$" % pattern, r"# \1"),
             ".sources": (r"^(URIs:.*%s.*)$" % pattern, r"Enabled: no\n\1")}  # fmt: skip
    found = []
    for path in sorted(glob.glob(glob.escape(system.sysroot) + SOURCES + "/*")):
        own = path[len(system.sysroot) :]
        regexp, replace = rules.get(os.path.splitext(path)[1], (None, None))
        if own == OWN_SOURCE or regexp is None:
            continue
        text = system.read(own) or ""
        if re.search(regexp, text, re.MULTILINE) and "Enabled: no\nURIs:" not in text:
            found.append({"path": own, "regexp": regexp, "replace": replace})
    return found


def holders(engine):
    """Names of an engine's running containers that have GPUs by --gpus or the vendor's runtime: a daemon-reload, which
    the toolkit's package does when it is installed, takes these away from them. [] where it cannot be asked."""
    if shutil.which(engine.kind, path=node_paths.PATH) is None:
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


def look(servers, packages, repositories=None, installed=(), generated=False, prove=False, root="", check_mode=False,
         sysroot=""):  # fmt: skip
    """What is due on a node so that the containers of its servers get GPUs. Nothing but the record is changed.

    servers: plan entries. packages: {name: {version, least}}. repositories: {apt: {url}, …}. installed: names of
    packages that were installed just now. generated: the descriptions were written just now; a GPU that is still not in
    them is left out until the next boot. prove: list the GPUs in a container of each engine, and record that.

    Returns {changed, message, due: {step: why, or the versions to install}, packages: {name: version}, manager: "apt"
    or "dnf" or None, conflicts, cdi: paths to write, keep: path of docker's settings to keep while packages are
    installed or None, diff}. FleetError otherwise.
    """
    check_versions(packages)
    system = System(sysroot)
    engines, wanted = needs(servers)
    result = {"changed": False, "message": "nothing is due", "due": {}, "packages": {}, "manager": None,
              "conflicts": [], "cdi": [], "keep": None, "diff": {"before": "", "after": ""}}  # fmt: skip
    if not wanted:
        return {**result, "message": "no server of this node is given GPUs in a container"}
    if not sysroot and shutil.which("nvidia-smi", path=node_paths.PATH) is None:
        raise FleetError(
            "nvidia.toolkit-needs-driver",
            "This node has no NVIDIA driver: there is no nvidia-smi. The role does not install it, since a driver is "
            "chosen with the kernel and the board. %s Then run again.",
            (_driver_words(os_release(system)),),
        )
    there = package_versions(system, packages)
    versions = decide(packages, there)
    files = gpu_files(system)
    record = Record(sysroot + NodePaths(root).lib + RECORD, (system.read(BOOT_ID) or "").strip())
    texts = {path: system.read(path) for path in CDI_FILES}
    if generated:
        record.leave_out([path for path in files if path not in _named(texts[CDI_FILES[0]] or "")])
    files = [path for path in files if path not in record.left_out]
    reasons = {}
    for path in CDI_FILES if engines else ():
        why = stale(texts[path], files, lambda one: os.path.exists(sysroot + one))
        if why and (texts[path] is not None or path == CDI_FILES[0]):
            reasons[path] = why
    fingerprint = _fingerprint(texts[CDI_FILES[0]], there)
    unproven = [engine for engine in sorted(engines) if record.proven.get(engine) != fingerprint]
    waiting = prove_all(record, {name: engines[name] for name in unproven}, fingerprint, len(files)) if prove else []

    due = {}
    if os.path.exists(sysroot + KEPT_SETTINGS):
        due["settings"] = "an installation left %s" % KEPT_SETTINGS
    if versions:
        due["packages"] = versions
    if reasons:
        due["cdi"] = "; ".join("%s: %s" % item for item in reasons.items())
    if not prove and (unproven or (engines and (versions or reasons))):
        due["proof"] = "no container of %s has listed the GPUs as they are" % " and ".join(unproven or sorted(engines))
    result.update(due=due, packages=there, cdi=list(reasons), changed=record.changed)
    if versions:
        check_install(versions, there, installed, check_mode)
        _check_holders(packages)
        result["manager"] = _manager(system)
        result["keep"] = SETTINGS if os.path.exists(sysroot + SETTINGS) else None
        result["conflicts"] = conflicts(system, ((repositories or {}).get("apt") or {}).get("url"))
    if due:
        lines = ["%s: %s" % (step, _words(due[step])) for step in STEPS if step in due]
        result.update(changed=check_mode or record.changed, message="; ".join(lines))
        result["diff"]["after"] = "".join(line + "\n" for line in lines)
    elif waiting:
        result["message"] = "%s takes CDI names once it is restarted, in the step serve" % " and ".join(waiting)
    return result


class Record:
    """What the node remembers: which engines' containers listed the GPUs, and GPUs that no description has."""

    def __init__(self, place, boot):
        self.place, self.boot, self.changed = place, boot, False
        self.content = read_json(place) or {}

    @property
    def proven(self):
        """{engine: fingerprint of what was proven}."""
        return self.content.get("proven") or {}

    @property
    def left_out(self):
        """Device files of GPUs that were left out during this boot."""
        found = self.content.get("left_out") or {}
        return found.get("files", []) if found.get("boot") == self.boot else []

    def leave_out(self, files):
        self._write({"left_out": {"boot": self.boot, "files": files}} if files or self.left_out else {})

    def prove(self, engine, fingerprint):
        self._write({"proven": {**self.proven, engine: fingerprint}})

    def _write(self, more):
        content = {**self.content, **more}
        if content != self.content:
            make_directory(os.path.dirname(self.place))
            write_atomic(self.place, json.dumps(content, indent=1, sort_keys=True) + "\n")
            self.content, self.changed = content, True


def prove_all(record, engines, fingerprint, count):
    """List the GPUs in a container of each engine, and record it. Returns the engines that take no CDI names yet.

    engines: {engine: (image, digest)}. count: GPUs that it has to list. FleetError where it lists fewer.
    """
    waiting = []
    for kind, (image, digest) in engines.items():
        engine = Engine(kind)
        try:
            found = engine.find_image(image, digest) if engine.cdi()[1] else None
            if found is None:
                waiting.append(kind)
                continue
            text = engine.call("run", "--rm", "--pull=never", "--network=none", "--device=%s=all" % CDI_KIND,
                               "--entrypoint=nvidia-smi", found["reference"], "-L", timeout=PROOF_S)  # fmt: skip
        except EngineError as error:
            raise FleetError(
                "nvidia.container-fails",
                "A container of %s that is given the GPUs does not list them: %s. Look at `nvidia-smi` on the node "
                "itself and at `nvidia-ctk cdi list`.",
                (kind, error.words),
            ) from error
        seen = len(re.findall(r"^GPU [0-9]+: ", text, re.MULTILINE))
        if seen == 0 or seen < count:
            raise FleetError(
                "nvidia.container-lacks-gpus",
                "A container of %s lists %d of this node's %d GPUs. Look at `nvidia-smi` on the node itself and at "
                "`nvidia-ctk cdi list`.",
                (kind, seen, count),
            )
        record.prove(kind, fingerprint)
    return waiting


def _words(value):
    return listed(value) if isinstance(value, dict) else value


def _fingerprint(text, packages):
    """What a proof holds for: the description of the GPUs and the toolkit's packages."""
    parts = json.dumps([text, sorted(packages.items())])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _check_holders(packages):
    """FleetError where an installation would take GPUs away from containers."""
    held = holders(Engine("docker"))
    if held:
        raise FleetError(
            "nvidia.install-takes-gpus",
            "The container toolkit %s would be installed, which has systemd reload; that takes the GPUs away from the "
            "containers %s, which got them by --gpus. Nothing was changed: stop these, or start them with CDI names "
            "(--device nvidia.com/gpu=all).",
            (packages[min(packages)]["version"], ", ".join(held)),
        )


def _manager(system):
    """apt or dnf; FleetError for a distribution that the vendor has no packages for."""
    release = os_release(system)
    if family(release) & {"debian", "ubuntu"}:
        return "apt"
    if family(release) & {"rhel", "fedora", "centos", "amzn"}:
        return "dnf"
    raise FleetError(
        "nvidia.distribution-unsupported",
        "There is no container toolkit for %s; allowed: Debian and Ubuntu (apt), RHEL, Fedora and Amazon Linux "
        "(dnf), and what derives from these.",
        (release.get("PRETTY_NAME") or release.get("ID") or "this distribution",),
    )


def _driver_words(release):
    """How this distribution gets a driver; docs.nvidia.com/datacenter/tesla/driver-installation-guide."""
    if release.get("ID") == "ubuntu":
        return "Install it with: sudo ubuntu-drivers install --gpgpu; sudo reboot."
    command = "apt" if "debian" in family(release) else "dnf"
    return "Install it from NVIDIA's CUDA repository with: sudo %s install nvidia-open; sudo reboot." % command
