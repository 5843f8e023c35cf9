# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command lines planned for Trainium, NVIDIA and Ascend before the real argument parsers of vLLM.

trn3-eagle3 is for vLLM 0.11.1 and is judged by that release. The vLLM Neuron plugin of trn3-vllm-neuron needs flags
that came later; it is judged by the release that the tests have as an engine, which is also that of the recipes for
NVIDIA. What the Neuron plugins read of
additional-config no vLLM knows: that is held against the plan's own list of keys.
"""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.e2e.conftest import JUDGE, said_by
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tools import engine_venv, parser_venv


def planned(recipe, layer=None, chips=16, kind="trainium3", overlays=()):
    return plans.entries_of(recipe, {"accelerator": kind, "count": chips}, layer, overlays)


def example(name):
    """An override out of docs/using/trainium.md."""
    return doc_examples.example(name)["fleet_override"]


def engine_lines():
    """{name: argv after vllm} for the engine's parser."""
    lines = {entry["name"]: entry["command"][1:] for entry in planned("trn3-vllm-neuron")}
    for role in ("prefill", "decode"):
        for entry in planned("trn3-vllm-neuron", example(role)):
            lines[entry["name"]] = entry["command"][1:]
    lines["20b"] = planned("trn3-vllm-neuron", example("gpt-oss-20b"))[0]["command"][1:]
    return {**lines, **gpu_lines()}


def gpu_lines():
    """{"recipe, overlay or number of GPUs": argv after vllm} of the recipes for NVIDIA and AMD, on eight GPUs."""
    lines = {}
    for kind in ("h100", "h200", "b200", "mi300x"):
        name = kind + "-vllm"
        for overlay in recipes.load_recipe(recipes.find_recipe(name, []))["overlays"]:
            lines["%s, %s" % (name, overlay)] = planned(name, None, 8, kind, (overlay,))[-1]["command"][1:]
        for size in (1, 2, 4, 8):
            layer = {"servers": {"server": {"devices": size}}}
            lines["%s, %d" % (name, size)] = planned(name, layer, 8, kind)[-1]["command"][1:]
    return lines


def tutorial_lines():
    """The same for the parser of vLLM 0.11.1."""
    lines = {entry["name"]: entry["command"][1:] for entry in planned("trn3-eagle3")}
    lines["4 chips"] = planned("trn3-eagle3", chips=4)[1]["command"][1:]
    lines["without a draft"] = planned("trn3-eagle3", example("without-draft"))[0]["command"][1:]
    return lines


def bad(line):
    """{what the parser must say: a line with such a mistake}."""
    return {
        "unrecognized arguments: --tensor-paralel-size": [*line, "--tensor-paralel-size", "8"],
        "argument --max-num-seqs: invalid int value: 'many'": [*line, "--max-num-seqs", "many"],
        "argument --speculative-config": [*line, "--speculative-config", "{not json"],
    }


def judged(venv, lines):
    """({name: verdict}, {complaint: verdict}) of all lines of a release; one process, one import of vLLM."""
    wrong = bad(lines["server-0"])
    found = said_by(venv, JUDGE, given=[*lines.values(), *wrong.values()])
    return dict(zip(lines, found)), dict(zip(wrong, found[len(lines) :]))


def npu_lines():
    """{"kind, overlay": argv after vllm} of the recipes for Ascend."""
    lines = {}
    for kind, count in (("ascend-a2", 8), ("ascend-a3", 16)):
        for overlay in ("", *recipes.load_recipe(recipes.find_recipe(kind, []))["overlays"]):
            found = planned(kind, None, count, kind, (overlay,) if overlay else ())
            lines["%s, %s" % (kind, overlay)] = found[-1]["command"][1:]
    return lines


@pytest.mark.soak
def test_the_parser_of_ascend_s_tutorial_takes_every_line():
    """make test has its recorded options instead (vllm_flags.json)."""
    lines = npu_lines()
    plain = lines["ascend-a2, "]
    unknown = [word.replace('"cudagraph_mode"', '"cudagraph_moed"') for word in plain]
    good, wrong = judged(parser_venv.ensure(parser_venv.ASCEND), {"server-0": plain, "unknown key": unknown, **lines})
    refused = good.pop("unknown key")["refused"]
    assert "argument --compilation-config" in refused and "cudagraph_moed" in refused
    assert {name: verdict["refused"] for name, verdict in good.items()} == dict.fromkeys(good)
    assert all(complaint in verdict["refused"] for complaint, verdict in wrong.items())
    for kind, server in (("ascend-a2", 0), ("ascend-a3", 1)):
        values = good[kind + ", tp8"]["values"]
        assert (values["tensor_parallel_size"], values["port"], values["max_model_len"]) == (8, 8000 + server, 131072)
        assert values["enable_expert_parallel"] is True
        values = good[kind + ", data-parallel"]["values"]
        assert (values["tensor_parallel_size"], values["data_parallel_size"]) == (4, 2)
        assert "PIECEWISE" in good[kind + ", piecewise"]["values"]["compilation_config"]
        assert "FULL_DECODE_ONLY" in good[kind + ", "]["values"]["compilation_config"]


RELEASES = [pytest.param(parser_venv.VERSION, marks=pytest.mark.soak), "engine"]


class Verdicts(dict):
    """{release: judged}, each when it is first needed: the import of vLLM is nearly all of the time."""

    def __missing__(self, release):
        if release == "engine":
            self[release] = judged(engine_venv.ensure(), engine_lines())
        else:
            self[release] = judged(parser_venv.ensure(), tutorial_lines())
        return self[release]


@pytest.fixture(scope="module")
def verdicts():
    return Verdicts()


@pytest.mark.parametrize("release", RELEASES)
def test_every_planned_line_is_taken(verdicts, release):
    good, _wrong = verdicts[release]
    assert {name: verdict["refused"] for name, verdict in good.items()} == dict.fromkeys(good)
    assert len(good) >= 10


@pytest.mark.parametrize("release", RELEASES)
def test_a_mistake_is_refused(verdicts, release):
    """Otherwise the test above says nothing."""
    _good, wrong = verdicts[release]
    for complaint, verdict in wrong.items():
        assert verdict["refused"] is not None and complaint in verdict["refused"], (complaint, verdict)


@pytest.mark.soak
def test_what_the_parser_of_0_11_1_makes_of_the_tutorial_s_recipe(verdicts):
    values = verdicts["0.11.1"][0]["server-1"]["values"]
    recipe = recipes.load_recipe(recipes.find_recipe("trn3-eagle3", []))
    assert values["additional_config"] == recipe["arguments"]["additional-config"]
    assert values["speculative_config"] == overrides.apply(
        recipe["arguments"]["speculative-config"], {"model": recipe["model"]["draft"]["path"]}
    )
    picked = {key: values[key] for key in ("port", "host", "tensor_parallel_size", "max_num_seqs", "max_model_len")}
    assert picked == {
        "port": 8001, "host": "127.0.0.1", "tensor_parallel_size": 8, "max_num_seqs": 16, "max_model_len": 16384
    }  # fmt: skip
    assert values["enable_prefix_caching"] is False
    assert values["enable_chunked_prefill"] is False
    assert values["num_gpu_blocks_override"] == 16  # one for each sequence
    assert values["served_model_name"] == [recipe["model"]["path"]]  # what the tutorial's clients send
