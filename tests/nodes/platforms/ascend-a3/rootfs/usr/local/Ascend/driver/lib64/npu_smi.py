# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated npu-smi: `info` and `info -m`, as recorded in /usr/local/dcmi and changed by what simulated.json beside
it says. Both are in the containers that have the driver's mounts.

    {"generation": "a3",            a2 or a3
     "held": {"5": [4711, "python3"]}}

Chips whose /dev/davinci is not there are not shown: pulled from the node, or not given to the container.
"""

import json
import os
import sys

RECORDED = "/usr/local/dcmi/%s"
STATE = "/usr/local/Ascend/driver/lib64/simulated.json"


def read(name):
    with open(RECORDED % name, encoding="utf-8") as stream:
        return stream.read()


def table(state):
    """`npu-smi info` without the chips that are not there."""
    kept, first, processes = [], None, False
    for line in read("info-%s-24.1.txt" % state["generation"]).splitlines():
        words = line.split("|")[1].split() if line.startswith("| ") else []
        processes = processes or "Process id" in line
        if processes:
            if "No running" not in line and words[:1] and words[0].isdigit():
                continue  # recorded processes are none of this node's
            kept.append(line)
            continue
        if first is None and len(words) == 2 and words[0].isdigit() and not words[1].isdigit():
            first = line
            continue
        if first is not None:
            number = int(words[1]) if len(words) == 2 else int(first.split("|")[1].split()[0])
            if os.path.exists("/dev/davinci%d" % number):
                kept += [first, line]
            first = None
            continue
        kept.append(line)
    for number, (pid, name) in state.get("held", {}).items():
        per = 1 if state["generation"] == "a2" else 2
        kept.append(
            "| %-7d %-17d | %-13d | %-24s | 1024                    |"
            % (int(number) // per, int(number) % per, pid, name)
        )
    return "\n".join(kept)


def main(arguments):
    with open(STATE, encoding="utf-8") as stream:
        state = json.load(stream)
    if arguments == ["info"]:
        print(table(state))
    elif arguments == ["info", "-m"]:
        print(read("map-%s.txt" % state["generation"]), end="")
    else:
        print("Error parameter of npu-smi")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
