# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan says of servers on Ascend: devices, variables, image, format, and what the vendor's guide warns of."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.tests.unit.engines import plans


def planned(kind, layer=None, overlays=()):
    return plans.planned("ascend-" + kind, override=layer, overlays=overlays)


def entries(kind, layer=None, overlays=(), **site):
    return plans.entries_of("ascend-" + kind, override=layer, overlays=overlays, **site)


def refused(kind, layer, **more):
    found = plans.problem(entries, kind, layer, **more)
    return found.code, found.values


@pytest.mark.parametrize(
    ("kind", "overlays", "sizes"),
    [
        ("a2", (), [4, 4]), ("a3", (), [4] * 4), ("a2", ("tp8",), [8]),
        ("a2", ("gpt-oss-20b",), [1] * 8), ("a3", ("gpt-oss-20b",), [2] * 8), ("a3", ("guide", "huggingface"), [4] * 4),
    ],
)  # fmt: skip
def test_servers_share_no_chip_and_count_from_zero(kind, overlays, sizes):
    found = entries(kind, overlays=overlays)
    assert [len(one["devices"]) for one in found] == sizes
    given = [device for one in found for device in one["container"]["devices"] if device[-1].isdigit()]
    assert given == ["/dev/davinci%d" % number for number in range(sum(sizes))]
    for one in found:
        inside = ",".join(str(number) for number in range(len(one["devices"])))
        assert one["environment"]["ASCEND_RT_VISIBLE_DEVICES"] == inside
        assert one["arguments"]["tensor-parallel-size"] == str(len(one["devices"]))
        assert one["container"]["image"].endswith("-a3") is (kind == "a3")


def test_podman_gets_the_same_devices_and_driver():
    found = entries("a3", container_engine="podman")[1]["launch"]
    assert found[:2] == ["podman", "run"]
    driver = [word for word in entries("a3")[1]["launch"] if "/usr/local/" in word or "/dev/" in word]
    assert len(driver) == 12 and set(driver) <= set(found)
    shared = entries("a3", {"container": {"ipc": "host"}}, container_engine="podman")[0]["launch"]
    assert "--ipc=host" in shared and "--shm-size=1g" in found and "--shm-size=1g" not in shared  # podman refuses both
    code, values = refused("a3", None, overlays=("docker-runtime",), container_engine="podman")
    assert (code, values[0]) == (plans.VALUE, "server 'server-0': container.flags")


def test_a_server_on_the_a3_has_complete_npus():
    code, values = refused("a3", {"servers": {"server": {"devices": 1}}}, overlays=("gpt-oss-20b",))
    assert (code, values[0]) == (plans.VALUE, "server 'server-0': servers.server.devices")


@pytest.mark.parametrize(
    ("kind", "image", "fits"),
    [
        ("a2", "m.daocloud.io/quay.io/ascend/vllm-ascend:v0.23.0-a3-openeuler", False),
        ("a3", "quay.io/ascend/vllm-ascend:v0.20.2rc1-openeuler", False),
        ("a3", "quay.io/ascend/vllm-ascend:v0.20.2rc1-310p", False),
        ("a2", "quay.io/ascend/vllm-ascend:v0.23.0-openeuler", True),
        ("a3", "quay.io/ascend/vllm-ascend:v0.23.0-a3-openeuler", True),
        ("a3", "registry.example.com/own/engine:7", True),
    ],
)
def test_an_image_of_another_generation(kind, image, fits):
    layer = {"container": {"image": image}}
    if fits:
        assert entries(kind, layer)[0]["container"]["image"] == image
    else:
        code, values = refused(kind, layer)
        assert (code, values[0]) == (plans.VALUE, "server 'server-0': container.image")


def test_weights_that_no_npu_loads():
    code, values = refused("a2", {"model": {"format": "mxfp4", "repo": "openai/gpt-oss-120b"}})
    assert (code, values[0]) == (plans.VALUE, "server 'server-0': model.format")


def test_a_privileged_container_has_all_chips_and_a_variable_selects_its_own():
    container, name = {"flags": ["--privileged"]}, "ASCEND_RT_VISIBLE_DEVICES"
    found = entries("a2", {"container": container, "environment": {name: "${devices}"}})
    assert [one["environment"][name] for one in found] == ["0,1,2,3", "4,5,6,7"]
    for value in (None, "${container_devices}"):
        code, values = refused("a2", {"container": container, "environment": {name: value}})
        assert (code, values[-1]) == ("plan.visible-devices", "devices")
    assert plans.codes(entries, "a3", {"environment": {name: "${devices}"}}) == {"plan.visible-devices"}
    same = {"container": {"devices": ["/dev/davinci0"]}}
    assert plans.codes(entries, "a2", same) == {"plan.taken-twice"}


def test_the_vendor_s_runtime_brings_devices_and_driver():
    found = entries("a3", overlays=("docker-runtime",))
    assert [one["container"]["devices"] for one in found] == [[]] * 4
    assert not [mount for mount in found[0]["container"]["mounts"] if mount["source"].startswith(("/usr/", "/etc/"))]
    assert [one["environment"]["ASCEND_VISIBLE_DEVICES"] for one in found][1] == "4,5,6,7"
    settings = planned("a3", overlays=("docker-runtime",)).deployment["engine_settings"]
    assert list(settings) == ["runtimes"] and list(settings["runtimes"]) == ["ascend"]
    assert planned("a3").deployment["engine_settings"] == {}
    code, values = refused("a3", {"container": {"flags": ["--runtime=ascend"]}})
    assert (code, values[1]) == ("plan.visible-devices", "ASCEND_VISIBLE_DEVICES")


def test_a_process_is_told_its_chips():
    process = {"launcher": "process", "container": None, "environment": {"ASCEND_RT_VISIBLE_DEVICES": None}}
    assert [one["environment"]["ASCEND_RT_VISIBLE_DEVICES"] for one in entries("a2", process)] == ["0,1,2,3", "4,5,6,7"]


def notes(layer=None, overlays=()):
    return list(PLATFORMS["ascend"].notes(entries("a2", layer, overlays)[0]))


def test_what_the_guide_sets_and_nothing_reads():
    assert [one.split(":")[0] for one in notes(overlays=("guide",))] == [
        "environment.NPU_MEMORY_FRACTION has no effect", "environment.VLLM_USE_V1 has no effect",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpu-memory-utilization": 0.95}, "arguments.gpu-memory-utilization is 0.95; with expert parallelism"),
        ({"compilation-config": {"cudagraph_mode": "FULL"}}, "compilation-config.cudagraph_mode is FULL; vllm-"),
        ({"compilation-config": {"cudagraph_capture_sizes": [1, 2]}}, "cudagraph_capture_sizes ends at 2 and max-num-"),
        ({"compilation-config": {"cudagraph_capture_sizes": [8]}}, "the larger graphs are never used"),
        ({"cudagraph-capture-sizes": [1, 2]}, "cudagraph_capture_sizes ends at 2 and max-num-seqs is 4"),
    ],
)
def test_what_the_guide_warns_of(arguments, words):
    (note,) = notes({"arguments": arguments})
    assert words in note


@pytest.mark.parametrize(
    ("kind", "overlays", "at_once", "words"),
    [
        ("a2", (), 8, None),
        ("a2", (), 9, "but 8 run at a time; the others wait"),
        ("a3", ("data-parallel",), 16, None),
        ("a3", ("data-parallel",), 17, "but 16 run at a time; the others wait"),
    ],
)
def test_max_num_seqs_times_data_parallel_size_is_held_against_what_is_expected(kind, overlays, at_once, words):
    usual = planned(kind, None, overlays).capacity[0]["warnings"]
    found = planned(kind, {"benchmark": {"concurrency": at_once}}, overlays).capacity[0]["warnings"]
    assert found[: len(usual)] == usual
    added = found[len(usual) :]
    assert len(added) == (0 if words is None else 1)
    assert words is None or words in added[0]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        # Of 0.9 x 60.94 GiB the weights leave 434 MiB; a request of 4096 tokens takes 72 MiB.
        (22528, "one request of max-model-len 4096 needs 72 MiB of KV cache on each device, but 39 MiB are left"),
        (65536, "weights (54.4 GiB) and activations (about 1.1 GiB) leave no room for a KV cache in the 60.9 GiB"),
    ],
)
def test_more_batched_tokens_take_the_memory_of_the_cache(tokens, words):
    layer = {"arguments": {"max-num-batched-tokens": tokens}}
    item = planned("a2", layer).capacity[0]
    assert item["verdict"] == "warning"
    assert item["warnings"][0].startswith(words)
    with_room = planned("a2", layer, ("tp8",)).capacity[0]
    assert (with_room["verdict"], with_room["warnings"]) == ("ok", [])
