#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evaluation_run
short_description: Run an evaluation of the servers of a node
version_added: 0.1.0
description:
  - Runs an evaluation with a reasoning effort against the servers of the node, as a background job. The module starts
    it, waits O(wait_s) and returns its progress; repeat the call with the same options to follow the job.
  - A refused request or an empty answer counts as a failure, not as a wrong answer. An evaluation with a failure
    fails; the tool's exit status is ignored.
  - Before the first request, the servers must be as planned, the dataset must be complete, and the context must be
    long enough. A server restart during the run voids the result.
  - A good result of the same plan, dataset and options is reused.
  - A killed job is started again; AISBench then resumes.
  - The action plugin compares the score with the published score, stores the result in the history on the control node,
    and fails the task if it is not good.
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
      - The evaluation. V(basic) is a single question; any answer counts as correct.
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
    description: The reasoning effort.
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
      - Directory on the node with the datasets, see the operation C(evaluation_datasets). By default
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
    description: Limit of an answer in tokens, including reasoning.
    type: int
    default: 131072
  shorten:
    description:
      - Whether to lower O(max_tokens) to the servers' context. Otherwise a context that is too short is an error.
    type: bool
    default: false
  temperature:
    description: Sampling temperature.
    type: float
    default: 1.0
  examples:
    description:
      - Number of questions, each asked once; for O(eval=mmlu) per subject. By default all, those of V(gpqa) and
        V(aime25) eight times.
    type: int
  retries:
    description: Attempts of a request without an answer.
    type: int
    default: 4
  budget_s:
    description: Limit of the tool in seconds.
    type: int
    default: 14400
  refresh:
    description: Whether to evaluate again despite a good result.
    type: bool
    default: false
  references:
    description:
      - Published scores, of which the first for the evaluation counts. Not sent to the node.
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
        description: Names of platforms. By default all.
        type: list
        elements: str
      efforts:
        description: Reasoning efforts. V(medium) if the source does not state them.
        type: list
        elements: str
      score:
        description: Percentage of correct answers.
        type: float
        required: true
      source:
        description: The publication.
        type: str
        required: true
  profile:
    description: Name of the profile for the result, such as V(full) or V(smoke).
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
  - inference.fleet.node.measured
  - inference.fleet.node
notes:
  - This module has an action plugin on the control node.
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
  description: The result in the history; its keys are in docs/developing/measuring.md.
  type: dict
  returned: when it has ended, outside check mode
path:
  description: The file of the result in the history on the control node.
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
