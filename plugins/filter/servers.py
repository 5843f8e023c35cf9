# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on lists of plan entries and servers, the folder of their reports, benchmarks, and shared services.

Ansible loads all filters when it needs one of them, so these import the planner only when they are called.
"""

from __future__ import annotations

import functools
import importlib
import math

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.server_spec import answers
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.server_values import (
    container_engines,
    container_images,
    registries,
    secret_names,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.runs import reports_dir


def answering_servers(servers):
    """Return the servers that clients send requests to: not the workers behind a frontend."""
    return [entry for entry in servers if answers(entry)]


def poll_wait(servers):
    """Return the seconds that a call waits for servers: enough for two checks, at least 9."""
    return max(9, math.ceil(min((entry["health"]["poll_s"] for entry in servers), default=1)))


def poll_retries(servers):
    """Return the number of calls, a second apart: for the longest budget, twice for servers that start after others."""
    budget = max((entry["health"]["budget_s"] for entry in servers), default=1)
    chains = 2 if any(entry["start"]["after"] for entry in servers) else 1
    return max(1, math.ceil(budget * chains / (poll_wait(servers) + 1)))


def log_lines(servers):
    """Return the servers' log tails as lines:
    a heading for each, then its lines, with > before a line that resembles a heading."""
    lines = []
    for server in servers:
        tail = server.get("log_tail") or ""
        tail = tail.splitlines() if isinstance(tail, str) else list(tail)
        lines += [
            "== %s (%s) ==" % (server["name"], server.get("state")),
            *("> " + line if line.lstrip().startswith("== ") else line for line in tail),
        ]
    return lines


def drift_lines(servers):
    """Return a line for each server that differs from the plan, and a line with the remedy."""
    differing = [server for server in servers if server.get("drift")]
    lines = ["%s: %s" % (server["name"], server["drift"]) for server in differing]
    if lines:
        count = "%d of %d servers %s" % (len(lines), len(servers), "differs" if len(lines) == 1 else "differ")
        lines.append("%s from the plan. Run site.yml to repair them; see docs/using/operations.md." % count)
    return lines


def restart_gaps(servers, batches, elsewhere=(), running=None):
    """Return [sentence] for each role of a deployment that a restart leaves without a server;
    [] if each keeps a server.

    servers: entries of the host; batches: restart_batches(). elsewhere: entries of the other hosts of its
    fleet_cluster. running: names of the host's running servers, None for all. A server that serves by itself (role
    server) is not part of a deployment.
    """
    gaps = []
    for role in dict.fromkeys(entry["role"] for entry in servers if entry["role"] != "server"):
        own = {entry["name"]: entry for entry in servers if entry["role"] == role}
        if any(entry["role"] == role for entry in elsewhere):
            continue
        kept = set(own) if running is None else set(own) & set(running)
        batch = next((batch for batch in batches if set(batch) & kept and not kept - set(batch)), None)
        if batch is not None:
            budget = max(own[name]["health"]["budget_s"] for name in own if name in batch)
            gaps.append(
                "%s: no other %s of this deployment runs, so requests fail until it is ready again (start budget: "
                "%d s)" % (", ".join(name for name in batch if name in own), role, budget)
            )
    return gaps


def wave_entries(servers, wave, later):
    """Return the entries that verify a wave: its own, and servers that work with them and do not change later."""
    own = [entry for entry in servers if entry["name"] in wave]
    if all(entry["role"] == "server" for entry in own):
        return own
    return [entry for entry in servers if (entry["role"] != "server" and entry["name"] not in later) or entry in own]


def version_words(versions):
    """Return each server with the version of its definition, as a string."""
    return "; ".join("%s: %s" % item for item in versions.items()) or "not known"


PLUGINS = "ansible_collections.inference.fleet.plugins."
# Filters that import their function when they are called, because a run with a kept plan does not import the planner.
FUNCTIONS = {
    "plugin_utils.measure.points.": {
        "benchmark_elsewhere": "elsewhere_of", "benchmark_points": "points", "benchmark_scope": "scope_of",
    },
    "plugin_utils.planning.endpoint.": {
        **{"endpoint_" + one: one
           for one in ("backends", "certificate", "check_access", "hosts", "key_names", "server_keys")},
        "monitoring_limits": "limits", "monitoring_targets": "targets",
    },
    "plugin_utils.planning.server_values.": {"restart_batches": "batches"},
    "plugin_utils.planning.services.": {"service_members": "members"},
}  # fmt: skip


def call(path, *arguments, **named):
    """Return the result of a function by its path. Raises AnsibleFilterError if it raises FleetError."""
    module, _dot, function = path.rpartition(".")
    try:
        return getattr(importlib.import_module(PLUGINS + module), function)(*arguments, **named)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def engine_modules(servers):
    """Return {file name: content} of the modules that the engines of plan entries load."""
    registry = importlib.import_module(PLUGINS + "module_utils.fleet_node.engines.registry")
    return registry.module_texts([registry.engine_of(one) for one in servers])


def image_reference(image, digest=""):
    """Return the name of a pulled image on a node."""
    return call("module_utils.fleet_node.containers.engine.digest_tag", image, digest) if digest else image


def unit_word(word):
    """systemd.unit_word() of an argument, which may be a number in an inventory."""
    return call("module_utils.fleet_node.services.systemd.unit_word", str(word))


OWN = (
    answering_servers, container_engines, container_images, drift_lines, engine_modules, image_reference, log_lines,
    poll_retries, poll_wait, registries, reports_dir, restart_gaps, secret_names, unit_word, version_words,
    wave_entries,
)  # fmt: skip


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Return {name: function}."""
        later = {
            name: functools.partial(call, module + function)
            for module, functions in FUNCTIONS.items()
            for name, function in functions.items()
        }
        return {**{one.__name__: one for one in OWN}, **later}
