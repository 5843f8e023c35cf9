# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of this machine, each with one scripted server, and the playbooks that are run for them."""

from __future__ import annotations

import contextlib
import json
import sys

import yaml
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.deployed import a_port, holding, write_down
from ansible_collections.inference.fleet.tests.unit.engines.small_node import host_variables

NO_NODE = {"ansible_python_interpreter": "/nowhere/python"}  # fails whatever it is asked, as a broken node does


class Fleet:
    """Hosts n1, n2, … of this machine, each with one server on a port of its own, that verify.yml asks."""

    def __init__(self, folder, *ports):
        """ports: of servers that nobody deploys, or None for one of its own, which deployed() serves."""
        self.folder = folder
        self.listeners = [a_port() for port in ports if port is None]
        own = iter(self.listeners)
        ports = [port or next(own).getsockname()[1] for port in ports]
        self.reports = folder / "reports"
        self.hosts = {
            "n%d" % number: host_variables(
                folder / ("root%d" % number), fleet_override={"servers": {"server": {"count": 1, "port": port}}}
            )
            for number, port in enumerate(ports, 1)
        }

    def play(self, *arguments, playbook="playbooks/verify.yml", broken=(), **options):
        """Run the playbook; `broken` names hosts that nothing can be run on. options: of play()."""
        hosts = {name: {**one, **(NO_NODE if name in broken else {})} for name, one in self.hosts.items()}
        inventory = self.folder / "hosts.yml"
        # a host without a recipe, whatever its groups are, is nobody's
        bastion = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        groups = {"cpu": {"hosts": hosts}, "vllm": {"children": {"cpu": {}}}, "bastions": {"hosts": {"b1": bastion}}}
        inventory.write_text(yaml.safe_dump(groups))
        options.setdefault("variables", {"fleet_reports_dir": str(self.reports), "fleet_verify": "quick"})
        return play(playbook, inventory, *arguments, **{"timeout": 600, **options})

    @contextlib.contextmanager
    def deployed(self, *engines):
        """The servers of n1, n2, … as planned, deployed in front of these engines for the block."""
        plan = self.folder / "plan.json"
        self.play("-e", "fleet_plan_file=%s" % plan, playbook="playbooks/plan.yml").ok()
        planned = json.loads(plan.read_text())
        with contextlib.ExitStack() as stack:
            for (name, host), listener, engine in zip(self.hosts.items(), self.listeners, engines):
                (entry,), root = planned[name], host["fleet_root"]
                pid = stack.enter_context(holding(listener, engine.port, root, entry["name"]))
                write_down(root, entry, pid)
            yield self

    @property
    def verdict(self):
        return json.loads((self.reports / "verdict.json").read_text())

    @property
    def missing(self):
        return [name for name, host in self.verdict["hosts"].items() if host.get("missing")]
