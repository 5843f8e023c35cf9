# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages about Trainium show what the recipes start, and their examples work."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import yaml
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.unit.engines import plans

CELL = re.compile(r"^\| .*? \| `(.*)` \| [^|]* \|$", re.MULTILINE)
CLONE = pathlib.Path(__file__).resolve().parents[2]


def table(heading, ours=()):
    """What a recipe's section shows, {flag or variable: line}; "" is the first argv words. The rows of "Common
    differences" are those that are among our lines."""
    text = doc_examples.RECIPES.read_text(encoding="utf-8")
    section = text.partition("\n## %s\n" % heading)[2].partition("\n## ")[0]
    cells, shared = (
        [*CELL.findall(part), *doc_examples.listed(part, "Unchanged"), *doc_examples.listed(part, "Added")]
        for part in (section, text.partition("\n## Common differences\n")[2].partition("\n## ")[0])
    )
    cells += [cell for cell in shared if cell in ours]
    return {re.match(r"(--[\w-]+|\w+(?==))?", cell).group(): cell for cell in cells}


def started(entry):
    """The same for a plan entry, with KEY for the digits of an artifact's key."""
    found, argv = {}, list(entry["command"])
    begin = next((number for number, word in enumerate(argv) if word.startswith("--")), len(argv))
    found[""] = " ".join(argv[:begin])
    for number, word in enumerate(argv[begin:], begin):
        if re.match(r"--[a-z]", word):
            value = argv[number + 1] if number + 1 < len(argv) and not argv[number + 1].startswith("--") else None
            found[word] = word if value is None else "%s %s" % (word, value)
    found.update((name, "%s=%s" % (name, value)) for name, value in entry["environment"].items())
    for name, text in found.items():
        start = text.find("{")
        if start >= 0:
            text = text[:start] + json.dumps(json.loads(text[start:]), separators=(",", ":"))
        found[name] = re.sub(r"/[0-9a-f]{16}(?=/|$)", "/KEY", text)
    return found


def entries(recipe, variables):
    layers = [one for name, one in variables.items() if name.startswith("fleet_override")]
    return plans.entries_of(recipe, variables.get("fleet_hardware", plans.TRN3), layers[0] if layers else None)


@pytest.mark.parametrize("recipe", [name for name, own in plans.OWN.items() if own["platform"] == "neuron"])
def test_the_page_shows_what_a_recipe_starts(recipe):
    ours = started(entries(recipe, {})[1])
    assert table(recipe, ours.values()) == ours


def test_the_page_shows_how_the_container_is_started():
    launch = entries("trn3-vllm-neuron", doc_examples.example("container", doc_examples.TUTORIAL))[1]["launch"]
    image = next(number for number, word in enumerate(launch) if word.startswith("public.ecr.aws/"))
    options = {word.partition("=")[0] for word in launch[:image] if word.startswith("--")} - {"--env"}
    assert options == {name for name in table("Container (DLC)") if name.startswith("--")}


@pytest.mark.parametrize(
    ("name", "recipe", "servers", "variables"),
    [
        ("gpt-oss-20b", "trn3-vllm-neuron", ["server-%d" % number for number in range(8)], {}),
        ("without-draft", "trn3-eagle3", ["server-%d" % number for number in range(8)], {}),
        ("lnc-1", "trn3-eagle3", ["server-%d" % number for number in range(16)],
         {"NEURON_RT_VIRTUAL_CORE_SIZE": "1", "NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VISIBLE_CORES": "120-127"}),
        ("prefill", "trn3-vllm-neuron", ["prefill-%d" % number for number in range(16)],
         {"NEURON_VISIBLE_DEVICES": "60-63", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5574"}),
        ("decode", "trn3-vllm-neuron", ["decode-0"], {"NEURON_VISIBLE_DEVICES": "0-63"}),
    ],
)  # fmt: skip
def test_the_examples_plan(name, recipe, servers, variables):
    found = entries(recipe, doc_examples.example(name))
    assert [entry["name"] for entry in found] == servers
    assert variables.items() <= found[-1]["environment"].items()


def test_the_example_with_the_vendors_index():
    variables = doc_examples.example("environment", doc_examples.TUTORIAL)
    venv = plans.resolved(variables["fleet_recipe"], variables["fleet_override_venv"])["venv"]
    found = entries(variables["fleet_recipe"], variables)
    assert len(found) == 8
    assert venv["create"] is True and all("==" in package for package in venv["packages"])
    assert {entry["command"][0] for entry in found} == {"/var/lib/inference-fleet/venvs/vllm-neuron/bin/vllm"}
    options = yaml.safe_load((CLONE / "roles/vllm/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    assert set(variables) - {"fleet_recipe", "fleet_override_venv"} <= set(options["options"])


def test_the_example_with_the_vendors_image():
    planned = entries("trn3-vllm-neuron", doc_examples.example("container", doc_examples.TUTORIAL))
    assert len(planned) == 8
    for entry in planned:
        assert entry["container"]["devices"] == ["/dev/neuron%d" % number for number in range(16)]
        assert entry["directories"]["artifact"] in [mount["source"] for mount in entry["container"]["mounts"]]
        assert entry["command"][:2] == ["vllm", "serve"]
    assert len({entry["directories"]["artifact"] for entry in planned}) == 1


@pytest.mark.parametrize("recipe", ["trn3-vllm-neuron", "trn3-start-script"])
def test_the_example_of_lnc_1_without_arguments_is_for_the_others(recipe):
    shown = doc_examples.example("lnc-1")
    del shown["fleet_override"]["arguments"]
    found = entries(recipe, shown)
    assert [entry["environment"]["NEURON_LOGICAL_NC_CONFIG"] for entry in found] == ["1"] * 16
