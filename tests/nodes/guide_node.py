# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated node on which the steps of a guide are run, and the results of its measurements."""

from __future__ import annotations

import json

import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.nodes import measuring_tools
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tools import nodes as tool

NO_INDEX = {"PIP_NO_INDEX": "1"}
WHEELS = "/opt/shared/tools"  # the stand-ins for measuring tools


class GuideNode:
    """A node and the variables of its inventory."""

    def __init__(self, node, folder, **variables):
        self.node, self.folder, self.reports = node, folder, folder / "reports"
        self.inventory = folder / "hosts.yml"
        self.variables = {
            "toolkit_find_links": ["/opt/shared/wheels"],
            "toolkit_environment": NO_INDEX,
            "tiktoken_encodings_sources": [{"type": "file", "path": "/opt/shared/encodings"}],
            "verify_simulated": "the accelerators and the engine",
            "fleet_reports_dir": str(self.reports),
            **variables,
        }
        host = {**node.variables(), "ansible_python_interpreter": "/usr/bin/python3"}
        platform, *others = tool.read_platform(node.platform).groups
        groups = {name: {"children": {platform: {}}} for name in others}
        self.inventory.write_text(yaml.safe_dump({platform: {"hosts": {node.name: host}}, **groups}))

    def play(self, playbook, *arguments, **variables):
        """Run a playbook of the clone with the node's variables and these."""
        project = {"MOLECULE_PROJECT_DIRECTORY": str(CLONE)}
        variables = {**self.variables, **variables}
        return play(playbook, self.inventory, *arguments, variables=variables, environment=project, timeout=300)

    @property
    def results(self):
        """The results of measurements, the oldest first."""
        return result.history(str(self.reports))[0]

    def measure(self, playbook, **variables):
        """Run benchmark.yml or evaluate.yml with the stand-ins for tools. Return the new results."""
        kind = playbook.partition(".")[0]
        prefix = {"evaluate": "evaluate_", "benchmark": "benchmark_"}[kind]
        given = {"find_links": [WHEELS], "environment": NO_INDEX, "poll_s": 1}
        known = {one["id"] for one in self.results}
        self.play("playbooks/" + playbook, **{prefix + name: value for name, value in given.items()}, **variables).ok()
        return [one for one in self.results if one["id"] not in known]

    def address(self, path):
        """What the node's first server answers to a GET."""
        code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000%s').read().decode())" % path
        return json.loads(self.node.ssh('/usr/bin/python3 -c "%s"' % code))


def share(folder):
    """Make the stand-ins for tools in a folder. Return the share of a node for them."""
    folder.mkdir()
    measuring_tools.make_wheels(folder)
    return "%s:%s" % (folder, WHEELS)
