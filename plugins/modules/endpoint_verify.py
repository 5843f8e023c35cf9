#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_verify
short_description: Verdict on what the servers of a node answer
version_added: 0.1.0
description:
  - Sends real requests to every server of the node through its own port, and judges the answers one by one. Model name,
    chat, separated reasoning, reasoning effort, tool calls, the responses API, streaming, requests at once, and the
    recipe's own probes. A health endpoint that says 200 proves none of that.
  - Each probe has its own verdict. V(true), V(false), or null where it cannot be measured here. A failing probe says
    what was sent, what came back, and what usually causes it.
  - Only entries with the role C(server) or C(frontend) and a port are probed, all at once; the others are ignored.
  - An action plugin of the same name writes the reports on the controller, and fails the task when a verdict is bad. It
    runs the module on the node, as ports may be bound to loopback.
  - A verdict is about the plan. Before and after the probes it looks who answers. The process that holds the port must
    be that of the deployed entry, for containers by their labels, and the deployed and the running entry must have the
    plan's hash. Otherwise the verdict is V(false), C(not verified), and says who answers instead.
  - Of a server that passed it records in C(run/inference-fleet/ready) which process was seen ready, as
    the operation C(engine_ready) does. It is what a later run goes by when the server hangs; it counts as no change,
    since it says what was seen and not what is to be. Check mode leaves it.
options:
  servers:
    description:
      - Plan entries of this host.
    type: list
    elements: dict
    required: true
  workers_elsewhere:
    description:
      - Workers of the same deployment on other hosts. A frontend must find them beside those of its own host, and asks
        them for their counters. Who runs them is the matter of their own host.
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description:
          - Its name in the inventory.
        type: str
        required: true
      name:
        description:
          - Name of the server there.
        type: str
        required: true
      role:
        description:
          - Whether it reads prompts or writes answers.
        type: str
        choices: [prefill, decode]
        required: true
      bind:
        description:
          - Address that it listens on.
        type: str
        required: true
      ports:
        description:
          - Its ports by name; C(system) has its counters.
        type: dict
        default: {}
  mode:
    description:
      - V(full) runs the whole sequence, V(quick) reads the model name and sends one completion.
      - V(auto) is V(quick) where O(servers_changed) is V(false), and the host's report below O(reports_dir) is good and
        holds a good full verdict of the same servers. It is V(full) otherwise.
      - Without O(reports_dir), O(servers_changed) alone decides.
    type: str
    choices: [auto, full, quick]
    default: auto
  servers_changed:
    description:
      - Whether an earlier task started or restarted servers, or would have in check mode. Leave it out where that is
        not known.
      - In check mode, servers that would be changed are not verified.
    type: bool
  probes:
    description:
      - Probes of the recipe, sent after the others.
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
          - Path to send it to.
        type: str
        default: /v1/chat/completions
      body:
        description:
          - JSON body of a POST request. The key C(model) is filled in where it is missing. Without a body it is a GET.
        type: dict
      expect:
        description:
          - What must come back.
        type: dict
        suboptions:
          status:
            description:
              - HTTP status.
            type: int
            default: 200
          contains:
            description:
              - Texts that the body must contain.
            type: list
            elements: str
            default: []
          field:
            description:
              - Dotted path of a value that must not be empty, such as V(choices.0.message.content).
            type: str
  effort_parameter:
    description:
      - How a request sets the reasoning effort. As C(reasoning_effort) of its own, or inside C(chat_template_args),
        as some engines want it.
    type: str
    choices: [reasoning_effort, chat_template_args]
    default: reasoning_effort
  responses_api:
    description:
      - Whether C(/v1/responses) must work. Where it need not, the probe is null.
    type: bool
    default: true
  timeout:
    description:
      - Seconds for one request. The first completion may take five times as long, the whole sequence fifteen times.
      - The health path and C(/v1/models) have 10 seconds at most.
    type: float
    default: 120
  quick_timeout:
    description:
      - Seconds for the whole of V(quick).
    type: float
    default: 20
  reports_dir:
    description:
      - Directory on the controller for the reports, made where it is missing. Empty writes none. For the action plugin.
      - A relative one begins where C(ansible-playbook) was started.
      - Writing a report is not a change. Nothing is written in check mode.
      - One that cannot be written is a warning; the outcome is that of the servers.
    type: path
    default: ""
  deployment:
    description:
      - The recipe as resolved for this host, C(lookup('inference.fleet.plan', field='deployment')). The report takes
        from it what was deployed. For the action plugin.
    type: dict
    default: {}
  simulated:
    description:
      - What is simulated on this host, in words, such as V(driver and engine). Reports and their page say so.
        Empty where nothing is. For the action plugin.
    type: str
    default: ""
  problem:
    description:
      - What went wrong before the servers are asked, such as that one never became ready. The host's report tells it
        and is not good, whatever the servers answer; the task itself fails by their answers alone. For the action
        plugin.
    type: str
    default: ""
extends_documentation_fragment:
  - inference.fleet.node
attributes:
  check_mode:
    support: full
    description:
      - The servers are left as they are in either mode. Where nothing listens yet, or O(servers_changed) is V(true),
        the verdict is null with the cause C(not verified (check)). So it is where O(servers_changed) is left out and
        what is deployed or runs is not the plan.
  diff_mode:
    support: none
    description: There is nothing to compare.
  idempotent:
    support: full
    description: The servers are left as they are.
author:
  - inference.fleet contributors (@inference-fleet)
"""

EXAMPLES = r"""
- name: Verify every port
  inference.fleet.endpoint_verify:
    servers: "{{ fleet_servers }}"
    mode: full
    reports_dir: reports

- name: A Dynamo frontend, with a probe of one's own
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
    - V(false) where a server did not pass, V(true) where all did, null where nothing was measured.
  type: bool
  returned: success
mode:
  description: What was run, V(full) or V(quick).
  type: str
  returned: success
verdicts:
  description: One verdict for each server that was probed.
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
      description: V(false) where a probe failed, V(true) where all that were measured passed, null where none was.
      type: bool
    not_verified:
      description: Why it is not the planned server that answers, and who does instead; null where it is.
      type: str
    start:
      description:
        - When its environment was C(installed), its C(weights) were complete, and its process was C(started) and first
          seen C(ready), in UTC; C(artifact), whether it C(compiles) or C(loads) one; C(memory_mib) of its processes.
        - What cannot be told is null. Not in check mode.
      type: dict
    mode:
      description: V(full) or V(quick).
      type: str
    at:
      description: When, in UTC.
      type: str
    url:
      description: Where the requests went.
      type: str
      sample: http://127.0.0.1:8000
    model_id:
      description: The model name that the plan expects.
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
          description: Whether it passed, null where it could not be measured.
          type: bool
        ms:
          description: Milliseconds that it took.
          type: int
        sent:
          description: The request, cut.
          type: str
        got:
          description: What came back, cut.
          type: str
        cause:
          description: What usually causes the failure, or why it could not be measured.
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
      description: What went wrong before the servers were asked, or null.
      type: str
    servers:
      description: For each server C(ok), C(url) and C(failed), the causes of failed probes by the probes' names.
      type: dict
fleet_page:
  description: The page of all verdicts on the controller, added by the action plugin.
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
