# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters on lists of plan entries and servers, and where their reports go."""

from __future__ import annotations

import math

from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.module_utils.containers.engine import split_reference
from ansible_collections.inference.fleet.plugins.module_utils.containers.images import DOCKER_HUB, mirrored
from ansible_collections.inference.fleet.plugins.module_utils.engines.registry import API_KEYS
from ansible_collections.inference.fleet.plugins.module_utils.servers.api_keys import api_keys, is_file
from ansible_collections.inference.fleet.plugins.module_utils.servers.start_order import leaders_to_follow, start_order
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.folder import reports_dir


def secret_names(servers):
    """Names of the variables that hold the servers' secrets, sorted, each once."""
    return sorted({one for entry in servers for one in entry["secrets"].values() if not is_file(one)})


def api_key_names(servers):
    """Names of the variables that hold the API keys which the servers' clients send, each once."""
    named = (entry["secrets"][name] for entry in servers for name in API_KEYS if name in entry["secrets"])
    return list(dict.fromkeys(named))


def client_key(values):
    """The API key that clients send, of the values of api_key_names(); "" where there is none."""
    keys = [key for value in values for key in api_keys(value)]
    return keys[0] if keys else ""


def poll_delay(servers):
    """Seconds between two looks: the shortest that a server asks for, at least 1."""
    return max(1, math.ceil(min((entry["health"]["poll_s"] for entry in servers), default=1)))


def poll_retries(servers):
    """How often to look: the longest budget, and that of those started after another one on top."""
    budget = max((entry["health"]["budget_s"] for entry in servers), default=1)
    chains = 2 if any(entry["start"]["after"] for entry in servers) else 1
    return max(1, math.ceil(budget * chains / poll_delay(servers)))


def log_lines(servers):
    """The servers' log tails as lines: a heading for each, then its lines."""
    lines = []
    for server in servers:
        tail = server.get("log_tail") or ""
        tail = tail.splitlines() if isinstance(tail, str) else list(tail)
        lines += ["== %s (%s) ==" % (server["name"], server.get("state")), *tail]
    return lines


def drift_lines(servers):
    """What differs from the plan, a line for each server and a last one on what to do; empty where nothing does."""
    differing = [server for server in servers if server.get("drift")]
    lines = ["%s: %s" % (server["name"], server["drift"]) for server in differing]
    if lines:
        count = "%d of %d servers %s" % (len(lines), len(servers), "differs" if len(lines) == 1 else "differ")
        lines.append("%s from the plan. site.yml brings them to it; docs/using/status.md has the rest." % count)
    return lines


def container_engines(servers):
    """Engines of this node that the servers' containers run in, sorted; none that listens at an address of its own."""
    found = [entry["container"] for entry in servers if entry["container"]]
    return sorted({container["engine"] for container in found if not container["address"]})


def container_images(servers):
    """[{engine, address, image, digest}] of the servers' containers, each once, in the servers' order."""
    found = []
    for entry in servers:
        if entry["container"]:
            image = {key: entry["container"][key] for key in ("engine", "address", "image", "digest")}
            found += [image] if image not in found else []
    return found


def registries(images, mirror=""):
    """Hosts of the registries that images (container_images) are pulled from, through the mirror where one is set."""
    names = (split_reference(mirrored(image["image"], mirror))[0] for image in images)
    return sorted({name or DOCKER_HUB for name in names})


def restart_batches(servers, meant):
    """[[names]] of the servers that are meant, leaders first, each with those that restart with it. AnsibleFilterError.

    meant: a name, several with commas between them, a list of names, or "all".
    """
    entries = {entry["name"]: entry for entry in servers}
    host, known = (servers[0]["host"] if servers else "this host"), ", ".join(entries) or "none"
    names = [name.strip() for name in meant.split(",") if name.strip()] if isinstance(meant, str) else meant
    if not names or not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise AnsibleFilterError(
            "fleet_server %s: say which servers to restart, -e fleet_server=NAME, several with commas between them, "
            "or all. "
            "On %s there are: %s." % ("is missing" if not meant else "is %r" % (meant,), host, known)
        )
    names = list(entries) if list(names) == ["all"] else names
    unknown = sorted(set(names) - set(entries))
    if unknown:
        raise AnsibleFilterError(
            "fleet_server names %s, which %s not planned for %s; there are: %s. --limit takes other hosts out."
            % (", ".join(unknown), "is" if len(unknown) == 1 else "are", host, known)
        )
    batches, done = [], set()
    for name in start_order(entries):
        if name in names and name not in done:
            batch = [name]
            for other in start_order(entries):  # leaders come first, so that followers of followers are found
                if other not in batch and set(leaders_to_follow(entries[other])) & set(batch):
                    batch.append(other)
            batches.append(batch)
            done.update(batch)
    return batches


class FilterModule:
    """Filters of inference.fleet."""

    def filters(self):
        """Name → function."""
        return {
            "api_key_names": api_key_names,
            "client_key": client_key,
            "container_engines": container_engines,
            "container_images": container_images,
            "drift_lines": drift_lines,
            "log_lines": log_lines,
            "poll_delay": poll_delay,
            "poll_retries": poll_retries,
            "registries": registries,
            "reports_dir": reports_dir,
            "restart_batches": restart_batches,
            "secret_names": secret_names,
        }
