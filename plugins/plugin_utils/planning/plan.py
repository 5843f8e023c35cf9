# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: a pure function from a recipe and declared hardware to the list of servers of a host."""

from __future__ import annotations

import dataclasses

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.server_spec import (
    check_entries,
    entry_hash,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import wanted as hub
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, check_folder
from ansible_collections.inference.fleet.plugins.plugin_utils.base.placeholders import (
    base_context,
    substitute,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.models import family_of, model_of
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.checks import check_needs, check_ports
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.devices import assign, group_counts, server_names
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.entries import Host, entry_of
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import apply, apply_container, group_name

HUB_DEFAULTS = {"include": [], "exclude": list(hub.DEFAULT_EXCLUDE), "workers": 8}
START = {
    "order": "together",
    "restart_with_leader": False,
    "budget_s": 300,
    "poll_s": 2,
    "health_path": "/health",
    "units": [],
}
# What a group of servers may have differently from the recipe.
LAYERS = (
    "arguments", "environment", "config", "container", "command", "launcher", "start", "secrets", "model", "venv",
    "backend",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Site:
    """What the inventory says beside recipe and hardware.

    root: fleet_root. bind: address that servers listen on. secret_versions: {ENV: version} as pairs.
    container_engine: what a recipe's container.engine auto means. api_key: whether fleet_api_key holds one.
    endpoints: placeholders that say where others are, as pairs (planning.services). signed: services that sign
    certificates for their clients. require_digests: whether an image must have a digest. clustered: whether
    fleet_cluster names a deployment that other hosts are of too.
    """

    root: str = ""
    bind: str = "127.0.0.1"
    secret_versions: tuple = ()
    container_engine: str = container_launch.DEFAULT_ENGINE
    api_key: bool = False
    endpoints: tuple = ()
    signed: tuple = ()
    require_digests: bool = False
    clustered: bool = False


# What makes two groups' checkpoints of one path two checkpoints.
CHECKPOINT = ("source", "source_path", "repo", "revision", "format", "endpoint", "include", "exclude")


def deployment(recipe, site, host, used=None):
    """The recipe as the roles read it: paths of model, draft and venv are resolved, defaults are filled in.

    models, venvs: all that the host's servers need, the recipe's own first; a group that has its own in `servers` has
    all of it there. engine_settings: of the platform. used: names of the groups that have servers on the host, None for
    all.
    """
    result = _resolved(recipe, site, host)
    groups, models, venvs = [], [], []
    for group in recipe["servers"]:
        own = _resolved(for_group(recipe, group), site, host)
        groups.append({**group, **{key: own[key] for key in ("model", "venv") if group.get(key)}})
        if used is None or group_name(group) in used:
            models.append(own["model"])
            if own.get("venv") and own.get("launcher", "process") == "process":
                venvs.append(own["venv"])
    result["servers"] = groups
    result["engine_settings"] = PLATFORMS[recipe["platform"]].daemon_settings(recipe)
    result["models"] = _distinct(models, result["model"], "model", lambda model: [model.get(key) for key in CHECKPOINT])
    result["venvs"] = _distinct(venvs, result.get("venv"), "venv", lambda venv: venv)
    return result


def _distinct(items, first, key, content):
    """Models or environments, each once, `first` first where it is among them. What is at one path must be one thing;
    a draft comes with the first model that has it."""
    found = []
    for item in sorted(items, key=lambda item: item != first):
        draft = (item.get("draft") or {}).get("path")
        same = [one for one in found if one["path"] == item["path"]]
        if same and content(same[0]) != content(item):
            raise FleetError(
                "plan.path-twice",
                "groups of servers have different %ss at one path, %s. Set servers.NAME.%s.path of one of them to "
                "another.",
                (key, item["path"], key),
            )
        if not same or draft not in (None, *((one.get("draft") or {}).get("path") for one in same)):
            found.append(item)
    return found


def _resolved(recipe, site, host):
    """The recipe with the paths of its own model, draft and venv, and defaults."""
    context = base_context(recipe, NodePaths(site.root), host)
    result = dict(recipe)
    for key in ("model", "venv"):
        if recipe.get(key):
            result[key] = substitute(recipe[key], context, key)
    model = result["model"]
    example = "/srv/models/gpt-oss-120b"
    for key, value in (("path", model["path"]), ("source_path", model.get("source_path")),
                       ("draft.path", (model.get("draft") or {}).get("path"))):  # fmt: skip
        if value is not None:
            check_folder("model.%s" % key, value, example, site.root, key != "source_path")
    if result.get("venv"):
        made = result["venv"].get("create", True)
        check_folder("venv.path", result["venv"]["path"], "/opt/engine", site.root if made else "", made)
    result["model"] = {**model, **{key: model.get(key) or value for key, value in HUB_DEFAULTS.items()}}
    if model.get("exclude") is not None:
        result["model"]["exclude"] = model["exclude"]
    known = model_of(result)
    if known:
        # A draft is held against its target before that is on any disk.
        result["model"] = {**result["model"], "hidden_size": known.hidden, "vocab_size": known.vocab}
    if result.get("venv"):
        result["venv"] = {"create": True, **result["venv"]}
    result["start"] = {**START, **recipe.get("start", {})}
    result["verify"] = {
        "effort_parameter": family_of(recipe).effort_parameters[0], "responses_api": True, "timeout_s": 120,
        **recipe.get("verify", {}),
    }  # fmt: skip
    result["probes"] = recipe.get("probes", [])
    return result


def plan_host(host, recipe, hardware, site):
    """The servers of ``host``: a list of plan entries (fleet_node/node/server_spec.py), in the order of the recipe.

    Pure: no node is touched. The same input gives the same bytes. Raises FleetError with one sentence; the caller
    says for which host.
    """
    platform = PLATFORMS[recipe["platform"]]
    check_needs(recipe, hardware)
    platform.check_recipe(recipe, hardware)
    paths = NodePaths(site.root)
    counts = group_counts(recipe, hardware)
    names = server_names(recipe, counts)
    instances = recipe.get("instances") or {}
    unknown = sorted(set(instances) - {name for group in names.values() for name in group})
    if unknown:
        raise FleetError(
            "plan.instance-unknown",
            "instances.%s is for a server that is not there; allowed: %s. Use one of these names.",
            (unknown[0], ", ".join(name for group in names.values() for name in group)),
        )
    devices = assign(recipe, hardware, names)
    names = {base: [name for name in group if name in devices] for base, group in names.items()}
    shared = Host(recipe, hardware, site, paths, base_context(recipe, paths, host), names)
    entries, mistakes, failed, leader_first = [], Mistakes(), set(), set()
    for group in recipe["servers"]:
        base = group_name(group)
        prepared = _resolved(for_group(recipe, group), site, host)
        if prepared["start"]["order"] == "leader-first":
            leader_first.update(names[base])
        for name in names[base]:
            own = instances.get(name)
            if own is None and base in failed:
                continue  # for the same reasons
            try:
                entries.append(entry_of(shared, prepared, group, own or {}, name, devices[name]))
            except FleetError as error:
                failed |= {base} if own is None else set()
                mistakes.keep(error)
    check_ports(entries, recipe, mistakes)
    if not mistakes.errors:
        ENGINES[recipe["engine"]].check_host(entries, site.clustered, mistakes)
    mistakes.raise_any()
    platform.finish(entries, leader_first)
    for entry in entries:
        entry["start"]["restart_with_leader"] &= bool(entry["start"]["after"])
        entry["hash"] = entry_hash(entry)
    check_entries(entries)
    return entries


def for_group(recipe, group):
    """The recipe as it is for one group of servers."""
    if group["role"] == "frontend":  # another program than the workers that the recipe's own are for
        recipe = {**recipe, "arguments": {}, "config": None}
    result = dict(recipe)
    health = group.get("health") or {}
    for key in LAYERS:
        if group.get(key):
            merge = apply_container if key == "container" else apply
            result[key] = merge(recipe[key], group[key]) if recipe.get(key) else group[key]
    named = {"health_path": health.get("path"), "budget_s": health.get("budget_s")}
    given = {key: value for key, value in named.items() if value is not None}
    return {**result, "start": {**result.get("start", {}), **given}} if given else result


def secrets_of(recipe):
    """{ENV: variable} of the secrets of all groups of a recipe."""
    return {name: variable for group in recipe.get("servers", ())
            for name, variable in for_group(recipe, group).get("secrets", {}).items()}  # fmt: skip


__all__ = ["Site", "deployment", "plan_host", "secrets_of"]
