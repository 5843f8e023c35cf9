# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks a deployment on real hardware, and writes a folder that can be sent to the developers.

    .venv/bin/python tools/hardware_check.py -i INVENTORY [--output FOLDER] [arguments of ansible-playbook]

The parts are: what the vendors' tools print, site.yml, a full verification and the benchmark profile `quick`. A part
that fails does not end the others. Names and addresses of hosts, serial numbers and other identifiers are replaced in
all files. Exit status: 0 if all parts succeeded, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# {file: command}; a node has only the programs of its platform.
COMMANDS = {
    "nvidia-smi": "nvidia-smi -q -x",
    "nvidia-smi-gpus": "nvidia-smi --query-gpu=index,pci.bus_id,name,memory.total,compute_cap"
                       " --format=csv,noheader,nounits",
    "nvidia-smi-topology": "nvidia-smi topo -m",
    "nvidia-ctk": "nvidia-ctk --version",
    "neuron-ls": "PATH=$PATH:/opt/aws/neuron/bin neuron-ls",
    "neuron-ls-json": "PATH=$PATH:/opt/aws/neuron/bin neuron-ls --json-output",
    "neuron-packages": "command -v dpkg-query > /dev/null || exit 127; dpkg-query -W 'aws-neuronx*'",
    "npu-smi": "npu-smi info",
    "npu-smi-list": "npu-smi info -l",
    "npu-smi-mapping": "npu-smi info -m",
    "npu-driver": "[ -e /usr/local/Ascend/driver/version.info ] || exit 127; cat /usr/local/Ascend/driver/version.info",
    "cpu": "lscpu",
    "memory": "free --bytes",
    "pci": "lspci -nn",
    "system": "uname -srm; cat /etc/os-release",
    "containers": "docker version",
}  # fmt: skip
# (name of a part, playbook, variables)
PARTS = (
    ("tools", "tools/hardware_check.yml", {}),
    ("site", "site.yml", {}),
    ("verify", "playbooks/verify.yml", {"fleet_verify": "full"}),
    ("benchmark", "playbooks/benchmark.yml", {"benchmark_profile": "quick"}),
)
# Identifiers and their replacements, in this order.
IDENTIFIERS = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "UUID"),
    (re.compile(r"\bi-[0-9a-f]{8,17}\b"), "INSTANCE"),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE), "MAC"),
    (re.compile(r"(<(?:\w*serial\w*|board_id|pdi|gpu_fabric_guid)>)[^<]+"), r"\1SERIAL"),
    (re.compile(r"((?:serial|board id|pdi|fabric guid)[a-z ]*[:=] *)\S+", re.IGNORECASE), r"\1SERIAL"),
    # versions have smaller numbers in front
    (re.compile(r"(?<![\w.])(?!127\.0\.0\.1\b)[1-9]\d{1,2}(?:\.\d{1,3}){3}(?![\w.]*\d)"), "ADDRESS"),
)


def scrub(content, hosts):
    """Return the content without identifiers. hosts: {name or address: replacement}; longer names come first."""
    for name in sorted(hosts, key=len, reverse=True):
        content = re.sub(r"(?<![\w.-])%s(?![\w-])" % re.escape(name), hosts[name], content)
    for pattern, replacement in IDENTIFIERS:
        content = pattern.sub(replacement, content)
    return content


def scrub_folder(folder, hosts):
    """Scrub all files of a folder and their names, which can contain names of hosts. Other files are deleted."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            try:
                path.write_text(scrub(path.read_text(encoding="utf-8"), hosts), encoding="utf-8")
            except UnicodeDecodeError:
                path.unlink()
                continue
        name = scrub(path.name, hosts)
        if name != path.name:
            path.rename(path.with_name(name))


def hosts_of(inventory):
    """Return {name or address: replacement} of an inventory's hosts."""
    argv = [str(BIN / "ansible-inventory"), "--list", *(word for path in inventory for word in ("-i", path))]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    listed = json.loads(done.stdout)["_meta"]["hostvars"]
    found = {}
    for number, (name, variables) in enumerate(sorted(listed.items()), 1):
        known = {name, variables.get("ansible_host")} - {None, "localhost", "127.0.0.1"}
        found.update((word, "host-%d" % number) for word in known if isinstance(word, str))
    return found


def run(playbook, variables, arguments, log):
    """Run a playbook with its output in a file, and return its exit status."""
    argv = [str(BIN / "ansible-playbook"), str(ROOT / playbook), "-e", json.dumps(variables), *arguments]
    environment = {**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"}
    with open(log, "w", encoding="utf-8") as stream:
        return subprocess.run(
            argv,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


def check(folder, inventory, arguments, become=True):
    """Run all parts, and write their output, the reports and summary.json into a folder. Return {part: exit status}."""
    hosts = hosts_of(inventory)
    inventories = [word for path in inventory for word in ("-i", path)]
    shared = {"fleet_reports_dir": str(folder / "reports")}
    tools = {"check_commands": COMMANDS, "check_folder": str(folder / "hosts"), "check_become": become}
    summary = {"parts": {}, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    for name, playbook, variables in PARTS:
        began = time.monotonic()
        print("hardware check: %s …" % name, flush=True)
        variables = tools if name == "tools" else {**shared, **variables}
        status = run(playbook, variables, [*inventories, *arguments], folder / (name + ".log"))
        summary["parts"][name] = {"status": status, "seconds": round(time.monotonic() - began)}
        print("hardware check: %s %s" % (name, "succeeded" if status == 0 else "failed"), flush=True)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    scrub_folder(folder, hosts)
    return {name: part["status"] for name, part in summary["parts"].items()}


def main(words):
    """The program. Return its exit status."""
    parser = argparse.ArgumentParser(
        prog="hardware_check.py", allow_abbrev=False, description=__doc__.partition("\n")[0]
    )
    parser.add_argument("-i", "--inventory", action="append", required=True, help="inventory; several are allowed")
    parser.add_argument("--output", type=Path, help="folder for the results (default: hardware-check-DATE)")
    parser.add_argument("--no-become", action="store_true", help="run the vendors' tools without sudo")
    options, arguments = parser.parse_known_args(words)
    folder = (options.output or Path("hardware-check-" + time.strftime("%Y%m%d-%H%M%S"))).absolute()
    folder.mkdir(parents=True, mode=0o700)
    inventory = [str(Path(path).absolute()) if Path(path).exists() else path for path in options.inventory]
    statuses = check(folder, inventory, arguments, not options.no_become)
    archive = shutil.make_archive(str(folder), "gztar", folder.parent, folder.name)
    print("hardware check: results are in %s. Read them, then send %s." % (folder, archive))
    return int(any(statuses.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
