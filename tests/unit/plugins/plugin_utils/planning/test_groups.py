# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What groups, instances and hosts may have differently: devices, ports, start, health, secrets, model, images."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load
from ansible_collections.inference.fleet.tests.unit.engines import plans

H200 = {"accelerator": "h200", "count": 8}
WORK = {"role": "server", "count": "auto", "devices": 2, "port": 8000}


def recipe(servers=None, **changes):
    made = {
        "launcher": "process", "needs": {"accelerators": ["h200"]},
        "model": {"repo": "openai/gpt-oss-20b", "format": "mxfp4", "source": "huggingface", "id": "gpt-oss-20b",
                  "path": "${models}/gpt-oss-20b"},
        "venv": {"path": "/opt/vllm", "create": False}, "command": ["${venv}/bin/vllm", "serve", "${model}"],
        "servers": [WORK] if servers is None else servers,
    }  # fmt: skip
    return plans.written(**{**made, **changes})


def planned(declared, hardware=None, **more):
    return plans.entries_of(declared, hardware or H200, **more)


def code(*args, **more):
    found = plans.error(planned, *args, **more)
    return found.code, found.values


def devices(entries):
    return {entry["name"]: entry["devices"] for entry in entries}


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_dead_device_costs_its_server_and_no_other():
    every = planned(recipe())
    left = planned(recipe(), {**H200, "exclude": [3]})
    assert devices(left) == {"server-0": [0, 1], "server-2": [4, 5], "server-3": [6, 7]}
    assert left == [entry for entry in every if entry["name"] != "server-1"]


def test_a_dead_chip_takes_all_its_cores():
    left = planned("trn3-eagle3", {**plans.TRN3, "exclude": [0, 5]})
    assert [entry["name"] for entry in left] == ["server-1", "server-3", "server-4", "server-5", "server-6", "server-7"]
    assert [entry["start"]["after"] for entry in left] == [[]] + [["server-1"]] * 5  # the first that there is


OWN = {"server-1": {"device_list": [6, 7]}}
DECODE = {**WORK, "name": "decode", "role": "decode"}
PREFILL = {**WORK, "name": "prefill", "role": "prefill", "port": 9000, "count": 2, "device_list": [0, 7, 1, 6]}


@pytest.mark.parametrize(
    ("servers", "instances", "exclude", "expected"),
    [
        # server-2 would have been given the dead one
        ([{**WORK, "count": 3}], OWN, [3], {"server-0": [0, 1], "server-1": [6, 7]}),
        ([{**WORK, "count": 3}], {**OWN, "server-2": {"device_list": [4, 5]}}, [3],
         {"server-0": [0, 1], "server-1": [6, 7], "server-2": [4, 5]}),
        ([DECODE, PREFILL], {}, [], {
            "decode-0": [2, 3], "decode-1": [4, 5], "prefill-0": [0, 7], "prefill-1": [1, 6]}),
        # those of a list that no server uses are not given to others
        ([{**PREFILL, "count": 1}, DECODE], {}, [],
         {"prefill-0": [0, 7], "decode-0": [2, 3], "decode-1": [4, 5]}),
    ],
)  # fmt: skip
def test_lists_give_devices_to_groups_and_servers(servers, instances, exclude, expected):
    assert devices(planned(recipe(servers, instances=instances), {**H200, "exclude": exclude})) == expected


@pytest.mark.parametrize(
    ("servers", "instances", "exclude", "expected"),
    [
        ([{**WORK, "device_list": [0, 8]}], {}, [], ("input.value-invalid", "servers.server.device_list")),
        ([{**WORK, "device_list": [0, 0]}], {}, [], ("plan.taken-twice", "servers.server.device_list", "the GPU 0")),
        ([WORK], {"server-0": {"device_list": [1]}}, [], ("input.value-invalid", "instances.server-0.device_list")),
        ([WORK], {"server-0": {"device_list": [1, 2]}, "server-1": {"device_list": [2, 3]}}, [],
         ("plan.taken-twice", "instances.server-1.device_list", "the GPU 2")),
        ([WORK], {"server-0": {"device_list": [1, 2]}}, [2],
         ("plan.taken-twice", "instances.server-0.device_list", "the GPU 2")),
        ([WORK], {}, [0, 2, 4, 6], ("input.value-invalid", "[0, 2, 4, 6]")),
        ([{**WORK, "count": 3, "device_list": [0, 1]}], {}, [],
         ("input.value-invalid", "servers.server.device_list")),
        ([DECODE, {**PREFILL, "count": "auto"}], {}, [], ("input.value-invalid",)),
        ([{**DECODE, "count": 3}, {**PREFILL, "count": 1}], {}, [], ("plan.device-list-too-short", "decode-2")),
    ],
)  # fmt: skip
def test_lists_that_cannot_be(servers, instances, exclude, expected):
    found, values = code(recipe(servers, instances=instances), {**H200, "exclude": exclude})
    assert found == expected[0]
    assert [value for value in expected[1:] if value not in values] == []


def test_cores_of_a_server_on_trainium_follow_each_other():
    layer = {"instances": {"server-0": {"device_list": [0, 1, 2, 3, 8, 9, 10, 11]}}}
    assert "neuron.cores-not-whole-chips" in plans.codes(planned, "trn3-eagle3", plans.TRN3, override=layer)


def test_devices_as_a_container_sees_them():
    image = {"image": "docker.io/vllm/vllm-openai:v0.32.0", "devices": ["nvidia.com/gpu=${device}"]}
    variables = {"CUDA_VISIBLE_DEVICES": "${container_devices}"}
    given_names = recipe(launcher="container", container=image, environment=variables)
    found = planned(given_names)
    assert {entry["environment"]["CUDA_VISIBLE_DEVICES"] for entry in found} == {"0,1"}
    assert found[1]["container"]["devices"] == ["nvidia.com/gpu=2", "nvidia.com/gpu=3"]
    found = planned(recipe(environment=variables))  # a process sees the node's
    assert [entry["environment"]["CUDA_VISIBLE_DEVICES"] for entry in found] == ["0,1", "2,3", "4,5", "6,7"]


# -- what a group has differently --------------------------------------------------------------------------------------


def test_a_group_has_its_own_start_health_secrets_launcher_model_and_venv():
    front = {
        "name": "front", "role": "frontend", "count": 1, "devices": 0, "port": 9000,
        "start": {"units": ["etcd.service"], "poll_s": 5}, "health": {"path": "/live", "budget_s": 60},
        "secrets": {"TOKEN": None, "OTHER": "other_token"}, "model": {"id": "other", "path": "/srv/other"},
        "venv": {"path": "/opt/front"}, "command": ["${venv}/bin/front", "${model}"],
    }  # fmt: skip
    work = {**WORK, "launcher": "container", "container": {"image": "docker.io/vllm/vllm-openai:v0.32.0"},
            "ports": {"system": 9100}, "health": {"port": "system"}}  # fmt: skip
    found = planned(recipe([front, work], secrets={"TOKEN": "token"}, start={"budget_s": 900}))
    one, two = found[0], found[2]
    assert one["health"] == {"port": None, "path": "/live", "budget_s": 60, "poll_s": 5}
    assert two["health"] == {"port": 9101, "path": "/health", "budget_s": 900, "poll_s": 2}
    assert (one["start"]["units"], two["start"]["units"]) == (["etcd.service"], [])
    assert (one["secrets"], two["secrets"]) == ({"OTHER": "other_token"}, {"TOKEN": "token"})
    assert (one["launcher"], two["launcher"]) == ("process", "container")
    assert (one["model_id"], two["model_id"]) == ("other", "gpt-oss-20b")
    assert one["command"] == ["/opt/front/bin/front", "/srv/other"]
    assert one["weights"] == ["/srv/other"]
    assert plan.secrets_of(recipe([front, work], secrets={"TOKEN": "token"})) == {
        "TOKEN": "token", "OTHER": "other_token"
    }  # fmt: skip


def test_ports_have_names_of_ones_own():
    ports = {"bootstrap": 7000, "kv_events": 7100, "metrics": None}
    found = planned(recipe([{**WORK, "ports": ports}], arguments={"kv": "${kv_events}", "b": "${bootstrap}"}))
    assert [entry["ports"] for entry in found][1] == {"bootstrap": 7001, "kv_events": 7101}
    assert found[1]["arguments"]["kv"] == "7101"


# -- images ------------------------------------------------------------------------------------------------------------


def test_an_image_is_named_by_its_key(tmp_path):
    digest = "sha256:" + "1" * 64
    image = "docker.io/vllm/vllm-openai:v0.32.0"
    (tmp_path / "images.yml").write_text("engine-1.2: {image: '%s', digest: '%s'}" % (image, digest))
    declared = recipe(launcher="container", container={"image": "engine-1.2"}, name="mine")
    (tmp_path / "mine.yml").write_text(repr(declared).replace("False", "false"))
    found = load.resolve_recipe(str(tmp_path / "mine.yml"), [])
    assert found["container"] == {"image": image, "digest": digest}
    own = {"container": {"digest": "sha256:" + "2" * 64}}
    found = load.resolve_recipe(str(tmp_path / "mine.yml"), [("fleet_override", own)])
    assert found["container"] == {"image": image, **own["container"]}
    layer = {"servers": {"server": {"container": {"image": "engine-1.3"}}}}
    error = plans.error(load.resolve_recipe, str(tmp_path / "mine.yml"), [("fleet_override", layer)])
    assert error.code == "recipe.name-unknown" and "did you mean 'engine-1.2'?" in error.message
    assert load.available([str(tmp_path)]) == ["mine"]
    (tmp_path / "images.yml").write_text("engine-1.2: {image: '%s'}" % image)
    assert load.images_of(str(tmp_path))["engine-1.2"] == {"image": image}
    for wrong in ("engine: docker.io/x:1", "engine: {image: 7}", "engine: {image: 'x:1', digest: 'sha256:A'}"):
        (tmp_path / "images.yml").write_text(wrong)
        assert plans.codes(load.images_of, str(tmp_path)) == {"recipe.key-invalid"}


PINNED = {"image": "docker.io/vllm/vllm-openai:v0.32.0", "digest": "sha256:" + "1" * 64}
NEWER = "docker.io/vllm/vllm-openai:v0.33.0"  # of the same repository: by the old digest it would be the old image


@pytest.mark.parametrize("layer", [
    {"container": {"image": NEWER}},
    {"servers": {"server": {"container": {"image": NEWER}}}},
    {"instances": {"server-0": {"container": {"image": NEWER}}}},
])  # fmt: skip
def test_another_image_is_not_pinned_by_the_digest_of_the_one_before_it(tmp_path, layer):
    (tmp_path / "mine.yml").write_text(json.dumps(recipe(launcher="container", container=PINNED)))
    for layers, image, digest in (
        ([], PINNED["image"], PINNED["digest"]),
        ([("fleet_override", layer)], NEWER, None),
        ([("fleet_override", {"container": {"image": PINNED["image"]}})], PINNED["image"], PINNED["digest"]),
    ):
        found = planned(load.resolve_recipe(str(tmp_path / "mine.yml"), layers))[0]["container"]
        assert (found["image"], found["digest"]) == (image, digest)


# -- what groups have of their own is brought --------------------------------------------------------------------------


def deployed(servers, used=None, **changes):
    found = plan.deployment(recipe(servers, valid=False, **changes), plan.Site(), "h", used)
    return [one["path"] for one in found["models"]], [one["path"] for one in found["venvs"]], found


MODELS = "/var/lib/inference-fleet/models"
OTHER = {"repo": "openai/gpt-oss-120b", "path": "${models}/other"}


def test_a_host_has_each_model_and_each_environment_once_the_recipes_first():
    other = {**WORK, "name": "other", "count": 1, "port": 8100, "model": OTHER, "venv": {"path": "/opt/other"}}
    again, own_id = {**other, "name": "again"}, {**WORK, "name": "own-id", "model": {"id": "x"}}
    models, venvs, found = deployed([other, WORK, again, own_id])
    assert models == [MODELS + "/gpt-oss-20b", MODELS + "/other"]
    assert venvs == ["/opt/vllm", "/opt/other"]
    assert found["servers"][0]["model"]["path"] == MODELS + "/other"
    assert deployed([other, WORK], {"server"})[:2] == ([MODELS + "/gpt-oss-20b"], ["/opt/vllm"])
    assert deployed([other])[:2] == ([MODELS + "/other"], ["/opt/other"])  # nobody runs the recipe's


def test_a_container_needs_no_environment():
    inside = {**WORK, "name": "inside", "launcher": "container", "container": {"image": "x:1"}}
    assert deployed([inside, WORK])[1] == ["/opt/vllm"]
    assert deployed([inside])[1] == []


def test_a_draft_comes_with_the_first_model_that_has_it():
    drafted = {**WORK, "name": "drafted", "model": {"draft": {"path": "/srv/draft", "tokens": 3}}}
    assert deployed([drafted, WORK])[0] == [MODELS + "/gpt-oss-20b"] * 2
    assert deployed([drafted, {**drafted, "name": "b"}])[0] == [MODELS + "/gpt-oss-20b"]


@pytest.mark.parametrize(
    ("own", "path"),
    [({"model": {"repo": "openai/gpt-oss-120b"}}, "model.path " + MODELS + "/gpt-oss-20b"),
     ({"venv": {"packages": ["vllm==1"]}}, "venv.path /opt/vllm")],
)  # fmt: skip
def test_a_path_has_one_content(own, path):
    error = plans.error(deployed, [WORK, {**WORK, "name": "other", **own}])
    assert (error.code, error.values[1]) == ("plan.taken-twice", path)


def test_each_server_is_counted_with_its_own_model():
    other = {**WORK, "name": "other", "count": 1, "port": 8100, "model": OTHER}
    declared = recipe([{**WORK, "count": 1}, other], arguments={"tensor-parallel-size": 2})
    found = {one["server"]: one["weights_gib"] for one in plans.planned(declared).capacity}
    assert found["other-0"] > 4 * found["server-0"]


# -- engines around others ---------------------------------------------------------------------------------------------


def wrapped(*servers, **changes):
    base = {"engine": "dynamo", "command": ["python3", "-m", "worker"], "arguments": {"tp": 2},
            "venv": {"path": "/opt/dynamo", "packages": ["ai-dynamo==1.6.1"]},
            "environment": {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": "/run/dynamo"}}  # fmt: skip
    return recipe(list(servers) or None, **{**base, **changes})


def test_the_backend_says_how_flags_are_read():
    """Whatever the command is called. TensorRT-LLM's file wins over a flag, vLLM's does not."""
    file = {"format": "yaml", "content": {"tensor_parallel_size": 4}}
    assert code(wrapped(backend="trtllm", config=file))[0] == "plan.parallel-not-devices"
    assert planned(wrapped(backend="vllm", config=file))[0]["arguments"]["tensor-parallel-size"] == 2
    own = {**WORK, "count": 1, "backend": "vllm"}
    assert planned(wrapped(own, backend="trtllm", config=file))[0]["engine"] == "dynamo"
    assert planned(wrapped({"role": "frontend", "count": 1, "devices": 0, "port": 8000}))


@pytest.mark.parametrize(
    "declared",
    [wrapped(), recipe(backend="vllm"), recipe([{**WORK, "backend": "vllm"}])],
)
def test_a_backend_is_for_engines_around_others(declared):
    found, values = code(declared)
    assert (found, values[0]) == ("input.value-invalid", "server 'server-0': backend")
