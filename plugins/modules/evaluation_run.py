#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evaluation_run
short_description: One evaluation of the servers of a node, and what its score means
version_added: 0.1.0
description:
  - Runs one evaluation with one reasoning effort against the servers of the node, as a job of its own that outlives the
    connection. The module starts it, waits a little, and returns its progress. Called again with the same options it
    looks at the same job.
  - Answers are counted one by one. A request that was refused, or whose answer is empty, has failed and is no wrong
    answer; with one of them the evaluation fails, whatever the tool's exit status.
  - Before a request is sent, the servers must be the planned ones and list their model, the dataset must be complete,
    and the context must have room for an answer. Servers that are restarted while it runs make its result void.
  - A good result counts for the same plan, dataset and options. Another run returns it again and asks nothing.
  - A job that was killed is started again; one of AISBench then asks only for what is missing.
  - An action plugin of the same name compares the score with the published one, adds the result to the history on the
    controller, and fails the task where the result is not good.
options:
  servers:
    description:
      - Plan entries of this host. Those with the role C(server) or C(frontend) and a port are asked in turn; for
        O(eval=mmlu) and O(eval=gsm8k) the first of them.
    type: list
    elements: dict
    required: true
  eval:
    description:
      - The evaluation. V(basic) is one question, to which any answer counts as right.
      - V(gpqa) and V(aime25) are those of C(gpt_oss.evals), V(mmlu) and V(gsm8k) are those of AISBench.
      - Any other name requires O(command).
    type: str
    required: true
  command:
    description:
      - The program of an evaluation of the recipe, with C(argv), C(environment), C(files) and C(metrics). By default
        the tool of O(eval).
    type: dict
  effort:
    description: The reasoning effort that is asked for.
    type: str
    choices: [low, medium, high]
    required: true
  venv:
    description:
      - The Python environment of the tool on the node. Not for O(command).
      - For O(eval=mmlu) and O(eval=gsm8k), the configuration file of AISBench has this path and C(-accuracy.py).
    type: path
  datasets:
    description:
      - Folder on the node that holds the datasets, see the operation C(evaluation_datasets). By default
        C(var/lib/inference-fleet/datasets) below O(root).
    type: path
  checksums:
    description: The sha256 of files of datasets, by their path below O(datasets).
    type: dict
    default: {}
  concurrency:
    description: The number of concurrent requests.
    type: int
    default: 32
  max_tokens:
    description: Tokens that an answer may have, its reasoning included.
    type: int
    default: 131072
  shorten:
    description:
      - Whether O(max_tokens) is lowered to what the servers' context has room for. Without it a context that is too
        short is an error.
    type: bool
    default: false
  temperature:
    description: Sampling temperature.
    type: float
    default: 1.0
  examples:
    description:
      - Ask only so many questions, once each; for O(eval=mmlu) so many of each subject. By default all, those of
        V(gpqa) and V(aime25) eight times.
    type: int
  retries:
    description: How often a request is tried that finds no server, or gets an error or an empty answer.
    type: int
    default: 4
  budget_s:
    description: Seconds after which the tool is ended.
    type: int
    default: 14400
  refresh:
    description: Whether to evaluate again where there is a good result.
    type: bool
    default: false
  references:
    description:
      - Published scores, the first that is about the evaluation counts. It is not sent to the node.
    type: list
    elements: dict
    default: []
    suboptions:
      eval:
        description: The evaluation.
        type: str
        required: true
      models:
        description: Repositories of the model.
        type: list
        elements: str
        required: true
      platforms:
        description: Names of platforms, by default all.
        type: list
        elements: str
      efforts:
        description: Reasoning efforts; where the source tells none, V(medium).
        type: list
        elements: str
      score:
        description: Percent of right answers.
        type: float
        required: true
      source:
        description: Where it was published.
        type: str
        required: true
  telling:
    description: Percentage points. Where the interval reaches further from the score, an agreement says nothing.
    type: float
    default: 15
  profile:
    description: Word for the result on what was asked for, such as V(full) or V(smoke).
    type: str
    default: full
attributes:
  check_mode:
    support: full
    description: Looks at servers and datasets, and sends no request that has to be answered.
  diff_mode:
    support: none
    description: There is nothing to show.
  idempotent:
    support: full
    description: A good result of the same plan, dataset and options is returned again.
extends_documentation_fragment:
  - inference.fleet.measured
  - inference.fleet.node
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Evaluate with AIME 2025, polled until it has ended
  inference.fleet.evaluation_run:
    servers: "{{ fleet_servers }}"
    eval: aime25
    effort: medium
    venv: /var/lib/inference-fleet/venvs/gpt-oss-evals-0.0.9
    deployment: "{{ fleet_deployment }}"
  register: evaluation
  until: evaluation is failed or evaluation.finished
  retries: 3000
  delay: 1
"""

RETURN = r"""
message:
  description: What was done, or would be.
  type: str
  returned: success
finished:
  description: Whether the evaluation has ended. Where not, call the module again.
  type: bool
  returned: success
progress:
  description: How far the job is; null when it has ended.
  type: dict
  returned: success
  contains:
    phase:
      description: The evaluation, and how many answers there are.
      type: str
    percent:
      description: Percent of all answers, null where their number is not known.
      type: int
evaluation:
  description: The result as it stands in the history; the keys are in docs/developing/measuring.md.
  type: dict
  returned: when it has ended, outside check mode
path:
  description: The file of the result in the history on the controller.
  type: str
  returned: where it was kept
fleet_report:
  description: The result as a table for people.
  type: dict
  returned: when it has ended
  contains:
    title:
      description: Title of the table.
      type: str
    columns:
      description: Names of the columns.
      type: list
      elements: str
    rows:
      description: One row.
      type: list
      elements: list
"""
