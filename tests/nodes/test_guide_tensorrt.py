# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guides for TensorRT-LLM on a node with eight simulated GPUs: each of their configurations is started.

Molecule's scenario `trtllm` deploys and changes two servers; here each case is one server with the guide's number of
GPUs.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE, wait_for

REGISTRY = "127.0.0.1:5000/tensorrt-llm/release:"
CURRENT, QUICKSTART, GUIDE = "1.2.1", "1.0.0rc6", "gpt-oss-dev"
DRAFT = "/mnt/models/gpt-oss-120b-Eagle3-v2"
WORK = "/var/lib/inference-fleet/servers/server-0/work/"
CALLS = "journalctl --identifier=sudo --output=cat --no-pager | grep --count 'BECOME-SUCCES[S]' || true"
LOW, HIGH = "blackwell-quickstart-low-latency", "blackwell-quickstart-max-throughput"
# (recipe, overlays, GPUs, release, what the engine runs with)
STARTED = [
    *(("b200-low-latency", (), gpus, CURRENT,
       {"cuda_graph_config.max_batch_size": 8, "moe_config.backend": "TRTLLM", "enable_attention_dp": False})
      for gpus in (1, 4, 8)),
    *(("b200-max-throughput", (), gpus, CURRENT,
       {"cuda_graph_config.max_batch_size": 640, "moe_config.backend": "TRTLLM", "enable_attention_dp": True})
      for gpus in (1, 4, 8)),
    ("b200-low-latency", ("guide",), 8, GUIDE, {"enable_mixed_sampler": True, "moe_config.backend": "TRTLLM"}),
    ("b200-max-throughput", ("guide",), 8, GUIDE, {"stream_interval": 10, "moe_config.backend": "CUTLASS"}),
    (LOW, (), 8, QUICKSTART, {"cuda_graph_config.max_batch_size": 720, "moe_config.backend": "TRTLLM"}),
    (HIGH, (), 8, QUICKSTART, {"attention_dp_config.timeout_iters": 1, "moe_config.backend": "CUTLASS"}),
    *((LOW, ("current", "accuracy-tp%d%s" % (gpus, effort)), gpus, CURRENT,
       {"cuda_graph_config.max_batch_size": batch, "enable_attention_dp": False})
      for gpus in (8, 4) for effort, batch in (("", 1024), ("-high", 720))),
    *((HIGH, ("current", "accuracy-dep%d%s" % (gpus, effort)), gpus, CURRENT,
       {"cuda_graph_config.max_batch_size": batch, "enable_attention_dp": True})
      for gpus in (8, 4) for effort, batch in (("", 128), ("-high", 2))),
]  # fmt: skip
ON_H200 = [
    (recipe, (), gpus, CURRENT, {"cuda_graph_config.max_batch_size": batch, "moe_config.backend": "TRITON"})
    for recipe, batch in (("h200-low-latency", 8), ("h200-max-throughput", 640)) for gpus in (1, 4, 8)
]  # fmt: skip
POINTS = [1, 2, 4]
SWEEP = {"tool": "trtllm-bench", "input_tokens": 64, "output_tokens": 32, "concurrency": POINTS,
         "requests_per_user": 5, "endpoint": "/v1/completions", "up_to_full": False,
         "arguments": ["--random-ids", "--tokenize-on-client"]}  # fmt: skip


class Gpus:
    """A node with eight GPUs, and site.yml for a recipe on it."""

    def __init__(self, guide_node):
        self.guide_node, self.node, self.accelerator = guide_node, guide_node.node, "b200"
        guide_node.play("molecule/trtllm/prepare.yml", prepare_releases=[CURRENT, QUICKSTART, GUIDE]).ok()

    def deployment(self, recipe, overlays=(), gpus=8, release=CURRENT, **override):
        """The variables of one server with so many GPUs."""
        model = {"source": "standin", "path": "/mnt/models/gpt-oss-120b"}
        if "eagle3" in overlays:
            model["draft"] = {"path": DRAFT}
        return {
            "fleet_recipe": recipe,
            "fleet_overlay": list(overlays),
            "fleet_hardware": {"accelerator": self.accelerator, "count": 8},
            "fleet_verify": "quick",  # the scenario has the full verification
            "fleet_override": {
                "servers": {"server": {"devices": gpus, "count": 1}},
                # a test node cannot raise the limit of locked memory
                "container": {"image": REGISTRY + release, "ulimits": {"memlock": None}},
                "model": model,
                "start": {"budget_s": 120, "poll_s": 1},
                **override,
            },
        }

    def site(self, *given, **override):
        return self.guide_node.play("site.yml", **self.deployment(*given, **override))

    def doctor(self):
        """Run doctor.yml with the variables of the server that runs."""
        return self.guide_node.play("playbooks/doctor.yml", **self.deployment("b200-low-latency"))

    @property
    def findings(self):
        """What doctor.yml found on the node."""
        report = json.loads((self.guide_node.reports / "doctor.json").read_text())
        return report["hosts"][self.node.name]["findings"]

    def simulate(self, **state):
        """Change what nvidia-smi prints, as if the node were another."""
        self.node.ssh("echo '%s' > /etc/simulated-nvidia.json" % json.dumps(state))

    def effective(self):
        """What the engine runs with, and the GPUs that its container has."""
        listed = self.node.ssh("docker exec inference-fleet-server-0 nvidia-smi -L").splitlines()
        return self.guide_node.address("/simulated"), listed

    def calls(self):
        return int(self.node.ssh(CALLS))

    def bench_calls(self):
        """The words of the file with the calls of benchmark_serving: its process and concurrency for each."""
        return self.node.ssh("cat %sbench-calls || true" % WORK).split()


def value_at(settings, path):
    for name in path.split("."):
        settings = settings[name]
    return settings


@pytest.fixture(scope="module")
def gpus(make_guide_node):
    return Gpus(
        make_guide_node(
            "nvidia",
            nvidia_repositories={
                "apt": {"url": "file:///opt/shared/nvidia/apt"},
                "key": {"file": "/opt/shared/nvidia/key.asc"},
            },
        )
    )


def check_started(gpus, recipe, overlays, count, release, settings):
    """Deploy, verify that the engine has the guide's settings and GPUs, and that a second run is one call."""
    given = (recipe, overlays, count, release)
    gpus.site(*given).ok()
    found, listed = gpus.effective()
    assert (found["version"], found["gpus"], len(listed)) == (release, count, count)
    assert found["settings"]["tensor_parallel_size"] == found["settings"]["moe_expert_parallel_size"] == count
    assert {path: value_at(found["settings"], path) for path in settings} == settings
    before = gpus.calls()
    run = gpus.site(*given).ok()
    assert (run.count("changed"), gpus.calls() - before) == (0, 1)


# with `make test`: each goal, guide and H200 once
SHORT = ("b200-low-latency-1", "b200-max-throughput-8", HIGH + "-8", "h200-low-latency-8")


def started(cases):
    """Cases as parameters; those that are not in SHORT run with `make soak`."""
    for recipe, overlays, count, *rest in cases:
        name = "-".join([recipe, *overlays, str(count)])
        marks = [] if name in SHORT else [pytest.mark.soak]
        yield pytest.param(recipe, overlays, count, *rest, id=name, marks=marks)


@pytest.mark.parametrize(("recipe", "overlays", "count", "release", "settings"), list(started(STARTED)))
def test_each_configuration_of_the_guides_starts(gpus, recipe, overlays, count, release, settings):
    check_started(gpus, recipe, overlays, count, release, settings)


def test_the_length_of_drafts(gpus):
    """The draft is a copy of the stand-in checkpoint."""
    gpus.site("b200-low-latency").ok()
    gpus.node.ssh("cp -r /mnt/models/gpt-oss-120b %s" % DRAFT)
    settings = {"speculative_config.max_draft_len": 3, "speculative_config.decoding_type": "Eagle"}
    check_started(gpus, "b200-low-latency", ("eagle3",), 8, CURRENT, settings)
    assert gpus.effective()[0]["settings"]["speculative_config"]["speculative_model_dir"] == DRAFT


def test_a_sweep_goes_on_after_a_kill(gpus):
    """The run of benchmark.yml is ended in its second point, and the tool is killed."""
    node = gpus.guide_node
    variables = gpus.deployment("b200-low-latency", benchmark={"profiles": {"guide": SWEEP}})
    node.play("site.yml", **variables).ok()
    variables.update(benchmark_poll_s=1)
    gpus.node.ssh("echo 2 > %sbench-hold" % WORK)
    argv = [BIN / "ansible-playbook", "playbooks/benchmark.yml", "-i", node.inventory]
    argv += ["-e", json.dumps({**node.variables, **variables})]
    with subprocess.Popen(argv, cwd=CLONE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as running:
        try:
            wait_for(lambda: len(gpus.bench_calls()) == 4, 120, "the second point")
        finally:
            running.terminate()
    kill = "docker exec inference-fleet-server-0 python3 -c 'import os; os.kill(%s, 9)'"
    gpus.node.ssh(kill % gpus.bench_calls()[2])
    gpus.node.ssh("rm %sbench-hold" % WORK)
    assert [one["workload"]["concurrency"] for one in node.results if one["ok"]] == POINTS[:1]

    run = node.play("playbooks/benchmark.yml", **variables).ok()
    found = [one for one in node.results if one["ok"]]
    assert [one["workload"]["concurrency"] for one in found] == POINTS, run.output
    assert [one["counts"]["completed"] for one in found] == [5 * users for users in POINTS]
    assert gpus.bench_calls()[1::2] == ["1", "2", "2", "4"]


def test_doctor_on_a_healthy_and_on_a_broken_node(gpus):
    """A server is stopped, and the driver has lost a GPU."""
    gpus.site("b200-low-latency").ok()
    gpus.doctor().ok()
    not_possible = {"hardware", "kernel", "logs"}  # a simulated node has neither a PCI bus nor a kernel of its own
    assert {one["check"] for one in gpus.findings if one["ok"] is None} <= not_possible
    gpus.node.ssh("systemctl stop inference-fleet-server-0")
    gpus.simulate(node="b200-8", dead=[3])
    assert gpus.doctor().status == 2
    wrong = {(one["check"].partition(":")[0], one["code"]) for one in gpus.findings if one["ok"] is False}
    assert {("node_preflight", "preflight.problems"), ("servers", "doctor.server-differs")} <= wrong
    gpus.simulate(node="b200-8")


@pytest.mark.parametrize(("recipe", "overlays", "count", "release", "settings"), list(started(ON_H200)))
def test_h200_uses_triton(gpus, recipe, overlays, count, release, settings):
    gpus.simulate(node="h200-8")
    gpus.accelerator = "h200"
    check_started(gpus, recipe, overlays, count, release, settings)


def test_kernels_that_the_gpus_do_not_have_are_refused(gpus):
    """By the plan where the hardware is declared, by the node where the declaration is wrong."""
    gpus.simulate(node="h200-8")
    gpus.accelerator = "h200"
    gpus.site("h200-low-latency").ok()
    before = gpus.effective()[0]
    run = gpus.site("h200-low-latency", config={"content": {"moe_config": {"backend": "TRTLLM"}}})
    run.failed("TRITON on h200 (compute capability 9.0)")
    gpus.site("b200-low-latency").failed("b200, b300")
    gpus.accelerator = "b200"
    gpus.site("b200-low-latency").failed("H200")
    assert gpus.effective()[0] == before
    gpus.simulate(node="b200-8")
    gpus.accelerator = "h200"
    gpus.site("h200-low-latency").failed("B200")
