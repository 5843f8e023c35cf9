#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_verify
short_description: Verify the servers of a node
version_added: 0.1.0
description:
  - Sends the requests of a real client to the port of every server and checks model name, chat,
    separate reasoning, reasoning effort, tool calls, the responses API, streaming, concurrent requests, and the
    recipe's probes.
  - Each probe has a verdict, V(true), V(false), or null if it cannot be measured. A failed probe has the request, the
    response and the usual cause.
  - Entries with the role C(server) or C(frontend) and a port are probed, in parallel. Others are ignored.
  - The module runs on the node, because ports may be bound to loopback. Its action plugin writes the reports on the
    control node and fails the task if a verdict is V(false).
  - A verdict applies to the planned process. Before and after the probes, the process with the port must be that of
    the deployed entry, for containers by their labels, and the deployed and the running entry must have the plan's
    hash. Otherwise the verdict is V(false) and contains the process that answers.
  - The process of a server that passed is recorded in C(run/inference-fleet/ready), so that a later run recognizes a
    hanging server. This is not a change, and not done in check mode.
options:
  servers:
    description:
      - Plan entries of this host.
    type: list
    elements: dict
    required: true
  workers_elsewhere:
    description:
      - Workers of the same deployment on other hosts. A frontend must find them too, and their counters are read.
        Their own hosts verify their processes.
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description:
          - Name in the inventory.
        type: str
        required: true
      name:
        description:
          - Name of the server.
        type: str
        required: true
      role:
        description:
          - Role of the worker.
        type: str
        choices: [prefill, decode]
        required: true
      bind:
        description:
          - Address of its ports.
        type: str
        required: true
      ports:
        description:
          - Its ports by name; C(system) has its counters.
        type: dict
        default: {}
  mode:
    description:
      - V(full) runs all probes, V(quick) reads the model name and sends a completion.
      - V(auto) is V(quick) if O(servers_changed) is V(false) and the host's report below O(reports_dir) contains a
        passed full verdict of the same servers. Otherwise it is V(full).
      - Without O(reports_dir) only O(servers_changed) counts.
    type: str
    choices: [auto, full, quick]
    default: auto
  servers_changed:
    description:
      - Whether an earlier task started or restarted servers, or would have in check mode. Omit it if unknown.
      - In check mode, servers that would be changed are not verified.
    type: bool
  probes:
    description:
      - Probes of the recipe, which are sent last.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description:
          - Name of the probe in the report.
        type: str
        required: true
      path:
        description:
          - Path of the request.
        type: str
        default: /v1/chat/completions
      body:
        description:
          - JSON body of a POST request. The key C(model) is added. Without a body the request is a GET.
        type: dict
      expect:
        description:
          - Expected response.
        type: dict
        suboptions:
          status:
            description:
              - HTTP status.
            type: int
            default: 200
          contains:
            description:
              - Strings that the body must contain.
            type: list
            elements: str
            default: []
          field:
            description:
              - Dotted path of a value that must not be empty, such as V(choices.0.message.content).
            type: str
  effort_parameter:
    description:
      - Parameter of a request for the reasoning effort. Some engines read it from C(chat_template_args).
    type: str
    choices: [reasoning_effort, chat_template_args]
    default: reasoning_effort
  responses_api:
    description:
      - Whether C(/v1/responses) must work. Otherwise the probe is null.
    type: bool
    default: true
  timeout:
    description:
      - Seconds for a request. The limit of the first completion is five times, of the sequence fifteen times as long.
      - The health path and C(/v1/models) have up to 10 seconds.
    type: float
    default: 120
  quick_timeout:
    description:
      - Seconds for V(quick).
    type: float
    default: 20
  reports_dir:
    description:
      - Directory on the control node for the reports, which is created. Empty for no reports. For the action plugin.
      - A relative path is relative to the directory of C(ansible-playbook).
      - A report is not a change. Nothing is written in check mode.
      - If it cannot be written, the module warns and does not fail.
    type: path
    default: ""
  deployment:
    description:
      - The recipe as resolved for this host, C(lookup('inference.fleet.plan', field='deployment')), for the report.
        For the action plugin.
    type: dict
    default: {}
  simulated:
    description:
      - Description of simulated parts of this host, such as V(driver and engine), for the reports. For the action
        plugin.
    type: str
    default: ""
  problem:
    description:
      - An earlier error, such as a server that did not become ready. The host's report contains it and is not good;
        the task fails only for failed probes. For the action plugin.
    type: str
    default: ""
extends_documentation_fragment:
  - inference.fleet.node
attributes:
  check_mode:
    support: full
    description:
      - Servers are never changed. If a server does not listen, would be changed (O(servers_changed)) or differs from
        the plan, its verdict is null with the cause C(not verified (check)).
  diff_mode:
    support: none
    description: Nothing is changed.
  idempotent:
    support: full
    description: Servers are never changed.
author:
  - inference.fleet contributors (@inference-fleet)
"""

EXAMPLES = r"""
- name: Verify every port
  inference.fleet.endpoint_verify:
    servers: "{{ fleet_servers }}"
    mode: full
    reports_dir: reports

- name: Verify a Dynamo frontend, with a further probe
  inference.fleet.endpoint_verify:
    servers: "{{ fleet_servers }}"
    effort_parameter: chat_template_args
    responses_api: false
    probes:
      - name: where-is-new-york
        body:
          messages:
            - role: user
              content: Where is New York?
          max_tokens: 1024
        expect:
          field: choices.0.message.content
"""

RETURN = r"""
ok:
  description:
    - V(false) if a server failed, V(true) if all passed, null if nothing was measured.
  type: bool
  returned: success
mode:
  description: The mode, V(full) or V(quick).
  type: str
  returned: success
verdicts:
  description: A verdict for each probed server.
  type: list
  elements: dict
  returned: success
  contains:
    schema:
      description: Version of this form.
      type: int
      sample: 1
    host:
      description: Host of the server, as the plan names it.
      type: str
    server:
      description: Name of the server.
      type: str
    ok:
      description: V(false) if a probe failed, V(true) if all measured probes passed, null without measured probes.
      type: bool
    not_verified:
      description: Why the planned server does not answer, and which process does; null if it answers.
      type: str
    start:
      description:
        - Times in UTC when its process was C(started) and C(ready); C(artifact), whether it C(compiles) or C(loads);
          C(memory_mib) of its processes.
        - Unknown values are null. Not in check mode.
      type: dict
    mode:
      description: V(full) or V(quick).
      type: str
    asked:
      description: sha256 of the probes and the settings of a full verification, and of the collection's version.
      type: str
      returned: with V(full), added by the action plugin
    at:
      description: When, in UTC.
      type: str
    url:
      description: URL of the requests.
      type: str
      sample: http://127.0.0.1:8000
    model_id:
      description: The planned model name.
      type: str
    hash:
      description: Hash of the plan entry.
      type: str
    probes:
      description: The probes in their order.
      type: list
      elements: dict
      contains:
        name:
          description: Name of the probe.
          type: str
        ok:
          description: Whether it passed; null if it could not be measured.
          type: bool
        ms:
          description: Duration in milliseconds.
          type: int
        sent:
          description: The request, shortened.
          type: str
        got:
          description: The response, shortened.
          type: str
        cause:
          description: The usual cause of the failure, or why it could not be measured.
          type: str
verdict:
  description: The host's report in short, added by the action plugin. The role verify gives it to C(set_stats).
  type: dict
  returned: success, outside check mode
  contains:
    ok:
      description: As RV(ok); V(false) with O(problem).
      type: bool
    mode:
      description: As RV(mode).
      type: str
    generated:
      description: When, in UTC.
      type: str
    problem:
      description: The earlier error, or null.
      type: str
    servers:
      description: For each server C(ok), C(url) and C(failed), the causes of failed probes by the probes' names.
      type: dict
fleet_page:
  description: The page of all verdicts on the control node, added by the action plugin.
  type: str
  returned: where reports are written
fleet_report:
  description: The verdicts as a table, added by the action plugin.
  type: dict
  returned: success
  contains:
    title:
      description: Title of the table.
      type: str
    columns:
      description: Names of the columns.
      type: list
      elements: str
    rows:
      description: One row for each server.
      type: list
      elements: list
"""
