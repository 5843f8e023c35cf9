#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_run
short_description: Run a point of a benchmark of the servers of a node
version_added: 0.1.0
description:
  - Calls a benchmark tool on the node against its servers, and returns the result in a format that is the same for all
    tools (C(docs/developing/measuring.md)).
  - The tool is a background job on the node. The module starts it, waits O(wait_s) and returns its progress; repeat
    the call with the same options to follow the job.
  - A point with a valid result for the same servers, recipe and workload is not repeated without O(again=true). Failed
    and killed points are.
  - Before the load, each server must run the planned entry and answer, the tool must be installed, and the tokenizer
    must work.
  - Requests are counted in the files of the tool; its exit status is ignored. Missing requests have failed, and a
    result with failed requests is not good. Servers that restart or change during the run void it.
  - Some tools start an engine. The servers of the node stop for it after all checks, and the job starts them again
    when the tool has ended. The result is returned when they are ready.
  - The action plugin adds the recipe to the result, stores it in the history on the control node, and fails the task if
    it is not good.
options:
  servers:
    description: The plan entries to measure, from P(inference.fleet.benchmark_points#filter).
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
        description: Its devices.
        type: list
        elements: raw
        default: []
      url:
        description: URL of its API. Empty for a worker behind a frontend.
        type: str
  beside:
    description:
      - The plan entries of the node's other servers, which also stop for a tool that starts an engine.
    type: list
    elements: dict
    default: []
  point:
    description: The workload, from P(inference.fleet.benchmark_points#filter).
    type: dict
    required: true
  profile:
    description: Name of the recipe's profile, for the result.
    type: str
    default: ''
  scope:
    description: The servers that are measured together, for the result.
    type: str
    choices: [server, node, fleet]
    default: node
  environment_path:
    description: Directory of the tool's Python environment. Not for tools of the engine.
    type: path
  again:
    description: Whether to repeat a point with a valid result.
    type: bool
    default: false
extends_documentation_fragment:
  - inference.fleet.node.measured
  - inference.fleet.node
attributes:
  check_mode:
    support: full
    description: Sends no load. Returns a valid result, if one exists.
  diff_mode:
    support: none
    description: A measurement does not change the node.
  idempotent:
    support: full
    description: A point with a valid result is not repeated.
notes:
  - This module has an action plugin on the control node.
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
  description: Whether the point has a result. If not, call the module again.
  type: bool
  returned: success
document:
  description: The result; null while the tool runs, and in check mode without a result.
  type: dict
  returned: success
fleet_report:
  description: The result as a table with C(title), C(columns) and C(rows), added by the action plugin.
  type: dict
  returned: when the tool has ended, outside check mode
progress:
  description: Progress of the tool.
  type: dict
  returned: success
  contains:
    phase:
      description: The tool and the number of completed requests.
      type: str
    percent:
      description: Percent of the requests, or null.
      type: int
    requests_done:
      description: Completed requests, or null.
      type: int
restarted:
  description:
    - Names of the servers that were stopped for the tool and started again. The action plugin voids their verdicts.
  type: list
  elements: str
  returned: success
path:
  description: The file of the result on the control node, added by the action plugin.
  type: str
  returned: if it was stored
"""
