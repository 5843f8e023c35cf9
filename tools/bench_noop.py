# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a run that changes nothing with other tools that check the same: one node over ssh, eight servers.

    .venv/bin/python tools/bench_noop.py [--rounds N] [--json FILE]

One node gets a complete site.yml: toolkit, an environment, encodings, the stand-in checkpoint, eight servers of a
scripted engine, the verdict. Then all candidates run in turns, each with separate connections. The medians are printed:
seconds, processor seconds of the control node, and remote calls, which the node counts: each call is a line of sudo in
its journal. The exit status is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fleet
import nodes
import run

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "bench-noop"
HERE = ROOT / "tools" / "bench_noop_checks"
PYINFRA = "3.10.0"
SERVERS = 8
LIB = "/var/lib/inference-fleet"
VENV = LIB + "/venvs/engine"
MODEL = LIB + "/models/gpt-oss-tiny-standin"
VARIABLES = {
    **fleet.VARIABLES,
    "fleet_override": {
        "venv": {"path": "${venvs}/engine", "packages": ["setuptools"], "torch": None, "excludes": None,
                 "verify_imports": None},
        "command": ["${venv}/bin/python", "/opt/engine/engine.py"],
        "arguments": {"model": "${model_id}"},
        # a node with two processors: servers without devices are checked in the same way
        "servers": [{"role": "server", "count": 2, "devices": 1, "port": 8000},
                    {"role": "frontend", "count": SERVERS - 2, "devices": 0, "port": 8002,
                     "arguments": {"model": "${model_id}", "port": "${port}"}}],
        "needs": {"host_memory_gib": 0.1, "disk_gib": 0.2},
    },
    "tiktoken_encodings_sources": [{"type": "file", "path": nodes.SHARED + "/encodings"}],
    "vllm_find_links": [nodes.SHARED + "/wheels"],
    "vllm_environment": {"PIP_NO_INDEX": "1"},
    "fleet_reports_dir": str(FOLDER / "reports"),
}  # fmt: skip
FACTS = """
import glob, hashlib, json, os, stat, sys
lib, venv, model = sys.argv[1:4]
def sha(path):
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()
import grp, pwd
def folder(path):
    one = os.stat(path)
    return {"path": path, "mode": "%04o" % stat.S_IMODE(one.st_mode), "owner": pwd.getpwuid(one.st_uid).pw_name,
            "group": grp.getgrgid(one.st_gid).gr_name}
below = [path for top in ("/etc/inference-fleet", lib) for path in [top] + sorted(glob.glob(top + "/*"))]
marks = [lib + "/toolkit/.inference-fleet.json", venv + "/.inference-fleet.json"]
site = glob.glob(venv + "/lib/python3*/site-packages")[0]
sizes = {path: os.path.getsize(path) for path in sorted(glob.glob(model + "/*"))}
units = sorted(map(os.path.basename, glob.glob("/etc/systemd/system/inference-fleet-*-[0-9].service")))
print(json.dumps({
    "account": "inference-fleet",
    "folders": [folder(path) for path in below if os.path.isdir(path)],
    "checksums": [{"path": path, "sha256": sha(path)} for path in marks + glob.glob(lib + "/encodings/*.tiktoken")],
    "packages": {"folder": site, "names": sorted(n for n in os.listdir(site) if n.endswith(".dist-info"))},
    "checkpoint": {"folder": model, "files": sizes, "sizes": sorted(sizes.values())},
    "units": units,
    "ports": list(range(8000, 8000 + len(units))),
}))
"""


def pyinfra():
    """Return the program in a separate environment, because it is not part of this collection."""
    folder = ROOT / ".cache" / ("pyinfra-" + PYINFRA)
    program = folder / "bin" / "pyinfra"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        argv = [str(folder / "bin" / "pip"), "install", "-qq", "pyinfra==" + PYINFRA]
        subprocess.run(argv, check=True)
    return program


def candidates(node, inventory):
    """Return [(name, argv, variables)]; each leaves a converged node unchanged and fails if the node differs."""
    expected = FOLDER / "expected.json"
    facts = json.loads(node.ssh("/usr/bin/python3 -c %s %s %s %s" % (shlex.quote(FACTS), LIB, VENV, MODEL)))
    if len(facts["units"]) != SERVERS:
        raise SystemExit("bench-noop: %d servers, not %d" % (len(facts["units"]), SERVERS))
    expected.write_text(json.dumps({"expected": facts}))
    hosts = FOLDER / "hosts.py"
    hosts.write_text("nodes = [(%r, %r)]\n" % (node.address, {
        "ssh_user": nodes.USER, "ssh_key": str(nodes.KEY), "ssh_known_hosts_file": "/dev/null",
        "ssh_strict_host_key_checking": "off",
    }))  # fmt: skip
    ansible = str(ROOT / ".venv" / "bin" / "ansible")
    where = ["-i", str(inventory)]
    return [
        ("site.yml, nothing to do", [ansible + "-playbook", "site.yml", *where], {}),
        ("one ping", [ansible, "all", *where, "--become", "-m", "ansible.builtin.ping"], {}),
        ("nine pings, one playbook", [ansible + "-playbook", str(HERE / "nine_pings.yml"), *where], {}),
        ("pyinfra, the same checks",
         [str(pyinfra()), "--yes", "--sudo", str(hosts), str(HERE / "pyinfra_deploy.py")], {"EXPECTED": str(expected)}),
        ("stock modules, same checks",
         [ansible + "-playbook", str(HERE / "stock_modules.yml"), *where, "-e", "@%s" % expected], {}),
    ]  # fmt: skip


def calls(node):
    """Return the number of commands that have run as root on the node, including those of this tool."""
    count = "journalctl --identifier=sudo --output=cat --no-pager | grep --count 'COMMAND[=]' || true"
    return int(node.ssh(count))


@contextlib.contextmanager
def own_connections():
    """Create a folder for the connections that Ansible shares between calls; they end with the block."""
    with tempfile.TemporaryDirectory(prefix="ssh") as folder:
        try:
            yield folder
        finally:
            for socket in Path(folder).iterdir():
                argv = ["ssh", "-o", "ControlPath=%s" % socket, "-O", "exit", "node"]
                subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def measure(node, argv, variables):
    """Return (seconds, processor seconds, remote calls) of a run.
    Raises SystemExit with the output if it fails or changes anything."""
    before = calls(node)
    with own_connections() as folder:
        environment = {**run.environment(), "ANSIBLE_SSH_CONTROL_PATH_DIR": folder, **variables}
        began, spent = time.monotonic(), fleet.processor_seconds()
        done = subprocess.run(argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
        seconds, processor = time.monotonic() - began, fleet.processor_seconds() - spent
    if done.returncode or "changed=1" in done.stdout:
        raise SystemExit("%s\nbench-noop: %s failed or changed something" % (done.stdout, argv[0]))
    return seconds, processor, calls(node) - before - 1


def table(rows):
    """Return lines of {name: [(seconds, processor seconds, calls)]}:
    medians, and the ratio of the first name to each."""
    medians = {name: tuple(map(statistics.median, zip(*runs))) for name, runs in rows.items()}
    first = next(iter(medians.values()))[0]
    lines = ["%-28s %8s %8s %7s %14s" % ("", "seconds", "cpu s", "calls", "site.yml is")]
    for name, (seconds, processor, count) in medians.items():
        lines.append("%-28s %8.2f %8.2f %7d %12.2f x" % (name, seconds, processor, count, first / seconds))
    return medians, lines


def aims(medians):
    """Return [(name, result, aim, whether it is met)]."""
    ours, _ping, nine, other, _stock = medians.values()
    return [
        ("remote calls", "%d" % ours[2], "1", ours[2] <= 1),
        ("processor seconds", "%.2f" % ours[1], "1.90", ours[1] <= 1.9),
        ("seconds, to nine pings", "%.2f x" % (ours[0] / nine[0]), "0.85 x", ours[0] <= 0.85 * nine[0]),
        ("seconds, to pyinfra", "%.2f x" % (ours[0] / other[0]), "0.67 x", ours[0] <= 0.67 * other[0]),
    ]


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench_noop.py", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the figures of every round there too")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = ["noop-%d" % os.getpid()]
    try:
        made, inventory = fleet.make(names, VARIABLES, ["wheels", "encodings"], FOLDER)
        cost = fleet.play("site.yml", inventory, made)
        print("bench-noop: %d servers deployed in %.1f s" % (SERVERS, cost["seconds"]), flush=True)
        chosen = candidates(made[0], inventory)
        rows = {name: [] for name, _argv, _variables in chosen}
        for turn in range(options.rounds + 1):
            for name, argv, variables in chosen:
                figures = measure(made[0], argv, variables)
                if turn:  # the first round warms all caches
                    rows[name].append(figures)
        medians, lines = table(rows)
        print("\n".join(["", "medians of %d rounds, in turns" % options.rounds, *lines, ""]))
        found = aims(medians)
        for what, value, aim, met in found:
            print("%-28s %8s  aim %-7s %s" % (what, value, aim, "met" if met else "MISSED"))
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=2))
        return int(not all(met for *_rest, met in found))
    finally:
        nodes.destroy(names)


if __name__ == "__main__":
    sys.exit(nodes.status_of(main, sys.argv[1:]))
