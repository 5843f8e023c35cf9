# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the playbooks on many nodes at once, in seconds and in remote calls per node.

    .venv/bin/python tools/fleet.py [NODES] [--rounds N]

Every node gets a complete site.yml (toolkit, environment, encodings, stand-in checkpoint, two servers, verdict), with a
scripted engine instead of vLLM. The first run starts with bare nodes, the second has nothing to do, and status.yml
follows; further rounds repeat the last two. The nodes count the calls: each call is a line of sudo in their journals.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import nodes
import run

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "fleet"
ENGINE = [ROOT / "tests" / "nodes" / "engine.py", ROOT / "tests" / "unit" / "engines" / "scripted_engine.py"]
VARIABLES = {
    "fleet_recipe": "cpu-tiny",
    "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
    "fleet_override": {
        "venv": {"path": nodes.SHARED + "/venv", "create": False},
        "command": ["/usr/bin/python3", "/opt/engine/engine.py"],
        "arguments": {"model": "${model_id}"},
        "needs": {"host_memory_gib": 0.1, "disk_gib": 0.2},
    },
    "toolkit_find_links": [nodes.SHARED + "/wheels"],
    "toolkit_environment": {"PIP_NO_INDEX": "1"},
    "fleet_reports_dir": str(FOLDER / "reports"),
}


def make(names, variables=None, shares=("venv", "wheels"), folder=FOLDER):
    """Return ([Node] with the engine on each, the path of an inventory in `folder` in which all have these
    variables)."""
    made = nodes.create(names, "cpu", list(shares))
    for node in made:
        node.ssh("mkdir -p /opt/engine")
        for path in ENGINE:
            node.copy(path, "/opt/engine/")
    inventory = nodes.inventory()
    wanted = {node.name for node in made}
    inventory["all"]["hosts"] = {n: v for n, v in inventory["all"]["hosts"].items() if n in wanted}
    inventory["all"]["vars"] = VARIABLES if variables is None else variables
    inventory["all"]["children"] = {"cpu": {"hosts": dict.fromkeys(wanted)}, "vllm": {"hosts": dict.fromkeys(wanted)}}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "inventory.json"
    path.write_text(json.dumps(inventory))
    return made, path


def calls(made):
    """Return the number of commands that Ansible has run as root on all nodes."""
    count = "journalctl --identifier=sudo --output=cat --no-pager | grep --count 'BECOME-SUCCES[S]' || true"
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        return sum(int(one) for one in pool.map(lambda node: node.ssh(count), made))


def processor_seconds():
    """Return the seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def play(playbook, inventory, made):
    """Return {seconds, calls (per node), changed}. Raises SystemExit with the output if the playbook fails."""
    before, began = calls(made), time.monotonic()
    done = subprocess.run(
        [str(ROOT / ".venv" / "bin" / "ansible-playbook"), playbook, "-i", str(inventory)],
        cwd=ROOT, env=run.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(done.stdout + "\nfleet: %s failed, exit status %d." % (playbook, done.returncode))
    changed = sum(int(number) for number in re.findall(r"\bchanged=(\d+)", done.stdout))
    return {"seconds": seconds, "calls": (calls(made) - before) / len(made), "changed": changed}


def main(arguments):
    parser = argparse.ArgumentParser(prog="fleet.py", description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="?", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1, help="how often the runs without a change are repeated")
    options = parser.parse_args(arguments)
    names = ["fleet-%d" % index for index in range(options.nodes)]
    try:
        began = time.monotonic()
        made, inventory = make(names)
        print("fleet: %d nodes in %.1f s" % (len(made), time.monotonic() - began), flush=True)
        steps = [("site.yml", "bare nodes")]
        steps += [("site.yml", "nothing to do"), ("playbooks/status.yml", "")] * options.rounds
        broken = []
        for playbook, what in steps:
            cost = play(playbook, inventory, made)
            print("fleet: %-22s %-14s %6.1f s  %5.1f remote calls per node  changed=%d"
                  % (playbook, what, cost["seconds"], cost["calls"], cost["changed"]), flush=True)  # fmt: skip
            if what != "bare nodes" and cost["changed"]:
                broken.append(playbook)
        if broken:
            print("fleet: %s changed something where there was nothing to do" % ", ".join(broken), file=sys.stderr)
        return int(bool(broken))
    finally:
        nodes.destroy(names)


if __name__ == "__main__":
    sys.exit(nodes.status_of(main, sys.argv[1:]))
