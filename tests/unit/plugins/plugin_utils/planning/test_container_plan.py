# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers in the plan: what a recipe's container becomes, and that its command line says nothing else."""

from __future__ import annotations

import csv
import io

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.plans import VALUE

DIGEST = "sha256:" + "1" * 64
IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc6"
BASE = "/var/lib/inference-fleet/servers/server-0"
H200 = {"accelerator": "h200", "count": 8}
# The guides' docker run lines, as a recipe says them.
GUIDE_001 = {
    "image": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.0.0",
    "devices": ["nvidia.com/gpu=${device}"],
    "network": "host",
    "mounts": [{"source": "${models}", "target": "/model"}],
    "shm_size": "10G",
    "ulimits": {"memlock": -1, "stack": 67108864, "nofile": "65536:65536"},
    "ipc": "host",
    "flags": ["--cap-add=CAP_SYS_PTRACE"],
}


def recipe(container=None, **changes):
    made = {
        "engine": "trtllm", "container": {"image": IMAGE} if container is None else container,
        "command": ["trtllm-serve", "${model}"],
        "servers": [{"role": "server", "count": 1, "devices": 8, "port": 8000}],
    }  # fmt: skip
    return plans.written(**{**made, **changes})


def entries(declared, hardware=None, **site):
    return plans.entries_of(declared, hardware or H200, **site)


def mount(source, target=None, read_only=False):
    return {"source": source, "target": target or source, "read_only": read_only}


def test_the_whole_run_command():
    (entry,) = entries(recipe({**GUIDE_001, "digest": DIGEST}, environment={"TRTLLM_ENABLE_PDL": 1},
                              secrets={"HF_TOKEN": "fleet_hf_token"}))  # fmt: skip
    folders = [mount(BASE + "/" + kind) for kind in ("work", "compile", "artifact", "cache")]
    model = mount("/var/lib/inference-fleet/models/gpt-oss-120b", read_only=True)
    assert entry["container"] == {
        "engine": "docker",
        "address": None,
        "image": GUIDE_001["image"],
        "digest": DIGEST,
        "mounts": [mount("/var/lib/inference-fleet/models", "/model"), model, *folders],
        "devices": ["nvidia.com/gpu=%d" % number for number in range(8)],
        "flags": ["--network=host", "--ipc=host", "--shm-size=10G", "--ulimit=memlock=-1", "--ulimit=stack=67108864",
                  "--ulimit=nofile=65536:65536", "--cap-add=CAP_SYS_PTRACE"],
        "workdir": BASE + "/work",
        "entrypoint": None,
        "user": None,
    }  # fmt: skip
    assert entry["user"] is None  # the engine's client needs root; the image says who runs inside
    assert entry["command"] == ["trtllm-serve", model["source"]]
    assert entry["launch"] == [
        "docker", "run", "--rm", "--init", "--pull=never", "--log-driver=none", "--stop-timeout=15",
        "--name=inference-fleet-server-0", "--label=inference.fleet.server=server-0", "--label=inference.fleet.root=/",
        *entry["container"]["flags"], "--workdir=" + BASE + "/work",
        "--mount=type=bind,source=/var/lib/inference-fleet/models,target=/model",
        "--mount=type=bind,source=%s,target=%s,readonly" % (model["source"], model["source"]),
        *("--mount=type=bind,source=%s,target=%s" % (one["source"], one["source"]) for one in folders),
        *("--device=nvidia.com/gpu=%d" % number for number in range(8)),
        "--env=SPT_NOENV=1", "--env=TRTLLM_ENABLE_PDL=1", "--env=INFERENCE_FLEET_SERVER=server-0",
        "--env=INFERENCE_FLEET_ROOT=/", "--env=HF_TOKEN",
        "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime@" + DIGEST, "trtllm-serve", model["source"],
    ]  # fmt: skip


def test_only_what_is_named_is_mounted_for_reading():
    config = {"format": "yaml", "content": {"a": "${encodings}/o200k_base.tiktoken"}}
    declared = recipe(command=["serve", "${model}-other"], config=config)
    (entry,) = entries(declared)
    reads = [one["source"] for one in entry["container"]["mounts"] if one["read_only"]]
    assert reads == ["/var/lib/inference-fleet/encodings"]
    (entry,) = entries(recipe(command=["serve", "--config=${config}"], config=config))
    reads = [one["source"] for one in entry["container"]["mounts"] if one["read_only"]]
    assert reads == ["/etc/inference-fleet/config/server-0.yml", "/var/lib/inference-fleet/encodings"]


def test_a_declared_mount_stands_before_the_automatic_one():
    (entry,) = entries(recipe({"image": IMAGE, "mounts": [{"source": "/fast/model", "target": "${model}/"}]}))
    targets = [one["target"].rstrip("/") for one in entry["container"]["mounts"]]
    assert len(targets) == len(set(targets))
    assert entry["container"]["mounts"][0]["source"] == "/fast/model"


@pytest.mark.parametrize(("container", "site", "begin"), [
    ({}, {}, ["docker", "run"]),
    ({"engine": "auto"}, {"container_engine": "podman"}, ["podman", "run"]),
    ({"engine": "docker"}, {"container_engine": "podman"}, ["docker", "run"]),
    ({"address": "unix:///s"}, {}, ["docker", "--host", "unix:///s", "run"]),
    ({"engine": "podman", "address": "unix:///s"}, {}, ["podman", "--url", "unix:///s", "run"]),
])  # fmt: skip
def test_engine_by_recipe_and_by_site(container, site, begin):
    (entry,) = entries(recipe({**container, "image": IMAGE}), **site)
    assert entry["launch"][: len(begin)] == begin and entry["container"]["engine"] == begin[0]
    assert ({"--security-opt=label=disable", "--pids-limit=-1"} < {*entry["launch"]}) is (begin[0] == "podman")


@pytest.mark.parametrize(
    ("ipc", "sized"),
    [(None, True), ("private", True), ("shareable", True), ("host", False), ("none", False), ("container:x", False)],
)
def test_podman_gets_the_size_of_a_container_s_own_shared_memory_alone(ipc, sized):
    container = {"image": IMAGE, "engine": "podman", "ipc": ipc, "shm_size": "1g", "flags": ["--pids-limit=9"]}
    (entry,) = entries(recipe({name: value for name, value in container.items() if value}))
    assert ("--shm-size=1g" in entry["launch"]) is sized
    assert [word for word in entry["launch"] if word.startswith("--pids-limit")] == ["--pids-limit=9"]


def test_a_site_may_require_digests():
    assert plans.codes(entries, recipe(), require_digests=True) == {VALUE}
    assert entries(recipe({"image": IMAGE, "digest": DIGEST}), require_digests=True)


def test_a_network_of_its_own_publishes_the_ports_of_all_ranks_where_the_site_wants_them():
    ports = {"metrics": 9000, "side_channel": 5600}
    servers = [{"role": "server", "count": 1, "devices": 2, "port": 8000, "ports": ports}]
    declared = recipe({"image": IMAGE, "network": "bridge"}, engine="vllm", command=["vllm", "serve", "${model}"],
                      servers=servers, arguments={"host": "${bind}", "data-parallel-size": 2})  # fmt: skip
    (entry,) = entries(declared, bind="10.0.0.5")
    assert entry["bind"] == "10.0.0.5"
    assert entry["command"][3:5] == ["--host", "0.0.0.0"]
    assert entry["container"]["flags"] == [
        "--network=bridge", *("--publish=10.0.0.5:%d:%d" % (port, port) for port in (8000, 9000, 5600, 5601)),
    ]  # fmt: skip
    (entry,) = entries(declared, bind="::1")
    assert "--publish=[::1]:8000:8000" in entry["launch"]


def test_a_group_and_a_server_may_differ():
    servers = [{"name": "front", "role": "frontend", "count": 1, "devices": 0, "port": 8000,
                "container": {"ulimits": {"nofile": "9:9", "memlock": None}, "image": "other:1"}},
               {"name": "work", "role": "decode", "count": 2, "devices": 4}]  # fmt: skip
    declared = recipe(GUIDE_001, servers=servers, instances={"work-1": {"container": {"shm_size": "1g"}}})
    declared = overrides.apply(declared, {"container": {"ipc": None, "ulimits": {"stack": None}}})
    front, first, second = entries(declared)
    assert [one["container"]["image"] for one in (front, first)] == ["other:1", GUIDE_001["image"]]
    assert "--ulimit=nofile=9:9" in front["launch"]
    for entry in (front, first, second):
        assert "--ipc=host" not in entry["launch"]
        assert not [word for word in entry["launch"] if "stack" in word]
    assert front["container"]["devices"] == []
    assert "--shm-size=10G" in first["launch"] and "--shm-size=1g" in second["launch"]


def test_cpus_are_the_containers():
    near = {"0-3": "0-47,96-143", "4-7": "48-95,144-191"}
    servers = [{"role": "server", "count": 2, "devices": 4, "port": 8000}]
    two = entries(recipe(servers=servers), dict(H200, cpu_affinity=near))
    assert [one["cpus"] for one in two] == list(near.values())
    assert "--cpuset-cpus=48-95,144-191" in two[1]["launch"]
    own = recipe(servers=[dict(servers[0], cpus="3,1-2")], instances={"server-1": {"cpus": "7"}})
    assert [one["cpus"] for one in entries(own, dict(H200, cpu_affinity=near))] == ["1-3", "7"]
    assert [one["cpus"] for one in entries(recipe(servers=servers))] == [None, None]


@pytest.mark.parametrize("near", ["0-3", {"0-3": "0-"}, {"0-7": "0", "3": "1"}, {"0-3": "0"}])
def test_invalid_affinity(near):
    assert plans.codes(entries, recipe(), dict(H200, cpu_affinity=near)) == {VALUE}


# (container, other keys of the recipe, code)
BAD = [(container, changes[0] if changes else {}, code) for container, *changes, code in [
    *[({"flags": [flag]}, VALUE) for flag in (
        "--env-file=/x", "--gpus=all", "--label=inference.fleet.hash=x", "--publsh=8000:8000", "--memory",
    )],
    ({"image": "registry.example:5000/vllm/vllm-openai"}, VALUE),
    *[({"mounts": [{"source": "/srv/x", "target": target}]}, VALUE) for target in ("/.", "/etc/", "/proc/sys")],
    *[({"mounts": [{"source": source, "target": "/srv/x"}]}, VALUE) for source in (
        "/", "/root/.ssh", "/var/run/docker.sock", "/var/lib/docker/volumes/x",
    )],
    ({"mounts": [{"source": "/a", "target": "/x"}, {"source": "/b", "target": "/x/"}]}, VALUE),
    ({"ulimits": {"memlok": -1}}, "input.key-unknown"),
    *[({"ulimits": {"nofile": value}}, VALUE) for value in ("200:100", "-1:100")],
    ({"mounts": [{"source": "${recipe}/x", "target": "/x"}]}, VALUE),
    ({"image": None}, VALUE),
    ({}, {"command": ["serve", "\ud800"]}, VALUE),
    # secrets that would configure the client
    ({}, {"secrets": {"DOCKER_HOST": "fleet_x"}}, VALUE),
]]  # fmt: skip


@pytest.mark.parametrize(("container", "changes", "code"), BAD, ids=[str(one[:2])[:70] for one in BAD])
def test_values_that_defeat_the_plan_or_that_no_engine_takes(container, changes, code):
    assert plans.problem(entries, recipe({"image": IMAGE, **container}, valid=False, **changes)).code == code


@pytest.mark.parametrize(
    "container",
    [
        {"flags": ["--cap-add=SYS_PTRACE", "--memory=64g", "--privileged", "--security-opt=seccomp=unconfined",
                   "--label=team=x", "--add-host=a:10.0.0.1", "--hostname=x", "--runtime=nvidia", "--pids-limit=-1"]},
        {"flags": ["--gpus=all"], "gpus_flag_allowed": True},
        {"image": "registry.example:5000/vllm:1"},
        {"image": "vllm/vllm-openai", "digest": DIGEST},
        {"mounts": [{"source": "/mnt/models", "target": "/models"}, {"source": "/opt/x"}, {"source": "/etc/hosts"},
                    {"source": "/usr/local/dcmi"}, {"source": "/dev/shm"},
                    {"source": "/srv/c", "target": "/root/.cache"}]},
        {"ipc": "container:other"},
        {"ulimits": {"memlock": "-1:-1", "nofile": "1024:65536", "stack": 67108864, "core": "0:-1"}},
        {"devices": ["nvidia.com/gpu=${device}", "/dev/kvm", "/dev/x:/dev/y:rw", "huawei.com/npu=0"]},
    ],
)  # fmt: skip
def test_values_that_are_fine(container):
    assert entries(recipe({"image": IMAGE, **container}))


def test_every_word_stays_what_it_is():
    """Between `run` and the image only options in one word each; after it the command; strings nowhere cut or split."""
    paths, command = ["/m,x", '/m"y" z', "/m\u00e9=,"], ["serve", "--a b", "", "$HOME", "'\"\n"]
    environment = {"A": 'a=b "c"', "B": "\n$X\t", "C": ""}
    mounts = [{"source": path} for path in paths]
    (entry,) = entries(recipe({"image": IMAGE, "mounts": mounts}, command=command, environment=environment))
    launch, own = entry["launch"], len(command)
    assert launch[-own:] == command == entry["command"] and launch[-own - 1] == IMAGE
    options = launch[2 : -own - 1]
    assert [word for word in options if not word.startswith("--") or "=" not in word] == ["--rm", "--init"]
    assert {"--env=%s=%s" % one for one in environment.items()} <= set(options)
    read = [next(csv.reader(io.StringIO(word[8:]))) for word in options if word.startswith("--mount=")]
    assert [fields[1:3] for fields in read[: len(paths)]] == [["source=" + path, "target=" + path] for path in paths]


@pytest.mark.parametrize(
    ("image", "parts", "pinned"),
    [
        ("redis", ("", "redis", ""), "redis@d"),
        ("team/app:1", ("", "team/app", "1"), "team/app@d"),
        ("localhost/app", ("localhost", "app", ""), "localhost/app@d"),
        ("host:5000/a/b:t", ("host:5000", "a/b", "t"), "host:5000/a/b@d"),
        ("nvcr.io/a/b@sha256:1", ("nvcr.io", "a/b", ""), "nvcr.io/a/b@d"),
    ],
)
def test_references(image, parts, pinned):
    assert container_engine.split_reference(image) == parts
    assert container_engine.pinned_reference(image, "d") == pinned


def test_every_flag_of_ours_is_refused_in_flags():
    (entry,) = entries(recipe())
    made = {word.partition("=")[0] for word in entry["launch"] if word.startswith("--")} - {"--label"}
    assert made <= set(container_launch.OWN_FLAGS)
