# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""update.yml for two servers of an engine that does not refuse requests while it drains, behind a real HAProxy: these
tests build on each other. And updates of several hosts that end early."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE, play
from ansible_collections.inference.fleet.tests.unit.engines import proxy
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    NEEDS,
    SUPERVISED,
    SmallNode,
    copy_engine,
    free_port,
    host_variables,
    wait_until,
    watched,
)
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, hosts_file, play_tasks, tasks_play
from ansible_collections.inference.fleet.tests.unit.test_endpoint_proxy import DEPLOYMENT, KEYS, MODEL, Load

SERVERS = ("server-0", "server-1")
HERE = {**LOCAL, "ansible_become": False}


class Site:
    """Roots of this machine as hosts, HAProxies as the hosts of the group endpoint, and runs of update.yml."""

    def __init__(self, folder, hosts=("n1",), endpoints=("n1",)):
        self.folder, self.names = folder, endpoints
        self.nodes = {name: SmallNode(folder / name) for name in hosts}
        (folder / "model").mkdir()
        for name in endpoints:
            (folder / ("proxy-" + name)).mkdir()
        ports = [free_port() for _number in range(len(hosts) * len(SERVERS))][:: len(SERVERS)]
        override = {  # engines whose streams take a while
            "needs": NEEDS, "model": {"path": str(folder / "model"), "id": MODEL},
            "command": [sys.executable, "-S", copy_engine(folder)], "environment": {"ENGINE_STREAM_SECONDS": "0.5"},
        }  # fmt: skip
        common = {
            "ansible_become": False, "fleet_reports_dir": str(folder / "reports"), "fleet_verify": "quick",
            "endpoint_address": "127.0.0.1", **SUPERVISED,
        }  # fmt: skip
        self.hosts = {
            name: host_variables(
                node.root, fleet_override={**override, "servers": {"server": {"count": 2, "port": port}}}, **common
            )
            for (name, node), port in zip(self.nodes.items(), ports)
        }
        # role variables have precedence over those of hosts
        socket = {"endpoint_socket": str(folder) + "/proxy-{{ item }}/admin.sock"}
        self.arguments = ["--skip-tags", "endpoint,prepare,weights", "-e", json.dumps(socket)]
        self.plan(*hosts)

    def plan(self, *hosts, **arguments):
        """Plan these arguments of the engine for some hosts."""
        for name in hosts:
            self.hosts[name]["fleet_override"]["arguments"] = arguments
        endpoints = {"hosts": {name: {} if name in self.hosts else HERE for name in self.names}}
        self.inventory = hosts_file(self.folder, self.hosts, endpoint=endpoints)

    def update(self, *arguments):
        return play("playbooks/update.yml", self.inventory, *self.arguments, *arguments, timeout=1800)

    def killed(self, condition, seconds):
        """Start an update and kill it when the condition is true, at the latest after so many seconds."""
        command = [BIN / "ansible-playbook", "playbooks/update.yml", "-i", self.inventory, *self.arguments]
        killed = subprocess.Popen(command, cwd=CLONE, stdout=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + seconds
        while killed.poll() is None and time.monotonic() < end and not condition():
            time.sleep(0.05)
        if killed.poll() is None:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()

    def entries(self, host="n1"):
        return [json.loads(Path(self.nodes[host].paths.entry(name)).read_text()) for name in SERVERS]

    def planned(self, host="n1"):
        """The argument of each server."""
        return [entry["arguments"].get("max-num-seqs") for entry in self.entries(host)]

    @contextlib.contextmanager
    def endpoints(self):
        """Run the endpoints, at `ports`, and wait until they have all servers."""
        self.proxies, self.ports = [], []
        # the proxies are other hosts, to which servers on loopback would not be reachable
        bind = {} if set(self.names) <= set(self.hosts) else {"bind": "0.0.0.0"}
        plans = [([{**one, **bind} for one in self.entries(host)], DEPLOYMENT) for host in self.hosts]
        variables = {host: {"ansible_host": "127.0.0.1"} if bind else {} for host in self.hosts}
        with contextlib.ExitStack() as stack:
            for name in self.names:
                port, metrics = free_port(), free_port()
                given = {"endpoint_address": "127.0.0.1", "endpoint_port": port, "endpoint_metrics_port": metrics}
                folder = self.folder / ("proxy-" + name)
                path = proxy.rendered(folder, plans, variables, name, endpoint_keys=KEYS, **given)
                self.proxies.append(stack.enter_context(proxy.Proxy(path)))
                self.ports.append(port)
            wait_until(lambda: self.states() == {"UP"})
            yield self

    def states(self):
        """The states of all servers at all endpoints."""
        found = [state for one in self.proxies for server, state in one.states().items()
                 if server.startswith("model.%s/" % MODEL)]  # fmt: skip
        assert len(found) == len(self.names) * len(self.hosts) * len(SERVERS)
        return set(found)


@contextlib.contextmanager
def updated(folder, *names):
    """A Site that update.yml has deployed, with its endpoints; no HAProxy runs yet in that run."""
    proxy.require_haproxy()
    with watched(folder):
        site = Site(folder, *names)
        try:
            site.update().ok()
            with site.endpoints():
                yield site
        finally:
            for node in site.nodes.values():
                node.end()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with updated(tmp_path_factory.mktemp("update")) as one:
        yield one


def test_without_a_plan_before_a_rollback_changes_nothing(site):
    run = site.update("-e", "fleet_rollback=true")
    run.failed("hosts without a previous plan: n1. Nothing was changed.")
    assert run.count("changed") == 0


def test_a_bad_argument_leaves_the_old_servers(site):
    node = site.nodes["n1"]
    before, second = site.entries(), node.running("server-1")
    site.plan("n1", die=True)
    with Load(site.ports[0], clients=2) as load:
        run = site.update()
    run.failed("server-0 failed with the new definition", "restored and answers: server-0. Changed before: none.")
    assert (site.entries(), node.running("server-1"), site.states()) == (before, second, {"UP"})
    assert load.failed() == []
    assert len(load.answers) > 4


def test_a_killed_update_is_completed_by_the_next(site):
    site.plan("n1", **{"max-num-seqs": 8})
    with Load(site.ports[0], clients=2) as load:
        site.killed(lambda: "DRAIN" in site.states(), 300)
        assert "DRAIN" in site.states()
        site.update().ok()
    assert (site.planned(), site.states()) == ([8, 8], {"UP"})
    assert (load.failed(), len(load.answers) > 4) == ([], True)


# -- an endpoint that cannot be reached, and an incomplete rollback ----------------------------------------------------

AWAY = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-F none"}


@pytest.mark.parametrize("second", [HERE, AWAY])
def test_no_endpoint_drains_if_another_cannot_be_reached(tmp_path, second):
    """HAProxy's runtime socket is a file that a program named socat writes."""
    asked, program = tmp_path / "asked", tmp_path / "bin" / "socat"
    program.parent.mkdir()
    script(program, "cat >> %s\nexit 1\n" % asked)
    task = {"ansible.builtin.include_role": {"name": "inference.fleet.endpoint", "tasks_from": "admission"}}
    variables = {"endpoint_server_state": "drain", "endpoint_names": ["n1.server-0"]}
    inventory = hosts_file(tmp_path, {"n1": HERE}, ["cpu"], endpoint={"hosts": {"e1": HERE, "e2": second}})
    path = {"PATH": "%s:%s" % (program.parent, os.environ["PATH"])}
    run = play_tasks(tmp_path, [task], variables=variables, inventory=inventory, hosts="n1", environment=path)
    if second is HERE:
        run.ok()
        assert asked.read_text().count("show servers state") == 2
    else:
        run.failed("The endpoint e2 cannot be reached", "Nothing was stopped.")
        assert (asked.exists(), run.count("failed")) == (False, 1)


def test_a_rollback_that_was_interrupted_goes_on(tmp_path):
    """The plan before that update.yml selects for two hosts with kept plans."""
    hosts = {name: host_variables(tmp_path / name, ansible_become=False) for name in ("n1", "n2")}
    hosts["n2"]["fleet_override"] = {"servers": {"server": {"port": 9000}}}  # both are this machine
    inventory = hosts_file(tmp_path, hosts, ["cpu"])
    shown = "{'hash': serve_kept_hash, 'fleet': serve_kept_fleet, 'plan': (update_plan | default({'hash': ''})).hash}"
    copy = {"content": "{{ %s }}" % shown, "dest": "%s/{{ inventory_hostname }}.json" % tmp_path}

    def run(tasks):
        """{host: {hash, fleet, plan}} after a file of tasks."""
        include = {"ansible.builtin.include_tasks": str(CLONE / tasks)}
        given = {"fleet_servers": "{{ lookup('inference.fleet.plan') }}"}
        plays = [{"import_playbook": str(CLONE / "playbooks/steps/plan.yml")},
                 tasks_play([include, {"ansible.builtin.copy": copy}], hosts="cpu", vars=given)]  # fmt: skip
        (tmp_path / "play.yml").write_text(json.dumps(plays))
        play(str(tmp_path / "play.yml"), inventory).ok()
        return {host: json.loads((tmp_path / (host + ".json")).read_text()) for host in hosts}

    def selected():
        return [one["plan"] for one in run("playbooks/tasks/plan_before.yml").values()]

    def path(host):
        return tmp_path / host / "var/lib/inference-fleet/plans.json"

    def keep(host, **plan):
        path(host).write_text(json.dumps({"servers": [], "deployment": {}, **plan}))

    for host in hosts:
        path(host).parent.mkdir(parents=True)
    path("n1").write_text("")  # after a power failure
    now = run("roles/serve/tasks/kept_plans.yml")
    before = {"hash": "old", "fleet": "old", "servers": [], "deployment": {}}

    def updated(host, **changes):
        keep(host, **{"hash": now[host]["hash"], "fleet": now[host]["fleet"], "before": before, **changes})

    updated("n1")
    keep("n2", **before)  # the update did not complete it
    assert selected() == ["old", "old"]
    updated("n1", hash="old", before={"hash": now["n1"]["hash"]})  # the rollback has completed it
    updated("n2", fleet="of an earlier update")  # the last one did not change it
    assert selected() == ["old", now["n2"]["hash"]]
