# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a test wants to know of a simulated node, as JSON.

{compiles, pids: {server: pid}, healthy: [servers], wrong: [servers that run another configuration than they are asked
for], held: {core: pid}, stray: [pids of the engine that no server owns]}
"""

from __future__ import annotations

import glob
import http.client
import json
import os
import sys
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import simulated_neuron  # noqa: E402 - found by the path above


def get(port, path):
    """(status, text), or (None, "") where nobody answers."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return None, ""


def simulated(port):
    """What the simulated engine says of itself, None where it is not healthy, or ends just now."""
    if get(port, "/health")[0] != 200:
        return None
    status, text = get(port, "/simulated")
    return json.loads(text) if status == 200 else None


def node_pid(inner, name):
    """The pid on the node of the process that has the pid `inner` in the container of the server `name`."""
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/environ", "rb") as stream:
                ours = b"INFERENCE_FLEET_SERVER=%s" % name.encode() in stream.read().split(b"\0")
            with open(folder + "/status", encoding="utf-8") as stream:
                pids = next((line.split()[1:] for line in stream if line.startswith("NSpid:")), ())
        except OSError:
            continue
        if ours and len(pids) > 1 and pids[-1] == str(inner):
            return int(pids[0])
    return None


def main():
    with open(simulated_neuron.COMPILES, encoding="utf-8") as stream:
        compiles = len(list(stream))
    pids, healthy, wrong, owned = {}, [], [], set()
    for path in sorted(glob.glob("/etc/inference-fleet/servers/*.json")):
        with open(path, encoding="utf-8") as stream:
            entry = json.load(stream)
        name = entry["name"]
        try:
            with open("/run/inference-fleet/servers/%s.json" % name, encoding="utf-8") as stream:
                pids[name] = json.load(stream)["pid"]
        except OSError:
            pids[name] = None
        facts = simulated(entry["port"])
        if facts is not None:
            healthy.append(name)
            if entry["launcher"] == "container":  # the guard's record is of the client
                owned.add(node_pid(facts["worker"], name))
                here = True
            else:
                owned.update((facts["pid"], facts["worker"]))
                here = facts["pid"] == pids[name]
            if facts["running"] != facts["asked"] or not here:
                wrong.append(name)
    held = simulated_neuron.holders()
    print(
        json.dumps(
            {
                "compiles": compiles,
                "pids": pids,
                "healthy": healthy,
                "wrong": wrong,
                "held": {str(core): pid for core, pid in held.items()},
                "stray": sorted(set(held.values()) - owned),
            }
        )
    )


if __name__ == "__main__":
    main()
