# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""update.yml for two servers of an engine that does not refuse requests while it drains, behind a real HAProxy.
The tests build on each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import hosts_file
from ansible_collections.inference.fleet.tests.unit.test_endpoint_proxy import DEPLOYMENT, KEYS, MODEL, Load

SERVERS = ("server-0", "server-1")


def override_of(folder, port):
    """Two engines of a folder whose streams take a while."""
    return {
        "servers": {"server": {"count": 2, "port": port}}, "needs": NEEDS,
        "model": {"path": str(folder / "model"), "id": MODEL},
        "command": [sys.executable, "-S", copy_engine(folder)], "environment": {"ENGINE_STREAM_SECONDS": "0.5"},
    }  # fmt: skip


class Site:
    """The host n1, which is also the endpoint, and runs of update.yml for it."""

    def __init__(self, folder):
        self.folder, self.node = folder, SmallNode(folder / "root")
        for name in ("proxy", "model"):
            (folder / name).mkdir()
        self.override = override_of(folder, free_port())
        self.host = host_variables(
            self.node.root, ansible_become=False, fleet_reports_dir=str(folder / "reports"), fleet_verify="quick",
            fleet_override=self.override, endpoint_address="127.0.0.1", **SUPERVISED,
        )  # fmt: skip
        self.arguments = ["--skip-tags", "endpoint,prepare,weights"]
        self.arguments += ["-e", "endpoint_socket=%s" % (folder / "proxy" / "admin.sock")]
        self.plan()

    def plan(self, **arguments):
        """Plan these arguments of the engine."""
        self.override["arguments"] = arguments
        self.inventory = hosts_file(self.folder, {"n1": self.host}, endpoint={"hosts": {"n1": {}}})

    def update(self, *arguments):
        return play("playbooks/update.yml", self.inventory, *self.arguments, *arguments, timeout=600)

    def entries(self):
        return [json.loads(Path(self.node.paths.entry(name)).read_text()) for name in SERVERS]

    def planned(self):
        return [entry["arguments"].get("max-num-seqs") for entry in self.entries()]

    def start_endpoint(self):
        port, metrics = proxy.open_ports(2)
        given = {"endpoint_address": "127.0.0.1", "endpoint_port": port, "endpoint_metrics_port": metrics}
        plans = [(self.entries(), DEPLOYMENT)]
        path = proxy.rendered(self.folder / "proxy", plans, {"n1": {}}, "n1", endpoint_keys=KEYS, **given)
        self.running, self.port = proxy.Proxy(path), port
        return self.running

    def states(self):
        return [self.running.states()["model.%s/n1.%s" % (MODEL, name)] for name in SERVERS]

    def load(self):
        return Load(self.port, clients=2)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    proxy.require_haproxy()
    folder = tmp_path_factory.mktemp("update")
    with watched(folder):
        one = Site(folder)
        try:
            one.update().ok()  # HAProxy does not run yet
            with one.start_endpoint():
                wait_until(lambda: one.states() == ["UP", "UP"])
                yield one
        finally:
            one.node.end()


def test_without_a_plan_before_a_rollback_changes_nothing(site):
    run = site.update("-e", "fleet_rollback=true")
    run.failed("hosts without a previous plan: n1. Nothing was changed.")
    assert run.count("changed") == 0


def test_a_bad_argument_leaves_the_old_servers(site):
    before, second = site.entries(), site.node.running("server-1")
    site.plan(die=True)
    with site.load() as load:
        run = site.update()
    run.failed("server-0 failed with the new definition", "server-0: old, rolled back; server-1: old.")
    assert (site.entries(), site.node.running("server-1"), site.states()) == (before, second, ["UP", "UP"])
    assert load.failed() == []
    assert len(load.answers) > 4


def test_a_killed_update_is_completed_by_the_next(site):
    site.plan(**{"max-num-seqs": 8})
    command = [BIN / "ansible-playbook", "playbooks/update.yml", "-i", site.inventory, *site.arguments]
    with site.load() as load:
        killed = subprocess.Popen(command, cwd=CLONE, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: "DRAIN" in site.states(), 300)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert "DRAIN" in site.states()
        site.update().ok()
    assert (site.planned(), site.states()) == ([8, 8], ["UP", "UP"])
    assert (load.failed(), len(load.answers) > 4) == ([], True)
