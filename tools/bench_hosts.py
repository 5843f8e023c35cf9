# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the control node with many hosts that have nothing to do: site.yml for 10, 30 and 100 of them in one play.

    .venv/bin/python tools/bench_hosts.py [COUNT…] [--rounds N]

Every host is this machine with a local connection, and has a separate fleet_root, supervisord and server of a scripted
engine. Toolkit, encodings and the stand-in checkpoint are shared, as on a network disk. The hosts are deployed once.
Then the converged run is measured for each count: seconds, processor seconds (including modules, because they run on
this machine, too), and the peak memory of the main process and of all processes of the run together. At the end all
servers are stopped and all files are deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import fleet
import nodes
import run

ROOT = Path(__file__).resolve().parent.parent
STANDIN = ROOT / "roles" / "model_weights" / "files" / "gpt-oss-tiny-standin.zip"
FIRST_PORT = 21000
AIM = 1.2  # maximum ratio to ten times the run of a tenth of the hosts


def inventory(folder, count):
    """Write an inventory of `count` hosts below `folder` and return its path."""
    shared = folder / "shared"
    hosts = {
        "host-%03d" % number: {
            "fleet_root": str(folder / ("host-%03d" % number)),
            "fleet_override_port": {"servers": {"server": {"port": FIRST_PORT + number}}},
        }
        for number in range(count)
    }
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "/usr/bin/python3",
        "fleet_recipe": "cpu-tiny",
        "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 1},
        "fleet_override": {
            "venv": {
                "path": str(shared / "toolkit"),
                "create": False,
                "packages": None,
                "torch": None,
                "verify_imports": None,
            },
            "model": {"source": "path", "source_path": str(shared / "model"), "path": str(shared / "model")},
            "command": ["/usr/bin/python3", str(shared / "engine" / "engine.py")],
            "arguments": {"model": "${model_id}"},
            "servers": {"server": {"count": 1}},
            "needs": {"host_memory_gib": 0.1, "disk_gib": 0.1, "libraries": None},
            "start": {"budget_s": 600},
        },
        "cpu_packages": {},
        "toolkit_path": str(shared / "toolkit"),
        "serve_toolkit": str(shared / "toolkit"),
        "tiktoken_encodings_directory": str(shared / "encodings"),
        "fleet_reports_dir": str(folder / "reports"),
    }
    path = folder / ("hosts-%d.json" % count)
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return path


def play(playbook, inventory, *arguments):
    """Return {seconds, cpu, main, all, changed} of a playbook; memory in MiB.
    Raises SystemExit with the output if it fails."""
    before, began = fleet.processor_seconds(), time.monotonic()
    with tempfile.TemporaryFile("w+") as screen:
        process = subprocess.Popen(
            [str(ROOT / ".venv" / "bin" / "ansible-playbook"), playbook, "-i", str(inventory), *arguments],
            cwd=ROOT, env=run.environment(), stdin=subprocess.DEVNULL, stdout=screen, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        memory = Memory(process.pid)
        memory.start()
        status = process.wait()
        seconds, cpu = time.monotonic() - began, fleet.processor_seconds() - before
        memory.join()
        screen.seek(0)
        text = screen.read()
    if status:
        raise SystemExit(text[-6000:] + "\nbench-hosts: %s failed, exit status %d." % (playbook, status))
    changed = sum(int(word.partition("=")[2]) for word in text.split() if word.startswith("changed="))
    return {"seconds": seconds, "cpu": cpu, "main": memory.main, "all": memory.all, "changed": changed}


class Memory(threading.Thread):
    """Peak memory of a run: `main` of its first process (VmHWM), `all` of its session (sum of Pss), in MiB."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.main, self.all = pid, 0.0, 0.0

    def run(self):
        while True:
            peak = field("/proc/%d/status" % self.pid, "VmHWM:")
            if peak is None:
                return
            self.main = max(self.main, peak / 1024)
            pss = [field("/proc/%s/smaps_rollup" % pid, "Pss:") for pid in self.members()]
            self.all = max(self.all, sum(filter(None, pss)) / 1024)
            time.sleep(0.3)

    def members(self):
        """Return the pids of ansible-playbook's processes, without the servers that it started:
        those have separate sessions."""
        for entry in os.listdir("/proc"):
            try:
                ours = entry.isdigit() and self.pid in (int(entry), parent(entry))
                if ours and b"ansible-playbook" in Path("/proc", entry, "cmdline").read_bytes():
                    yield entry
            except OSError:
                continue


def parent(pid):
    return int(Path("/proc/%s/stat" % pid).read_text().rpartition(")")[2].split()[1])


def field(path, name):
    """Return a number of kB in a file of /proc; None if the process has ended."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)


def deploy(folder, most):
    """Deploy everything that the hosts share with one host, then the servers of all hosts."""
    shared = folder / "shared"
    (shared / "engine").mkdir(parents=True)
    for path in fleet.ENGINE:
        shutil.copy(path, shared / "engine")
    encodings = nodes.share_encodings()[0][0]
    shutil.copytree(encodings, shared / "encodings")
    sys.path.insert(0, str(ROOT / ".ansible" / "collections"))
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import accounts

    with zipfile.ZipFile(STANDIN) as archive:
        archive.extractall(shared / "model")
    for number in range(most):  # so that only servers remain to be deployed
        accounts.ensure(str(folder / ("host-%03d" % number)), None)
    hosts = inventory(folder, most)
    for playbook, arguments in (("site.yml", ("--limit", "host-000")), ("site.yml", ())):
        cost = play(playbook, hosts, *arguments)
        print("bench-hosts: %s %s: %.0f s, changed=%d"
              % (playbook, " ".join(arguments), cost["seconds"], cost["changed"]), flush=True)  # fmt: skip


def stop(folder):
    """Stop the supervisords of the hosts, with their servers, and wait for their end."""
    pids = [int(path.read_text()) for path in folder.glob("host-*/run/inference-fleet/supervisord.pid")]
    for pid in pids:
        if str(folder).encode() in Path("/proc/%d/cmdline" % pid).read_bytes():
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 60
    while time.monotonic() < end and any(Path("/proc/%d" % pid).exists() for pid in pids):
        time.sleep(0.2)
    for entry in filter(str.isdigit, os.listdir("/proc")):  # the engine's child has left its group and session
        with contextlib.suppress(OSError):
            if str(folder).encode() in Path("/proc", entry, "cmdline").read_bytes() and int(entry) != os.getpid():
                os.kill(int(entry), signal.SIGKILL)


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench_hosts.py", description=__doc__.splitlines()[0])
    parser.add_argument("counts", nargs="*", type=int, default=[10, 30, 100])
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured; medians are printed")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="fleet-hosts-"))
    folder.chmod(0o755)
    try:
        deploy(folder, max(options.counts))
        print("%6s %8s %8s %10s %10s %10s" % ("hosts", "seconds", "cpu s", "cpu/host", "main MiB", "all MiB"))
        found = {}
        for count in options.counts:
            runs = [play("site.yml", inventory(folder, count)) for _turn in range(options.rounds)]
            if any(one["changed"] for one in runs):
                raise SystemExit("bench-hosts: a run of %d hosts changed something" % count)
            one = found[count] = {key: statistics.median(each[key] for each in runs) for key in runs[0]}
            print("%6d %8.1f %8.1f %10.2f %10.0f %10.0f" % (count, one["seconds"], one["cpu"], one["cpu"] / count,
                  one["main"], one["all"]), flush=True)  # fmt: skip
        least, most = min(found), max(found)
        ratio = {key: found[most][key] / found[least][key] for key in ("seconds", "cpu", "main")}
        linear = most / least
        print("%d to %d hosts: seconds x %.1f, cpu x %.1f, memory x %.1f; linear is x %.0f" % (
            least, most, ratio["seconds"], ratio["cpu"], ratio["main"], linear))  # fmt: skip
        return int(ratio["cpu"] > AIM * linear)
    finally:
        stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
