# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipes' flags are ones that the argument parsers of Dynamo know: fixtures/dynamo_flags.json.

That is a record of the real parsers, by tests/e2e/dynamo_judge.py --flags; tests/e2e/test_dynamo_parsers.py holds it
against them. dynamo.vllm of 1.0.2 and 1.3.1 cannot be loaded without a vLLM of the same month, so 1.6.1 stands in.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import dynamo
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load

RECORD = Path(__file__).parents[3] / "fixtures" / "dynamo_flags.json"
KNOWN = {version: {program: ["--" + name for name in names.split()] for program, names in programs.items()}
         for version, programs in json.loads(RECORD.read_text(encoding="utf-8")).items()}  # fmt: skip
PARTS = ("frontend", "prefill", "decode")  # overlays of a host that has one of them alone
NEAREST = {"1.0.0": "1.0.2"}  # the version on record that is nearest
GUIDE = {
    "dynamo.frontend": "--router-mode --http-port",
    "dynamo.trtllm": "--model-path --served-model-name --extra-engine-args --dyn-reasoning-parser "
    "--dyn-tool-call-parser --disaggregation-mode --max-num-tokens --max-batch-size --free-gpu-memory-fraction "
    "--tensor-parallel-size --expert-parallel-size",
}


def known(version, program):
    programs = KNOWN[NEAREST.get(version, version)]
    return programs.get(program) or KNOWN["1.6.1"][program]


def lines():
    """[(recipe, server, version of Dynamo, program, its flags)] of all recipes with Dynamo, overlays too."""
    for name in load.available([load.OWN_RECIPES]):
        path, own = load.find_recipe(name, []), load.load_recipe(load.find_recipe(name, []))
        for overlay in (None, *own.get("overlays", {})) if own["engine"] == "dynamo" else ():
            part = overlay in PARTS and "etcd" in own["overlays"]  # of several hosts, which find each other by etcd
            recipe = load.resolve_recipe(path, [], ("etcd", overlay) if part else (overlay,) if overlay else ())
            kind = recipe["needs"]["accelerators"][0]
            count = {"cpu": 1, "gb200": 4}.get(kind, 8)
            declared = {"accelerator": kind, "count": count, **({"cores": 2} if kind == "cpu" else {})}
            site = plan.Site(
                clustered=kind == "gb200" or part or overlay == "etcd", endpoints=(("etcd", "http://x:2379"),)
            )
            for entry in plan.plan_host("n", recipe, parse_hardware(declared, "x"), site):
                words = entry["command"]
                program = [word for word in words if word.startswith("dynamo.")][0]  # noqa: RUF015 - pylint's R1708
                flags = [word for word in words if word.startswith("--")]
                version = str(dynamo.ENGINE.version(recipe))
                yield pytest.param(version, program, flags, id="-".join([name, overlay or "", entry["name"]]))


@pytest.mark.parametrize(("version", "program", "flags"), list(lines()))
def test_every_flag_of_a_recipe_is_one_of_its_version(version, program, flags):
    missing = [flag for flag in flags if flag not in known(version, program)]
    assert [
        flag for flag in missing if not flag.startswith("--no-") or "--" + flag[5:] not in known(version, program)
    ] == []


@pytest.mark.parametrize("program", GUIDE)
@pytest.mark.parametrize("version", KNOWN)
def test_every_flag_of_the_guide_is_taken_by_all_three(version, program):
    assert set(GUIDE[program].split()) <= set(known(version, program))


def test_a_flag_that_nobody_knows_would_be_seen():
    assert "--tensor-paralel-size" not in known("1.6.1", "dynamo.vllm")
    assert "--model" not in known("1.0.2", "dynamo.frontend")
