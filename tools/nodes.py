# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test nodes: containers in which systemd is PID 1, reached over ssh as machines are. Standard library only.

    python tools/nodes.py build | create NAME… [--platform cpu] | destroy [NAME…] | ssh-config

The image is made by debootstrap and kept below .cache/nodes by the hash of what goes into it. Where no Docker engine
runs and this is root, one is started: its files are below .cache/nodes too, and `destroy` ends it with the last node.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "nodes"
OWN = Path("/run/inference-fleet-nodes")  # a socket's path may have 107 bytes, so it does not lie below the clone
SOCKET = OWN / "docker.sock"
DAEMON = OWN / "dockerd.json"
KEY = CACHE / "id_ed25519"
USER = "admin"  # logs in with the key and may sudo, as the accounts of machine images do
LABEL = "inference.fleet.node"
NETWORK = "inference-fleet-nodes"
BRIDGE = "fleet-nodes0"
SUBNET = "172.30.77.0/24"
SUITE = "bookworm"
# What machine images have anyway: systemd, ssh, sudo, Python.
PACKAGES = ["ca-certificates", "dbus", "iproute2", "libnuma1", "openssh-server", "procps", "python3", "python3-venv",
            "sudo", "systemd", "systemd-sysv"]  # fmt: skip
PLATFORMS = ("cpu",)
DOCKERFILE = ROOT / "tests" / "nodes" / "Dockerfile"
BOOT_S = 60


class Unavailable(Exception):
    """Nodes cannot be started here; the message says what is missing and what would help."""


def say(text):
    print("nodes: " + text, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Node:
    """A running node: its name, its container and the address that ssh reaches."""

    name: str
    container: str
    address: str

    def ssh(self, command, check=True, timeout=60):
        """Run a shell command on the node as root; its output, stderr included."""
        argv = ["ssh", *ssh_options(), "%s@%s" % (USER, self.address), "sudo -n sh -c " + _quoted(command)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=timeout, check=False)  # fmt: skip
        if check and done.returncode:
            raise RuntimeError("%s on %s: exit status %d\n%s" % (command, self.name, done.returncode, done.stdout))
        return done.stdout

    def copy(self, path, destination):
        """Copy a file of this machine, or what is in a folder (path/.), to a folder of the node that is no tmpfs."""
        docker("cp", str(path), "%s:%s" % (self.container, destination))

    def reboot(self):
        """Restart PID 1 with all that runs; /run and /tmp are empty afterwards. Returns the seconds until ssh."""
        began = time.monotonic()
        docker("restart", "--time", "60", self.container)
        wait_for_boot(self)
        return time.monotonic() - began

    def variables(self):
        """What an inventory says of it."""
        return {
            "ansible_host": self.address,
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(KEY),
            "ansible_ssh_common_args": " ".join(ssh_options(with_key=False)),
        }


def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def ssh_options(with_key=True):
    """Nodes are made anew all the time: their host keys are not to be remembered."""
    options = ["-i", str(KEY)] if with_key else []
    for option in ("IdentitiesOnly=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null",
                   "LogLevel=ERROR", "ConnectTimeout=5"):  # fmt: skip
        options += ["-o", option]
    return options


# ---- the Docker engine


def docker(*arguments, check=True, **variables):
    """What a docker command prints. RuntimeError with its words where it fails."""
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
    """A Docker engine answers, or Unavailable says why not."""
    if engine_runs():
        return
    if os.getuid() != 0:
        raise Unavailable("no Docker engine runs, and only root can start one. Start Docker, or run this as root.")
    ensure_packages({"dockerd": "docker.io", "docker": "docker.io"})
    OWN.mkdir(mode=0o700, exist_ok=True)
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
    """End the dockerd that a clone's tool started, once it runs nothing any more; any other is left alone."""
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
    # its bridge would outlive the engine, and take the addresses from the next one's
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
    """When the process was started, in ticks after boot; None where it is gone or only waits to be forgotten."""
    try:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def ensure_packages(programs):
    """{program: Debian package}: install what is missing, as root on Debian and its kin; Unavailable elsewhere."""
    missing = sorted({package for program, package in programs.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable("%s missing. Install: %s." % (" and ".join(missing), " ".join(missing)))
    say("installing " + " ".join(missing))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing, "iptables"]):
        done = subprocess.run(["apt-get", "-q", *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable("apt-get %s failed: %s" % (command[0], done.stderr.strip()[-500:]))


# ---- the image


def digest(*parts):
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def ensure_key():
    """The key that opens the nodes of this clone; it is made here and never leaves .cache."""
    ensure_packages({"ssh": "openssh-client", "ssh-keygen": "openssh-client"})
    CACHE.mkdir(parents=True, exist_ok=True)
    if not KEY.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test nodes", "-f", str(KEY)], check=True)


def build():
    """The image's tag: it is made where the engine does not have it, from what debootstrap made and the Dockerfile."""
    ensure_engine()
    ensure_key()
    key = KEY.with_suffix(".pub").read_text()
    tag = "inference-fleet-node:" + digest(SUITE, PACKAGES, DOCKERFILE.read_text(), key)
    with open(CACHE / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if docker("images", "--quiet", tag):
            return tag
        base = build_base()
        began = time.monotonic()
        context = CACHE / "context"
        context.mkdir(exist_ok=True)
        (context / "authorized_keys").write_text(key)
        docker("build", "--quiet", "--tag", tag, "--build-arg", "BASE=" + base, "--label", LABEL + "=image",
               "--network", "none", "--file", str(DOCKERFILE), str(context), DOCKER_BUILDKIT="0")  # fmt: skip
        say("made %s in %d s" % (tag, time.monotonic() - began))
    return tag


def build_base():
    """The tag of what debootstrap makes, by the hash of suite and packages."""
    tag = "inference-fleet-node-base:" + digest(SUITE, PACKAGES)
    if docker("images", "--quiet", tag):
        return tag
    if os.getuid() != 0:
        raise Unavailable("the node image is not there, and only root can make it (debootstrap). Run this as root.")
    ensure_packages({"debootstrap": "debootstrap"})
    began = time.monotonic()
    tree, archive = CACHE / "rootfs", CACHE / "rootfs.tar"
    shutil.rmtree(tree, ignore_errors=True)
    with open(CACHE / "debootstrap.log", "wb") as log:
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=" + ",".join(PACKAGES), SUITE, str(tree)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
        )  # fmt: skip
    if done.returncode:
        raise Unavailable("debootstrap failed; see %s." % log.name)
    for path in (tree / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()
    shutil.rmtree(tree / "var/lib/apt/lists", ignore_errors=True)
    subprocess.run(["tar", "-C", str(tree), "-cf", str(archive), "."], check=True)
    shutil.rmtree(tree)
    docker("import", str(archive), tag)
    archive.unlink()
    say("made %s in %d s" % (tag, time.monotonic() - began))
    return tag


# ---- nodes


def container_name(name):
    """Two clones on one machine do not meet."""
    return "fleet-node-%s-%s" % (hashlib.sha256(str(ROOT).encode()).hexdigest()[:6], name)


def nodes():
    """[Node] of this clone that run."""
    if not engine_runs():
        return []
    listed = docker("ps", "--quiet", "--filter", "label=%s=%s" % (LABEL, ROOT)).split()
    found = json.loads(docker("inspect", *listed)) if listed else []
    result = [
        Node(
            one["Config"]["Hostname"],
            one["Name"].lstrip("/"),
            one["NetworkSettings"]["Networks"][NETWORK]["IPAddress"],
        )
        for one in found
    ]
    return sorted(result, key=lambda node: node.name)


def ensure_network():
    if not docker("network", "ls", "--quiet", "--filter", "name=^%s$" % NETWORK):
        # a bridge with a name is taken over where an engine that was killed left it
        docker("network", "create", "--subnet", SUBNET, "--opt", "com.docker.network.bridge.name=" + BRIDGE, NETWORK)


def free_address():
    """An address that no container has: one that is given keeps a node where it is when it is restarted."""
    taken = set()
    listed = docker("ps", "--all", "--quiet", "--filter", "network=" + NETWORK).split()
    for one in json.loads(docker("inspect", *listed)) if listed else []:
        network = one["NetworkSettings"]["Networks"][NETWORK]
        taken.update((network["IPAddress"], (network["IPAMConfig"] or {}).get("IPv4Address")))
    hosts = list(ipaddress.ip_network(SUBNET).hosts())[1:]
    return next(str(address) for address in hosts if str(address) not in taken)


def create(names, platform="cpu"):
    """[Node]: running, reachable over ssh and booted. One of the same name is replaced."""
    if platform not in PLATFORMS:
        raise Unavailable("there is no node of the platform %r; there are: %s." % (platform, ", ".join(PLATFORMS)))
    tag = build()
    ensure_network()
    for name in names:
        docker("rm", "--force", "--volumes", container_name(name), check=False)
        docker(
            "run", "--detach", "--name", container_name(name), "--hostname", name,
            "--network", NETWORK, "--ip", free_address(), "--network-alias", name,
            "--label", "%s=%s" % (LABEL, ROOT), "--label", "inference.fleet.platform=" + platform,
            # all that systemd needs of the host: to mount, and a cgroup tree of its own
            "--cap-add", "SYS_ADMIN", "--cgroupns", "private", "--stop-signal", "SIGRTMIN+3",
            # as root of a machine may: look at other users' processes, who holds a port
            "--cap-add", "SYS_PTRACE",
            "--tmpfs", "/run:exec,mode=755", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777",
            tag,
        )  # fmt: skip
    created = [node for node in nodes() if node.name in names]
    for node in created:
        wait_for_boot(node)
    return created


def wait_for_boot(node):
    """Until ssh answers and systemd says that the boot is over. RuntimeError after BOOT_S with what it says."""
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
    """Remove these nodes of this clone, all of them without names, and end the engine that was started for them."""
    if not engine_runs():
        return
    listed = docker("ps", "--all", "--quiet", "--filter", "label=%s=%s" % (LABEL, ROOT)).split()
    if names:
        listed = [container_name(name) for name in names]
    if listed:
        docker("rm", "--force", "--volumes", *listed)
    end_engine()


def ssh_config():
    """Text for `ssh -F`."""
    texts = []
    for node in nodes():
        texts.append(
            "Host %s\n  HostName %s\n  User %s\n  IdentityFile %s\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n" % (node.name, node.address, USER, KEY)
        )
    return "\n".join(texts)


def main(arguments):
    parser = argparse.ArgumentParser(prog="nodes.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("build", help="make the image")
    creator = commands.add_parser("create", help="start nodes")
    creator.add_argument("names", nargs="+")
    creator.add_argument("--platform", default="cpu")
    destroyer = commands.add_parser("destroy", help="remove nodes, all without names")
    destroyer.add_argument("names", nargs="*")
    commands.add_parser("ssh-config", help="print what ssh -F wants")
    options = parser.parse_args(arguments)
    try:
        if options.action == "build":
            print(build())
        elif options.action == "create":
            for node in create(options.names, options.platform):
                print("%s is at %s: ssh -F %s %s" % (node.name, node.address, CACHE / "ssh_config", node.name))
            (CACHE / "ssh_config").write_text(ssh_config())
        elif options.action == "destroy":
            destroy(options.names)
        else:
            print(ssh_config(), end="")
    except Unavailable as error:
        say("left out: %s" % error)
        return 1 if os.environ.get("CI") else 3
    except RuntimeError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
