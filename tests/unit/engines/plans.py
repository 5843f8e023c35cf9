# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of recipes and of hosts' variables, and the errors of calls."""

from __future__ import annotations

import copy
import functools
import typing

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import capacity, fleet, plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import problems

COUNTS = {"gb200": 4, "gb300": 4, "trainium3": 16, "ascend-a3": 16, "cpu": 1}  # devices of a node; 8 of the others
CPU = {"accelerator": "cpu", "count": 1, "cores": 2}
TRN3 = {"accelerator": "trainium3", "count": 16}
LOCAL = {"fleet_recipe": "cpu-tiny", "fleet_hardware": CPU, "fleet_root": "/r"}  # variables of a host
VALUE = "input.value-invalid"
OWN = {name: load.load_recipe(load.find_recipe(name, [])) for name in load.available([load.OWN_RECIPES])}
EACH = [(name, overlay) for name, own in OWN.items() for overlay in ("", *(own.get("overlays") or {}))]


class Lazy(dict):
    """Variables of a host of which some raise when they are read, as a template that is undefined does."""

    def __getitem__(self, key):
        value = super().__getitem__(key)
        if isinstance(value, Exception):
            raise value
        return value


class Planned(typing.NamedTuple):
    """A plan: entries; the resolved recipe; what capacity.check() returns, with the engines' notes; the inputs."""

    entries: list
    deployment: dict
    capacity: list
    recipe: dict
    hardware: object


def resolved(name, override=None, overlays=()):
    """A recipe of the collection with an override and overlays."""
    layers = [("fleet_override", override)] if override else []
    return load.resolve_recipe(load.find_recipe(name, []), layers, list(overlays))


def node_of(recipe, accelerator=None):
    """fleet_hardware of a node of this kind, by default of the first that a recipe is for."""
    kind = accelerator or recipe["needs"]["accelerators"][0]
    return {"accelerator": kind, "count": COUNTS.get(kind, 8), **({"cores": 2} if kind == "cpu" else {})}


def entries_of(recipe, hardware=None, override=None, overlays=(), host="h", **site):
    """The entries of planned() alone."""
    recipe, declared = _given(recipe, hardware, override, overlays)
    return plan.plan_host(host, recipe, declared, plan.Site(**site))


def _given(recipe, hardware, override, overlays):
    recipe = resolved(recipe, override, overlays) if isinstance(recipe, str) else copy.deepcopy(recipe)
    given = hardware if isinstance(hardware, dict) else node_of(recipe, hardware)
    return recipe, parse_hardware(given, "inventory")


def planned(recipe, hardware=None, override=None, overlays=(), host="h", **site):
    """The plan of a recipe, or of the recipe of the collection with this name.

    hardware: fleet_hardware, or the name of an accelerator. site: of plan.Site.
    """
    recipe, declared = _given(recipe, hardware, override, overlays)
    site = plan.Site(**site)
    entries = plan.plan_host(host, recipe, declared, site)
    deployment = plan.deployment(recipe, site, host)
    found = fleet.with_notes(capacity.check(entries, deployment, declared), entries, deployment, declared)
    return Planned(entries, deployment, found, recipe, declared)


@functools.cache
def each(name, overlay):
    """The plan of a recipe of the collection with one of its overlays ("" for none). It must not be changed."""
    part = overlay in ("frontend", "prefill", "decode") and "etcd" in OWN[name]["overlays"]
    overlays = ["etcd"] * part + [overlay] * bool(overlay)
    clustered = name.startswith("gb200-dynamo") or "etcd" in overlays
    return planned(name, overlays=overlays, clustered=clustered, endpoints=(("etcd", "http://etcd-1:2379"),))


def written(valid=True, **changes):
    """A short recipe: containers of vLLM on two NVIDIA GPUs each. changes: other keys; None removes one."""
    made = {
        "schema": 1, "name": "mine", "platform": "nvidia", "engine": "vllm", "launcher": "container",
        "needs": {"accelerators": list(PLATFORMS["nvidia"].accelerators)},
        "model": {"repo": "openai/gpt-oss-120b", "format": "mxfp4", "source": "huggingface", "id": "gpt-oss-120b",
                  "path": "${models}/gpt-oss-120b"},
        "container": {"image": "docker.io/vllm/vllm-openai:v0.32.0"},
        "command": ["vllm", "serve", "${model}"],
        "servers": [{"role": "server", "count": "auto", "devices": 2, "port": 8000}],
        **changes,
    }  # fmt: skip
    if made["launcher"] != "container":
        made["container"] = changes.get("container")
    made = {key: value for key, value in made.items() if value is not None}
    assert not valid or problems(made) == []
    return made


def plan_of(variables, hosts=("node1",), **more):
    """{host: plan} of hosts with these variables."""
    return fleet.plan_fleet(hosts, lambda host: Lazy(variables), **more)


def error(call, *arguments, **named):
    """The FleetError of a call."""
    with pytest.raises(FleetError) as caught:
        call(*arguments, **named)
    return caught.value


def problem(call, *arguments, **named):
    """The first problem of the FleetError of a call."""
    return error(call, *arguments, **named).problems[0]


def codes(call, *arguments, **named):
    """The codes of the FleetError of a call."""
    return {one.code for one in error(call, *arguments, **named).problems}
