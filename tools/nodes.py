# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test nodes: containers in which systemd is PID 1, reached over ssh like machines. Standard library only.

    python tools/nodes.py check | build | create NAME… | reboot NAME… | destroy [NAME…] | inventory | ssh-config

tests/nodes/platforms describes what a node has in addition to a bare machine. Images are made from one debootstrap, and
their tags contain the hash of their content. If no Docker engine runs, root starts one with its files below
.cache/nodes, and `destroy` ends it with the last node.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import ipaddress
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "nodes"
OWN = Path("/run/inference-fleet-nodes")  # a socket's path may have 107 bytes, so it is not below the clone
SOCKET = OWN / "docker.sock"
DAEMON = OWN / "dockerd.json"
KEY = CACHE / "id_ed25519"
USER = "admin"  # logs in with the key and may use sudo, like the accounts of machine images
LABEL = "inference.fleet.node"
LABEL_PLATFORM = "inference.fleet.platform"
NETWORK = "inference-fleet-nodes"
BRIDGE = "fleet-nodes0"
SUBNET = "172.30.77.0/24"
SUITE = "bookworm"
MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"  # without it usrmerge is installed, and Perl with it
# Packages of all machine images: systemd, ssh, sudo, Python.
PACKAGES = ["ca-certificates", "dbus", "iproute2", "libnuma1", "openssh-server", "procps", "python3", "python3-venv",
            "sudo", "systemd", "systemd-sysv", "usr-is-merged"]  # fmt: skip
PLATFORMS = ROOT / "tests" / "nodes" / "platforms"
DOCKERFILE = ROOT / "tests" / "nodes" / "Dockerfile"
DYNAMO_PYTHON = "3.13"  # of trixie, in which images of Dynamo are made
SHARED = "/opt/shared"  # where nodes see directories of this machine, read-only
KEEP = "FLEET_NODES_KEEP_ENGINE"  # set: keep a Docker engine that was started here for the next scenario
BOOT_S = 180  # of a machine with other load
SHARES_OF_CPU = 8192  # of all nodes together; a process outside has 1024


class Unavailable(Exception):
    """Nodes cannot be started on this machine; the message states the reason and the remedy."""


def say(text):
    print("nodes: " + text, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Node:
    """A running node: its name, its container and the address that ssh reaches."""

    name: str
    container: str
    address: str
    platform: str = "cpu"

    def ssh(self, command, check=True, timeout=60):
        """Run a shell command on the node as root and return its output, including stderr."""
        argv = ["ssh", *ssh_options(), "%s@%s" % (USER, self.address), "sudo -n sh -c " + shlex.quote(command)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=timeout, check=False)  # fmt: skip
        if check and done.returncode:
            raise RuntimeError("%s on %s: exit status %d\n%s" % (command, self.name, done.returncode, done.stdout))
        return done.stdout

    def copy(self, path, destination):
        """Copy a file, or the content of a directory (path/.), to a directory of the node that is not a tmpfs."""
        docker("cp", str(path), "%s:%s" % (self.container, destination))

    def reboot(self):
        """Restart PID 1 and all processes; /run and /tmp are empty afterwards. Return the seconds until ssh answers."""
        began = time.monotonic()
        docker("restart", "--time", "60", self.container)
        wait_for_boot(self)
        return time.monotonic() - began

    def variables(self):
        """Return the variables of the node for an inventory."""
        return {
            "ansible_host": self.address,
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(KEY),
            "ansible_ssh_common_args": " ".join(ssh_options(with_key=False)),
        }


def ssh_options(with_key=True):
    """Return options of ssh. Host keys are not checked, because nodes are replaced frequently."""
    options = ["-i", str(KEY)] if with_key else []
    for option in ("IdentitiesOnly=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null",
                   "LogLevel=ERROR", "ConnectTimeout=5"):  # fmt: skip
        options += ["-o", option]
    return options


# ---- the Docker engine


def docker(*arguments, check=True, **variables):
    """Return the output of a docker command. Raises RuntimeError with its message if it fails."""
    environment = {**os.environ, **variables}
    if SOCKET.exists():
        environment["DOCKER_HOST"] = "unix://%s" % SOCKET
    done = subprocess.run(["docker", *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)  # fmt: skip
    if check and done.returncode:
        raise RuntimeError("docker %s: %s" % (" ".join(arguments[:3]), done.stderr.strip()))
    return done.stdout.strip()


def engine_runs():
    return shutil.which("docker") is not None and bool(docker("info", "--format", "{{.ServerVersion}}", check=False))


def ensure_engine():
    """Start a Docker engine if none runs. Raises Unavailable if that is not possible."""
    if engine_runs():
        return
    if os.getuid() != 0:
        raise Unavailable("no Docker engine runs, and only root can start one. Start Docker, or run this as root.")
    OWN.mkdir(mode=0o700, exist_ok=True)
    with open(OWN / "start.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not engine_runs():
            _start_engine()


def _start_engine():
    ensure_packages({"dockerd": "docker.io", "docker": "docker.io"})
    (CACHE / "docker").mkdir(parents=True, exist_ok=True)
    log = CACHE / "dockerd.log"
    with open(log, "wb") as stream:
        daemon = subprocess.Popen(
            ["dockerd", "--host", "unix://%s" % SOCKET, "--data-root", str(CACHE / "docker"),
             "--exec-root", str(OWN / "exec"), "--pidfile", str(OWN / "docker.pid"), "--bridge", "none"],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd="/",
        )  # fmt: skip
    end = time.monotonic() + 60
    while not engine_runs():
        if daemon.poll() is not None or time.monotonic() > end:
            if daemon.poll() is None:
                daemon.terminate()
            SOCKET.unlink(missing_ok=True)
            words = log.read_text(errors="replace").splitlines()[-5:]
            raise Unavailable("dockerd does not start here:\n  " + "\n  ".join(words))
        time.sleep(0.2)
    DAEMON.write_text(json.dumps({"pid": daemon.pid, "ticks": _ticks(daemon.pid), "clone": str(ROOT)}))
    say("no Docker engine ran: started dockerd, process %d, files below %s" % (daemon.pid, CACHE / "docker"))


def end_engine():
    """Stop the dockerd that this tool started, if it has no containers left. Other Docker engines are not changed."""
    if os.environ.get(KEEP):
        return
    try:
        daemon = json.loads(DAEMON.read_text())
    except (OSError, ValueError):
        return
    if daemon["ticks"] != _ticks(daemon["pid"]):
        SOCKET.unlink(missing_ok=True)
        DAEMON.unlink()
        return
    if docker("ps", "--quiet", check=False):
        return
    # otherwise the bridge would remain after the engine and conflict with the addresses of the next engine
    docker("network", "rm", NETWORK, check=False)
    os.kill(daemon["pid"], signal.SIGTERM)
    end = time.monotonic() + 30
    while _ticks(daemon["pid"]) == daemon["ticks"]:
        if time.monotonic() > end:
            raise RuntimeError("dockerd (process %d) does not end" % daemon["pid"])
        time.sleep(0.1)
    SOCKET.unlink(missing_ok=True)
    DAEMON.unlink()
    say("ended dockerd, process %d" % daemon["pid"])


def _ticks(pid):
    """Return the time at which the process was started, in ticks after boot; None if it has ended."""
    try:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def ensure_packages(programs):
    """Install missing programs of {program: Debian package}. Raises Unavailable without root or without apt-get."""
    missing = sorted({package for program, package in programs.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable("%s missing. Install: %s." % (" and ".join(missing), " ".join(missing)))
    say("installing " + " ".join(missing))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing, "iptables"]):
        argv = ["apt-get", "-q", "-o", "Acquire::Retries=3", *command]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable("apt-get %s failed: %s" % (command[0], done.stderr.strip()[-500:]))


# ---- the image


def digest(*parts):
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def ensure_key():
    """Create the ssh key of the nodes of this clone."""
    ensure_packages({"ssh": "openssh-client", "ssh-keygen": "openssh-client"})
    CACHE.mkdir(parents=True, exist_ok=True)
    if not KEY.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test nodes", "-f", str(KEY)], check=True)


@dataclasses.dataclass(frozen=True)
class Platform:
    """tests/nodes/platforms/NAME: platform.json, and rootfs/, which is copied over the image."""

    name: str
    description: str
    packages: tuple = ()  # Debian's, beyond what every node has
    options: tuple = ()  # further arguments of docker run
    shares: tuple = ()  # directories of this machine for each node of the platform; see SHARES
    groups: tuple = ()  # of the inventory
    layers: tuple = ()  # other platforms whose rootfs and links come below this one's
    links: tuple = ()  # ((path, target), …), laid over the image too: no link need survive a copy of this clone
    suite: str = SUITE  # Debian's release

    @property
    def rootfs(self):
        return PLATFORMS / self.name / "rootfs"

    @property
    def trees(self):
        """Return the directories that are copied over the image, in this order."""
        return [PLATFORMS / layer / "rootfs" for layer in self.layers] + [self.rootfs]

    @property
    def all_links(self):
        """Return {path: target} of the layers and of the platform itself."""
        return dict([link for layer in self.layers for link in read_platform(layer).links] + list(self.links))

    def content(self):
        """Return [(path, mode, hash or target)] of the files that are copied over the image."""
        found = [(path, "link", target) for path, target in sorted(self.all_links.items())]
        for tree in self.trees:
            for path in sorted(tree.rglob("*")):
                mode = path.lstat().st_mode
                if path.is_symlink():
                    found.append((str(path.relative_to(tree)), mode, os.readlink(path)))
                elif path.is_file():
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
                    found.append((str(path.relative_to(tree)), mode, content))
        return found


def platform_names():
    return sorted(path.parent.name for path in PLATFORMS.glob("*/platform.json"))


def read_platform(name):
    """Return the Platform. Raises RuntimeError if it does not exist,
    or if its rootfs would replace a link of the base."""
    if name not in platform_names():
        raise RuntimeError("there is no platform %r of nodes; there are: %s." % (name, ", ".join(platform_names())))
    content = json.loads((PLATFORMS / name / "platform.json").read_text())
    links = tuple(sorted(content.pop("links", {}).items()))
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    platform = Platform(name, links=links, **values)
    for folder in ("bin", "sbin", "lib", "lib64"):
        if (platform.rootfs / folder).exists():
            raise RuntimeError("%s: /%s is a link to /usr/%s; put it there." % (platform.rootfs, folder, folder))
    return platform


def build(name="cpu"):
    """Return the tag of a platform's image, which is built if the engine does not have it."""
    platform = read_platform(name)
    ensure_engine()
    ensure_key()
    key = KEY.with_suffix(".pub").read_text()
    inputs = (platform.suite, PACKAGES, DOCKERFILE.read_text(), key, platform.packages, platform.content())
    tag = "inference-fleet-node:%s-%s" % (name, digest(*inputs))
    with open(CACHE / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if docker("images", "--quiet", tag):
            return tag
        base = build_base(platform.suite)
        began = time.monotonic()
        context = CACHE / "context"
        shutil.rmtree(context, ignore_errors=True)
        (context / "rootfs").mkdir(parents=True)
        for tree in platform.trees:
            if tree.exists():
                shutil.copytree(tree, context / "rootfs", symlinks=True, dirs_exist_ok=True)
        for place, target in platform.all_links.items():
            link = context / "rootfs" / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        (context / "authorized_keys").write_text(key)
        docker("build", "--quiet", "--tag", tag, "--build-arg", "BASE=" + base, "--label", LABEL + "=image",
               "--build-arg", "PACKAGES=" + " ".join(platform.packages),
               "--network", "host" if platform.packages else "none",
               "--file", str(DOCKERFILE), str(context), DOCKER_BUILDKIT="0")  # fmt: skip
        say("made %s in %d s" % (tag, time.monotonic() - began))
    return tag


def build_base(suite=SUITE):
    """Return the tag of the base image, which mmdebstrap makes; the tag is a hash of suite and packages."""
    tag = "inference-fleet-node-base:" + digest(suite, PACKAGES)
    if docker("images", "--quiet", tag):
        return tag
    if os.getuid() != 0:
        raise Unavailable("the node image is not there, and only root can make it (mmdebstrap). Run this as root.")
    ensure_packages({"mmdebstrap": "mmdebstrap"})
    began = time.monotonic()
    archive = CACHE / "rootfs.tar"
    with open(CACHE / "mmdebstrap.log", "wb") as log:
        for _attempt in range(2):  # a mirror may fail once
            done = subprocess.run(
                ["mmdebstrap", "--mode=root", "--variant=minbase", "--hook-dir=" + MERGED,
                 "--include=" + ",".join(PACKAGES), suite, str(archive)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
            )  # fmt: skip
            if not done.returncode:
                break
    if done.returncode:
        raise Unavailable("mmdebstrap failed; see %s." % log.name)
    docker("import", str(archive), tag)
    archive.unlink()
    say("made %s in %d s" % (tag, time.monotonic() - began))
    return tag


# ---- nodes


def container_name(name):
    """Return a name that differs between two clones on a machine."""
    return "fleet-node-%s-%s" % (hashlib.sha256(str(ROOT).encode()).hexdigest()[:6], name)


def nodes():
    """Return the running nodes of this clone."""
    if not engine_runs():
        return []
    listed = docker("ps", "--quiet", "--filter", "label=%s=%s" % (LABEL, ROOT)).split()
    found = json.loads(docker("inspect", *listed)) if listed else []
    result = [
        Node(
            one["Config"]["Hostname"],
            one["Name"].lstrip("/"),
            one["NetworkSettings"]["Networks"][NETWORK]["IPAddress"],
            one["Config"]["Labels"][LABEL_PLATFORM],
        )
        for one in found
        if one["NetworkSettings"]["Networks"].get(NETWORK)
    ]
    return sorted(result, key=lambda node: node.name)


def ensure_network():
    if not docker("network", "ls", "--quiet", "--filter", "name=^%s$" % NETWORK):
        # docker reuses a bridge with this name that a killed engine left behind
        docker("network", "create", "--subnet", SUBNET, "--opt", "com.docker.network.bridge.name=" + BRIDGE, NETWORK)


def free_address():
    """Return an address that no container uses. A node with a given address keeps it after a restart."""
    taken = set()
    listed = docker("ps", "--all", "--quiet", "--filter", "network=" + NETWORK).split()
    for one in json.loads(docker("inspect", *listed)) if listed else []:
        network = one["NetworkSettings"]["Networks"][NETWORK]
        taken.update((network["IPAddress"], (network["IPAMConfig"] or {}).get("IPv4Address")))
    hosts = list(ipaddress.ip_network(SUBNET).hosts())[1:]
    return next(str(address) for address in hosts if str(address) not in taken)


def made(name, make):
    """Return the directory of this name in the cache; make(DIRECTORY) creates it if it is missing, under a lock."""
    folder, beside = CACHE / name, CACHE / (name + ".part")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / (name + ".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(beside, ignore_errors=True)
            make(beside)
            beside.rename(folder)
    return folder


def share_venv(recipe="cpu-tiny", place="/venv"):
    """Return the environment of a recipe that all tests share, and the Python that it was made with."""
    sys.path.insert(0, str(ROOT / "tools"))
    import engine_venv

    venv = engine_venv.ensure(recipe)
    places = [(venv, SHARED + place)]
    prefix = engine_venv.base_prefix(venv)
    if prefix != Path("/usr"):  # nodes have Debian's own Python, too
        places.append((prefix, str(prefix)))
    return places


def share_dynamo_venv():
    """Return the environment with Dynamo."""
    return share_venv("cpu-dynamo", "/dynamo-venv")


def toolkit_packages():
    import yaml  # installed in the control node's environment

    return yaml.safe_load((ROOT / "roles" / "toolkit" / "defaults" / "main.yml").read_text())["toolkit_packages"]


def share_wheels():
    """Return the packages of the role toolkit, for nodes that reach no index."""
    return [(downloaded(toolkit_packages()), SHARED + "/wheels")]


def share_controller_wheels():
    """Return the packages that ansible-pull requires on a node, for Debian's Python."""
    import tomllib

    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [(downloaded(packages), SHARED + "/controller-wheels")]


def downloaded(packages):
    """Return a directory with the wheels of these packages and of their requirements."""

    def download(folder):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(folder),
             *packages, "setuptools"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError("pip download failed: " + done.stderr.strip()[-500:])

    return made("wheels-" + digest(packages), download)


def share_dynamo_packages():
    """Return Dynamo's packages of each release of TensorRT-LLM's recipes, without an engine, in folders of their
    versions, and in `common` what they import, for the Python of DYNAMO_PYTHON."""
    import yaml  # installed in the control node's environment

    images = yaml.safe_load((ROOT / "recipes" / "images.yml").read_text())
    releases = sorted(name.rpartition("-")[2] for name in images if name.startswith("dynamo-trtllm-"))

    def install(folder):
        common = (folder / "common", ["uvloop", "pydantic>=2.10.6,<=2.13", "msgspec", "packaging", "tokenizers"])
        pinned = [(folder / one, ["--no-deps", "ai-dynamo==" + one, "ai-dynamo-runtime==" + one]) for one in releases]
        for target, packages in (common, *pinned):
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
                 "--python-version", DYNAMO_PYTHON, "--target", str(target), *packages],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError("pip install failed: " + done.stderr.strip()[-500:])

    return [(made("dynamo-packages-" + digest(releases, DYNAMO_PYTHON), install), SHARED + "/dynamo-packages")]


def share_encodings():
    """Return the vocabulary that gpt-oss servers read, for nodes without a network."""
    folder = CACHE / "encodings"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "o200k_base.tiktoken").exists():
        worker = ROOT / "plugins" / "module_utils" / "fleet_node" / "weights" / "encodings_worker.py"
        argv = [sys.executable, str(worker), "o200k_base", str(folder / "o200k_base.tiktoken")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError("the encodings cannot be made: " + done.stderr.strip()[-500:])
    return [(folder, SHARED + "/encodings")]


def share_neuron_packages():
    """Return stand-ins for the vendor's packages, in repositories for apt and in indexes for pip."""
    ensure_packages({"gpg": "gnupg", "dpkg-deb": "dpkg"})
    sys.path.insert(0, str(ROOT / "tests" / "nodes"))
    import package_indexes

    name = "neuron-packages-" + digest(Path(package_indexes.__file__).read_text())
    folder = made(name, lambda folder: package_indexes.make(folder, SUITE))
    return [(folder, SHARED + "/neuron")]


def share_nvidia_packages():
    """Return stand-ins for the packages of NVIDIA's container toolkit, in a repository for apt."""
    ensure_packages({"gpg": "gnupg", "dpkg-deb": "dpkg"})
    sys.path.insert(0, str(ROOT / "tests" / "nodes"))
    import nvidia_packages

    sources = [Path(nvidia_packages.__file__).with_name(name).read_text() for name in nvidia_packages.SOURCES]
    folder = made("nvidia-packages-" + digest(*sources), nvidia_packages.make)
    return [(folder, SHARED + "/nvidia")]


def share_service_archives():
    """Return releases of etcd and NATS for nodes that do not reach upstream's."""
    ensure_packages({"dpkg-deb": "dpkg"})
    sys.path.insert(0, str(ROOT / "tests" / "nodes"))
    import service_archives

    folder = made("service-archives-" + digest(Path(service_archives.__file__).read_text()), service_archives.make)
    return [(folder, SHARED + "/services")]


SHARES = {"encodings": share_encodings, "venv": share_venv, "wheels": share_wheels,
          "controller-wheels": share_controller_wheels, "neuron-packages": share_neuron_packages,
          "nvidia-packages": share_nvidia_packages, "service-archives": share_service_archives,
          "dynamo-venv": share_dynamo_venv, "dynamo-packages": share_dynamo_packages}  # fmt: skip


def shared(names):
    """Return [(folder here, place on the node)] of shares:
    names of SHARES, or FOLDER:PLACE, FOLDER relative to the clone."""
    result = []
    for name in dict.fromkeys(names):
        folder, colon, place = name.rpartition(":")
        if colon:
            if not (ROOT / folder).exists() or not place.startswith("/"):
                raise RuntimeError("--share %s: FOLDER must exist here, and PLACE be absolute." % name)
            result.append(((ROOT / folder).resolve(), place))
        elif name in SHARES:
            result += SHARES[name]()
        else:
            raise RuntimeError(
                "there is no share %r; there are: %s. Any folder: FOLDER:PLACE." % (name, ", ".join(sorted(SHARES)))
            )
    return result


def create(names, platform="cpu", shares=()):
    """Return [Node] that have booted and answer over ssh. Nodes of the same names are replaced."""
    tag = build(platform)
    chosen = read_platform(platform)
    places = shared((*chosen.shares, *shares))
    ensure_network()
    mounts = [word for here, there in places for word in ("--volume", "%s:%s:ro" % (here, there))]
    for name in names:
        docker("rm", "--force", "--volumes", container_name(name), check=False)
        arguments = [
            "--name", container_name(name), "--hostname", name, "--network", NETWORK, "--network-alias", name,
            "--label", "%s=%s" % (LABEL, ROOT), "--label", "%s=%s" % (LABEL_PLATFORM, platform),
            # the rights that systemd requires: to mount, and a separate cgroup tree
            "--cap-add", "SYS_ADMIN", "--cgroupns", "private", "--stop-signal", "SIGRTMIN+3",
            # rights of root on a machine: inspect other accounts' processes, find the owner of a port
            "--cap-add", "SYS_PTRACE",
            "--tmpfs", "/run:exec,mode=755", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777",
            *chosen.options, *mounts,
        ]  # fmt: skip
        run_at_free_address(name, [*arguments, tag])
        # service accounts must be able to read a share below a home
        parents = {str(parent) for _here, there in places for parent in Path(there).parents}
        weigh()
        if parents:
            docker("exec", container_name(name), "chmod", "a+x", *sorted(parents))
    created = [node for node in nodes() if node.name in names]
    for node in created:
        wait_for_boot(node)
    return created


def run_at_free_address(name, arguments):
    """Run docker run --detach, again if another clone has used the address."""
    for attempt in range(5):
        try:
            docker("run", "--detach", "--ip", free_address(), *arguments)
            return
        except RuntimeError as error:
            if "Address already in use" not in str(error) or attempt == 4:
                raise
            docker("rm", "--force", "--volumes", container_name(name), check=False)


def weigh():
    """Raise the CPU shares of nodes. With cgroups v1 all nodes together have those of a single process outside.

    Only for the engine that this tool started.
    """
    if DAEMON.exists():
        for controller in ("cpu", "cpu,cpuacct"):
            path = Path("/sys/fs/cgroup", controller, "docker", "cpu.shares")
            with contextlib.suppress(OSError):
                path.write_text(str(SHARES_OF_CPU))


def wait_for_boot(node):
    """Wait until ssh answers and systemd reports the end of the boot. Raises RuntimeError after BOOT_S."""
    end = time.monotonic() + BOOT_S
    words = "no answer over ssh"
    while time.monotonic() < end:
        done = subprocess.run(
            ["ssh", *ssh_options(), "%s@%s" % (USER, node.address), "systemctl is-system-running"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        words = (done.stdout or done.stderr).strip() or words
        if done.stdout.strip() in ("running", "degraded"):
            return
        time.sleep(0.2)
    raise RuntimeError("node %s did not boot within %d s: %s" % (node.name, BOOT_S, words))


def destroy(names=()):
    """Remove these nodes of this clone (all if `names` is empty), and stop the engine that was started for them."""
    if not engine_runs():
        return
    listed = docker("ps", "--all", "--quiet", "--filter", "label=%s=%s" % (LABEL, ROOT)).split()
    if names:
        wanted = {container_name(name) for name in names}
        there = docker("ps", "--all", "--format", "{{.Names}}").split()
        listed = sorted(wanted & set(there))
    if listed:
        docker("rm", "--force", "--volumes", *listed)
    end_engine()


def reboot(names):
    """Restart these nodes one after the other. Raises RuntimeError if a node does not run."""
    running = {node.name: node for node in nodes()}
    for name in names:
        if name not in running:
            raise RuntimeError("no node %r runs; there are: %s." % (name, ", ".join(running) or "none"))
    for name in names:
        print("%s: %.1f s" % (name, running[name].reboot()))


def inventory():
    """Return an inventory of the running nodes of this clone, each in its platform's groups."""
    running = nodes()
    groups = {}
    for node in running:
        for group in read_platform(node.platform).groups:
            groups.setdefault(group, {"hosts": {}})["hosts"][node.name] = {}
    hosts = {
        node.name: {**node.variables(), "ansible_python_interpreter": "/usr/bin/python3"} for node in running
    }  # fmt: skip
    return {"all": {"hosts": hosts, "children": groups}}


def molecule_config():
    """Return the running nodes for Molecule's default driver: [{instance, address, port, user, identity_file}]."""
    return [
        {"instance": node.name, "address": node.address, "port": 22, "user": USER, "identity_file": str(KEY)}
        for node in nodes()
    ]


def ssh_config():
    """Return a configuration for `ssh -F`."""
    texts = []
    for node in nodes():
        texts.append(
            "Host %s\n  HostName %s\n  User %s\n  IdentityFile %s\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n" % (node.name, node.address, USER, KEY)
        )
    return "\n".join(texts)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="nodes.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("check", help="report whether nodes can be started here; start a Docker engine if none runs")
    builder = commands.add_parser("build", help="make the image of a platform")
    builder.add_argument("--platform", default="cpu")
    creator = commands.add_parser("create", help="start nodes")
    creator.add_argument("names", nargs="+")
    creator.add_argument("--platform", default="cpu", help="one of tests/nodes/platforms")
    creator.add_argument("--share", action="append", default=[], metavar="NAME|FOLDER:PLACE",
                         help="lend the nodes something of this machine, read-only: venv, or any folder")  # fmt: skip
    destroyer = commands.add_parser("destroy", help="remove nodes, all without names")
    destroyer.add_argument("names", nargs="*")
    rebooter = commands.add_parser("reboot", help="restart nodes, as a machine is; returns when they have booted")
    rebooter.add_argument("names", nargs="+")
    lister = commands.add_parser("inventory", help="print an inventory of the running nodes, as JSON")
    lister.add_argument("--molecule", action="store_true", help="what Molecule's instance configuration is instead")
    commands.add_parser("ssh-config", help="print what ssh -F wants")
    return parser.parse_args(arguments)


def status_of(command, arguments):
    """Return the exit status of command(arguments): 3, in CI 1, if nodes cannot be started here; 1 if it fails."""
    try:
        return command(arguments)
    except Unavailable as error:
        say("left out: %s" % error)
        return 1 if os.environ.get("CI") else 3
    except RuntimeError as error:
        say(str(error))
        return 1


def main(arguments):
    options = parse(arguments)
    if options.action == "check":
        ensure_engine()
    elif options.action == "build":
        print(build(options.platform))
    elif options.action == "create":
        for node in create(options.names, options.platform, options.share):
            print("%s is at %s: ssh -F %s %s" % (node.name, node.address, CACHE / "ssh_config", node.name))
        (CACHE / "ssh_config").write_text(ssh_config())
    elif options.action == "destroy":
        destroy(options.names)
    elif options.action == "inventory":
        print(json.dumps(molecule_config() if options.molecule else inventory(), indent=2))
    elif options.action == "reboot":
        reboot(options.names)
    else:
        print(ssh_config(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main, sys.argv[1:]))
