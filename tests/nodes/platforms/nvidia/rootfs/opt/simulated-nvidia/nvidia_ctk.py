# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated nvidia-ctk: `cdi generate --output=FILE`, `cdi list --spec-dir=FOLDER`, `runtime configure`.

The description names what the simulated driver brings, under its version, as the real one does.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nvidia_smi

LIBRARIES = "/usr/lib/x86_64-linux-gnu/libcuda.so.*.*"
SHARED = ("/usr/bin/nvidia-smi", "/opt/simulated-nvidia", nvidia_smi.STATE, nvidia_smi.RECORDED)
DAEMON_JSON = "/etc/docker/daemon.json"


def nodes(paths):
    return {"deviceNodes": [{"path": path} for path in paths]}


def description():
    """CDI's description of the GPUs that answer; JSON is YAML too."""
    wanted = nvidia_smi.state()
    alive = [index for index, _gpu in nvidia_smi.gpus(wanted)[1] if index not in wanted.get("dead", ())]
    mounts = [{"hostPath": path, "containerPath": path, "options": ["ro", "nosuid", "nodev", "rbind"]}
              for path in (*sorted(glob.glob(LIBRARIES)), *SHARED)]  # fmt: skip
    devices = [{"name": str(index), "containerEdits": nodes(["/dev/nvidia%d" % index])} for index in alive]
    devices.append({"name": "all", "containerEdits": nodes(["/dev/nvidia%d" % index for index in alive])})
    common = {**nodes(["/dev/nvidiactl", "/dev/nvidia-uvm"]), "mounts": mounts}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": common}


def main(arguments):
    options = dict(one[2:].partition("=")[::2] for one in arguments if one.startswith("--"))
    if arguments[:2] == ["cdi", "generate"]:
        text = json.dumps(description(), indent=1) + "\n"
        with open(options["output"], "w", encoding="utf-8") as stream:
            stream.write(text)
    elif arguments[:2] == ["cdi", "list"]:
        for path in sorted(glob.glob(options.get("spec-dir", "/etc/cdi") + "/*.yaml")):
            with open(path, encoding="utf-8") as stream:
                for name in re.findall(r'"name": "(.*?)"', stream.read()):
                    print("nvidia.com/gpu=" + name)
    elif arguments[:2] == ["runtime", "configure"]:
        with open(DAEMON_JSON, "w", encoding="utf-8") as stream:  # a heterogeneous file does not survive
            json.dump({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}, stream, indent=4)
    else:
        print("No help topic for '%s'" % " ".join(arguments), file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
