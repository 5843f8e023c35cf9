# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.tests.unit.engines import plans


def recipe(launcher="container", **changes):
    return plans.written(launcher=launcher, **changes)


def entries(declared):
    return plans.entries_of(declared, {"accelerator": "h200", "count": 4})


def devices(container):
    declared = recipe(container={"image": "docker.io/vllm/vllm-openai:v0.32.0", **container})
    return [one["container"]["devices"] for one in entries(declared)]


def test_a_container_gets_its_own_gpus_by_cdi_and_no_others():
    own = [["nvidia.com/gpu=0", "nvidia.com/gpu=1"], ["nvidia.com/gpu=2", "nvidia.com/gpu=3"]]
    assert devices({}) == own
    assert devices({"devices": ["nvidia.com/gpu=${device}"]}) == own
    assert devices({"devices": ["/dev/infiniband"]}) == [["/dev/infiniband", *one] for one in own]
    assert "CUDA_VISIBLE_DEVICES" not in entries(recipe())[1]["environment"]
    assert plans.planned(recipe()).deployment["engine_settings"] == {"features": {"cdi": True}}


def test_who_names_gpus_another_way_gets_those_alone():
    paths = ["/dev/nvidia${device}", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert devices({"devices": paths})[1] == ["/dev/nvidia2", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert devices({"flags": ['--gpus="device=${devices}"'], "gpus_flag_allowed": True}) == [[], []]


def test_a_process_is_told_its_gpus():
    found = [one["environment"] for one in entries(recipe("process"))]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0,1", "2,3"]
    assert {one["CUDA_DEVICE_ORDER"] for one in found} == {"PCI_BUS_ID"}
    given = entries(recipe("process", environment={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}))[0]["environment"]
    assert given["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


@pytest.mark.parametrize("launcher", ["process", "container"])
def test_the_placeholder_counts_as_the_server_does(launcher):
    declared = recipe(launcher, environment={"CUDA_VISIBLE_DEVICES": "${container_devices}"})
    found = [one["environment"]["CUDA_VISIBLE_DEVICES"] for one in entries(declared)]
    assert found == (["0,1", "2,3"] if launcher == "process" else ["0,1", "0,1"])


EVERY = [({"image": "example.com/x:1", **keys}, more) for keys, more in [
    ({"devices": ["nvidia.com/gpu=all"]}, {}),
    ({"flags": ["--gpus=all"], "gpus_flag_allowed": True}, {}),
    ({"flags": ["--privileged"]}, {}),
    ({"flags": ["--runtime=nvidia"], "devices": ["/dev/nvidiactl"]}, {"NVIDIA_VISIBLE_DEVICES": "all"}),
]]  # fmt: skip


@pytest.mark.parametrize(("container", "more"), EVERY)
def test_a_container_of_all_gpus_says_which_are_its_own(container, more):
    given = {**more, "CUDA_VISIBLE_DEVICES": "${devices_first}"}
    found = entries(recipe(container=container, environment=given))
    assert [one["environment"]["CUDA_VISIBLE_DEVICES"] for one in found] == ["0,1,2,3", "2,3,0,1"]
    assert all("--env=CUDA_DEVICE_ORDER=PCI_BUS_ID" in one["launch"] for one in found)
    for value in (None, "0,1", "1,0,0,2", "0,1,2,4"):
        declared = recipe(container=container, environment={**more, "CUDA_VISIBLE_DEVICES": value})
        error = plans.problem(entries, declared)
        assert error.code == "plan.visible-devices" and "write ${devices}" in error.message
    one = [{"role": "server", "count": 1, "devices": 4, "port": 8000}]
    (alone,) = entries(recipe(container=container, servers=one, environment=more))
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} & set(alone["environment"])


OTHERS, TAKEN = "plan.visible-devices", "plan.taken-twice"


@pytest.mark.parametrize(("launcher", "container", "value", "code"), [
    ("process", None, "0,1,2,3", OTHERS), ("process", None, "", OTHERS),
    ("container", {}, "${devices}", OTHERS), ("container", {}, "GPU-0", OTHERS),
    ("container", {"devices": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}, None, TAKEN),
    ("container", {"devices": ["/dev/nvidia0", "/dev/nvidiactl"]}, None, TAKEN),
    ("container", {"flags": ["--gpus=device=0"], "gpus_flag_allowed": True}, None, TAKEN),
    ("container", {"flags": ["--gpus=2"], "gpus_flag_allowed": True}, "${devices}", plans.VALUE),
])  # fmt: skip
def test_other_gpus_than_its_own_are_refused(launcher, container, value, code):
    given = None if container is None else {"image": "example.com/x:1", **container}
    declared = recipe(launcher, container=given, environment={} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    assert plans.codes(entries, declared) == {code}
