# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on lists of plan entries and servers, the folder of their reports, benchmarks, and shared services.

Ansible loads all filters when it needs one of them, so these import the planner only when they are called.
"""

from __future__ import annotations

import importlib
import math

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.server_lists import (
    container_engines,
    container_images,
    registries,
    secret_names,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_dir


def poll_delay(servers):
    """Return the seconds between two checks: the shortest interval of the servers, at least 1."""
    return max(1, math.ceil(min((entry["health"]["poll_s"] for entry in servers), default=1)))


def poll_retries(servers):
    """Return the number of checks: the longest budget, plus that of servers that start after another server."""
    budget = max((entry["health"]["budget_s"] for entry in servers), default=1)
    chains = 2 if any(entry["start"]["after"] for entry in servers) else 1
    return max(1, math.ceil(budget * chains / poll_delay(servers)))


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


def restart_batches(servers, meant):
    """server_lists.batches(). Raises AnsibleFilterError if a selected server is not planned."""
    return _call("plugin_utils.planning.server_lists", "batches", servers, meant)


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
POINTS = "plugin_utils.measure.points"


def _call(module, function, *arguments, **named):
    """Return the result of a function. Raises AnsibleFilterError if it raises FleetError."""
    try:
        return getattr(importlib.import_module(PLUGINS + module), function)(*arguments, **named)
    except FleetError as error:
        raise AnsibleFilterError(error.message) from error


def benchmark_elsewhere(entries, variables_of):
    """points.elsewhere_of()."""
    return _call(POINTS, "elsewhere_of", entries, variables_of)


def benchmark_points(servers, deployment, profile=None, elsewhere=()):
    """points.points()."""
    return _call(POINTS, "points", servers, deployment, profile or None, elsewhere)


def benchmark_scope(deployment, profile=None):
    """points.scope_of()."""
    return _call(POINTS, "scope_of", deployment, profile or None)


def image_reference(image, digest=""):
    """Return the name of a pulled image on a node."""
    return _call("module_utils.fleet_node.containers.engine", "digest_tag", image, digest) if digest else image


def service_members(*arguments, **named):
    """planning.services.members()."""
    return _call("plugin_utils.planning.services", "members", *arguments, **named)


def unit_word(word):
    """systemd.unit_word() of an argument, which may be a number in an inventory."""
    return _call("module_utils.fleet_node.services.systemd", "unit_word", str(word))


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Return {name: function}."""
        return {
            "benchmark_elsewhere": benchmark_elsewhere,
            "benchmark_points": benchmark_points,
            "benchmark_scope": benchmark_scope,
            "container_engines": container_engines,
            "container_images": container_images,
            "drift_lines": drift_lines,
            "image_reference": image_reference,
            "log_lines": log_lines,
            "poll_delay": poll_delay,
            "poll_retries": poll_retries,
            "registries": registries,
            "reports_dir": reports_dir,
            "restart_batches": restart_batches,
            "restart_gaps": restart_gaps,
            "secret_names": secret_names,
            "service_members": service_members,
            "unit_word": unit_word,
            "version_words": version_words,
            "wave_entries": wave_entries,
        }
