# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import posixpath

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import (
    artifact_key,
)
from ansible_collections.inference.fleet.tests.unit.engines import plans

NAMES = ("trn3-eagle3", "trn3-start-script", "trn3-vllm-neuron")


def planned(name="trn3-eagle3", hardware=None, host="node1", site=None, **layers):
    return plans.entries_of(name, hardware, layers, host=host, **(site or {}))


def keys(*args, **kwargs):
    """The last folder of every server's artifact directory."""
    return [entry["directories"]["artifact"].rpartition("/")[2] for entry in planned(*args, **kwargs)]


def refused(**layers):
    error = plans.error(planned, **layers)
    return error.code, error.values


@pytest.mark.parametrize("name", NAMES)
def test_all_servers_of_all_hosts_share_one_artifact(name):
    one = keys(name)
    assert len(one) == 8
    assert set(one) == set(keys(name, host="node2", hardware={"accelerator": "trainium3", "count": 4}))
    assert set(one) == set(keys(name, site={"root": "/srv/f", "bind": "10.0.0.1"}))


@pytest.mark.parametrize(
    "layers",
    [
        {"servers": {"server": {"port": 9000}}},
        {"servers": [{"name": "endpoint", "role": "server", "count": "auto", "devices": 8, "port": 8000}]},
        {"arguments": {"served-model-name": ["${model_id}", "x"], "uvicorn_log_level": "debug"}},
        {"environment": {"TIKTOKEN_ENCODINGS_BASE": "/x", "NEURON_RT_LOG_LEVEL": "INFO", "VLLM_RPC_TIMEOUT": 1}},
        {"directories": {"work": "/scratch/${name}", "compile": "/scratch/${name}/c"}},
        {"instances": {"server-1": {"port": 9999}}},
    ],
)
def test_what_no_graph_depends_on_keeps_the_key(layers):
    assert set(keys(**layers)) == set(keys())


@pytest.mark.parametrize(
    ("layers", "hardware"),
    [
        ({"arguments": {"max-num-seqs": 8}}, None),
        ({"arguments": {"additional-config": {"override_neuron_config": {"fused_qkv": False}}}}, None),
        ({"environment": {"NEURON_CC_FLAGS": "-O3"}}, None),
        ({"venv": {"version": "2.28"}}, None),
        ({"model": {"revision": "b5c939d"}}, None),
        ({"model": {"draft": {"path": "/mnt/other"}}}, None),
        ({"command": ["${venv}/bin/python", "-m", "vllm"]}, None),
        ({"config": {"format": "json", "content": {"seed": 1}}}, None),
        ({"servers": {"server": {"devices": 16}}}, None),
        ({"needs": {"lnc": 1},
          "arguments": {"additional-config": {"override_neuron_config": {"logical_nc_config": 1}}}},
         {**plans.TRN3, "lnc": 1}),
        ({"needs": {"accelerators": ["trainium2"], "device_memory_gib": 0},
          "arguments": {"additional-config": {"override_neuron_config": {"is_mxfp4_compute": False}}}},
         {"accelerator": "trainium2", "count": 16}),
    ],
)  # fmt: skip
def test_what_a_compilation_depends_on_changes_the_key(layers, hardware):
    one = keys(hardware=hardware, **layers)
    assert not set(one) & set(keys())
    assert one == keys(hardware=hardware, **layers)


@pytest.mark.parametrize("name", NAMES)
def test_together_each_has_its_own_directories(name):
    entries = planned(name, start={"order": "together"})
    assert len({entry["directories"]["compile"] for entry in entries}) == 8
    assert {tuple(entry["start"]["after"]) for entry in entries} == {()}
    assert {entry["environment"]["NEURON_COMPILED_ARTIFACTS"] for entry in entries} == {
        entry["directories"]["artifact"] for entry in entries
    }
    key = keys(name)[0]
    assert keys(name, start={"order": "together"}) == ["%s-server-%d" % (key, index) for index in range(8)]


def test_unkeyed_artifacts_are_refused():
    code, values = refused(directories={"artifact": "/mnt/fsx/artifacts"})
    assert (code, values[1]) == ("neuron.value-not-as-planned", "directories.artifact")


def test_servers_that_start_together_or_have_different_keys_do_not_share_an_artifact():
    one, other = keys()[0], keys(arguments={"max-num-seqs": 8})[0]
    code, values = refused(start={"order": "together"}, directories={"artifact": "/mnt/%s/" % one})
    assert (code, values[:3]) == ("plan.artifact-shared", ("server-0", "server-1", "/mnt/" + one))
    path = "/mnt/%s-%s" % (one, other)
    code, values = refused(directories={"artifact": path}, instances={"server-3": {"arguments": {"max-num-seqs": 8}}})
    assert (code, values[:3]) == ("plan.artifact-shared", ("server-0", "server-3", path))


@pytest.mark.parametrize("order", ["together", "leader-first"])
@pytest.mark.parametrize("place", ["/scratch/c", "/scratch//c/", "/scratch/${name}/../c"])
def test_no_two_servers_compile_in_one_directory(order, place):
    """Not even those of which one waits for the other: where an artifact cannot be loaded, all of them compile."""
    code, values = refused(start={"order": order}, directories={"compile": place})
    assert code == "plan.compile-directory-not-own"
    assert values == ("server-0", "/scratch/c", "compile", "/scratch/c", "server-1")


@pytest.mark.parametrize(
    ("place", "kind", "lost"),
    [
        ({"compile": "/c${index}/x/../"}, None, None),
        ({"compile": "/scratch/${name}", "artifact": "/scratch/${artifact_key}"}, None, None),
        ({"compile": "/c/${name}/${devices}", "artifact": "/c/${name}-${artifact_key}"}, None, None),
        ({"compile": "/scratch", "artifact": "/scratch/${artifact_key}"}, "artifact", "/scratch/%s"),
        ({"compile": "/c/${artifact_key}", "artifact": "/c/${artifact_key}/"}, "artifact", "/c/%s"),
    ],
)
def test_a_compilation_does_not_remove_an_artifact(place, kind, lost):
    if kind is None:
        assert len(planned(directories=place)) == 8
        return
    key = keys()[0]
    compiles = posixpath.normpath(place["compile"].replace("${artifact_key}", key))
    code, values = refused(directories=place)
    assert code == "plan.compile-directory-not-own"
    assert values == ("server-0", compiles, kind, lost % key, "server-0")


@pytest.mark.parametrize("place", ["/mnt/a/${recipe}-${artifact_key}", "/mnt/a/${artifact_key}/compiled"])
def test_an_entry_says_its_key_wherever_the_directory_has_it(place):
    (key,) = {artifact_key(entry) for entry in planned(directories={"artifact": place})}
    assert key == keys()[0]
    other = {"arguments": {"max-model-len": 8192}}
    assert {artifact_key(entry) for entry in planned(directories={"artifact": place}, **other)} == set(keys(**other))
    together = planned(start={"order": "together"})
    assert {artifact_key(entry) for entry in together} == {key}  # of which each has a directory of its own


def leaders(**layers):
    return {entry["name"]: entry["hooks"]["compile_cache"]["leaders"] for entry in planned(**layers)}


def test_who_is_waited_for_only_until_the_artifact_is_whole():
    assert leaders() == {"server-0": [], **{"server-%d" % index: ["server-0"] for index in range(1, 8)}}
    other = {"arguments": {"max-num-seqs": 8}}
    assert leaders(instances={"server-3": other, "server-5": other})["server-5"] == ["server-0", "server-3"]
    # what the recipe itself orders is waited for, and so is whom a server restarts with
    group = {"role": "server", "count": 2, "devices": 8}
    servers = [{**group, "name": "a", "port": 8000, "after": ["b"]}, {**group, "name": "b", "port": 9000}]
    after = {entry["name"]: entry["start"]["after"] for entry in planned(servers=servers)}
    assert after == {"a-0": ["b-0", "b-1"], "a-1": ["b-0", "b-1", "a-0"], "b-0": [], "b-1": ["b-0"]}
    assert leaders(servers=servers) == {"a-0": [], "a-1": ["a-0"], "b-0": [], "b-1": ["b-0"]}
    assert set(map(tuple, leaders(start={"restart_with_leader": True}).values())) == {()}
    assert set(map(tuple, leaders(start={"order": "together"}).values())) == {()}
