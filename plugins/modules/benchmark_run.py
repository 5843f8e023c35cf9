#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_run
short_description: One point of a benchmark of servers of a node
version_added: 0.1.0
description:
  - Runs one call of a benchmark tool on the node against its servers, and returns the result in the form that all tools
    share. C(docs/developing/measuring.md) describes the form.
  - The tool is a job on the node that continues when the connection breaks. The module starts it, waits a little, and
    returns its progress; called again with the same options it looks at the same job.
  - A point whose result counts is not run again for the same servers, recipe and workload, unless O(again=true). One
    that failed, or that was killed, is.
  - Before load is sent, each server must run the planned entry and answer, the tool must be there, and the tokenizer
    must split a sentence.
  - Requests are counted by what the tool wrote, never by how it ended. Whatever of the requests is missing has failed,
    and a result with failed requests is not good. Servers that restarted or changed during the run void it.
  - Some tools start an engine of their own. The servers of the node are stopped for it when all checks have passed.
    They come back when the tool has ended, however that was and whoever waits for it; the point has its result when
    they are ready again.
  - An action plugin of the same name adds what the recipe says, keeps the result in the history on the controller, and
    fails the task where the result is not good.
options:
  servers:
    description: The plan entries that are measured, as P(inference.fleet.benchmark_points#filter) returns them.
    type: list
    elements: dict
    required: true
  elsewhere:
    description: Measured servers of other hosts.
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description: Name of the host.
        type: str
        required: true
      name:
        description: Name of the server.
        type: str
        required: true
      hash:
        description: Hash of its plan entry.
        type: str
        required: true
      devices:
        description: Its devices, which are counted.
        type: list
        elements: raw
        default: []
      url:
        description: Where it is asked. None for a worker behind a frontend.
        type: str
  beside:
    description:
      - The plan entries of the node's other servers. They stop with those of O(servers) for a tool that starts an
        engine of its own.
    type: list
    elements: dict
    default: []
  point:
    description: The workload, as P(inference.fleet.benchmark_points#filter) returns it.
    type: dict
    required: true
  profile:
    description: Name of the recipe's profile, for the result.
    type: str
    default: ''
  scope:
    description: What is measured together, for the result.
    type: str
    choices: [server, node, fleet]
    default: node
  environment_path:
    description: Folder of the tool's Python environment. Tools of the engine's own need none.
    type: path
  again:
    description: Whether to run a point again whose result counts.
    type: bool
    default: false
extends_documentation_fragment:
  - inference.fleet.measured
  - inference.fleet.node
attributes:
  check_mode:
    support: full
    description: Nothing is sent. It says whether there is a result that counts.
  diff_mode:
    support: none
    description: A measurement is no change of the node.
  idempotent:
    support: full
    description: A point with a result that counts is not run again.
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Measure each point
  inference.fleet.benchmark_run:
    servers: "{{ one.servers }}"
    point: "{{ one.point }}"
    deployment: "{{ fleet_deployment }}"
    environment_path: /var/lib/inference-fleet/venvs/aiperf
  register: measured
  until: measured is failed or measured.finished
  retries: 720
  delay: 1
  loop: "{{ fleet_servers | inference.fleet.benchmark_points(fleet_deployment) }}"
  loop_control:
    loop_var: one
    label: "{{ one.label }}"
"""

RETURN = r"""
finished:
  description: Whether the point has a result. Where not, the tool is still at work; call the module again.
  type: bool
  returned: success
document:
  description: The result; null while the tool is at work, and in check mode where there is none.
  type: dict
  returned: success
fleet_report:
  description: The result as a table for people, C(title), C(columns) and C(rows), added by the action plugin.
  type: dict
  returned: when it has ended, outside check mode
progress:
  description: How far the tool is.
  type: dict
  returned: success
  contains:
    phase:
      description: The tool, and how many of the requests have ended.
      type: str
    percent:
      description: Percent of the requests; null where the tool does not tell.
      type: int
    requests_done:
      description: Requests that have ended; null where the tool does not tell.
      type: int
restarted:
  description:
    - Names of the servers that were stopped for the tool and started again. What was verified of them is no longer
      known; the action plugin voids their verdicts in the reports.
  type: list
  elements: str
  returned: success
path:
  description: The file of the result on the controller, added by the action plugin.
  type: str
  returned: when it was kept
"""
