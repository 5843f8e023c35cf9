# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages about Trainium show what the recipes start, and their examples work."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.guide_lines import by_key, variables

CELL = re.compile(r"^\| .*? \| `(.*)` \| [^|]* \|$", re.MULTILINE)
NEURON = [name for name, recipe in plans.OWN.items() if recipe["platform"] == "neuron"]


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
    argv = entry["command"]
    begin = next((number for number, word in enumerate(argv) if word.startswith("--")), len(argv))
    found = {**by_key(argv, {}, begin), **variables(entry["environment"])}
    return {name: re.sub(r"/[0-9a-f]{16}(?=/|$)", "/KEY", line) for name, line in found.items()}


@pytest.mark.parametrize("recipe", NEURON)
def test_the_page_shows_what_a_recipe_starts(recipe):
    ours = started(plans.entries_of(recipe)[1])
    assert table(recipe, ours.values()) == ours


def test_the_example_with_the_vendors_index():
    given = doc_examples.example("environment", doc_examples.TUTORIAL)
    entries = plans.entries_of(given["fleet_recipe"], override=given["fleet_override_venv"])
    assert {entry["command"][0] for entry in entries} == {"/var/lib/inference-fleet/venvs/vllm-neuron/bin/vllm"}
    options = yaml.safe_load((CLONE / "roles/vllm/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    assert set(given) - {"fleet_recipe", "fleet_override_venv"} <= set(options["options"])


def test_the_page_shows_how_the_container_is_started():
    (layer,) = [one for name, one in doc_examples.example("container", doc_examples.TUTORIAL).items()
                if name.startswith("fleet_override")]  # fmt: skip
    entries = plans.entries_of("trn3-vllm-neuron", override=layer)
    assert entries[0]["directories"]["artifact"] in [one["source"] for one in entries[0]["container"]["mounts"]]
    launch = entries[1]["launch"]
    image = next(number for number, word in enumerate(launch) if word.startswith("public.ecr.aws/"))
    options = {word.partition("=")[0] for word in launch[:image] if word.startswith("--")} - {"--env"}
    assert options == {name for name in table("Container (DLC)") if name.startswith("--")}


@pytest.mark.parametrize(
    ("name", "recipe", "servers"),
    [
        ("gpt-oss-20b", "trn3-vllm-neuron", ["server-%d" % number for number in range(8)]),
        ("without-draft", "trn3-eagle3", ["server-%d" % number for number in range(8)]),
        ("lnc-1", "trn3-eagle3", ["server-%d" % number for number in range(16)]),
        ("prefill", "trn3-vllm-neuron", ["prefill-%d" % number for number in range(16)]),
        ("decode", "trn3-vllm-neuron", ["decode-0"]),
    ],
)
def test_the_examples_plan(name, recipe, servers):
    shown = doc_examples.example(name)
    entries = plans.entries_of(recipe, shown.get("fleet_hardware"), shown["fleet_override"], bind="10.0.0.5")
    assert [entry["name"] for entry in entries] == servers
    expected = {
        "lnc-1": {"NEURON_RT_VIRTUAL_CORE_SIZE": "1", "NEURON_LOGICAL_NC_CONFIG": "1",
                  "NEURON_RT_VISIBLE_CORES": "120-127"},
        "prefill": {"NEURON_VISIBLE_DEVICES": "60-63", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5574"},
        "decode": {"NEURON_VISIBLE_DEVICES": "0-63"},
    }.get(name, {})  # fmt: skip
    assert expected.items() <= entries[-1]["environment"].items()
    assert name != "prefill" or len({entry["directories"]["artifact"] for entry in entries}) == 1
