#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: tune
short_description: Plan a sweep over settings of the servers, and choose the best of what was measured
version_added: 0.1.0
description:
  - The recipe's C(tune) says which settings are tried. A candidate is the deployment as it is or a combination of them,
    planned with one more layer of overrides, C(fleet_override_tuned).
  - The best is the candidate with the highest throughput of output tokens whose 95th percentiles keep the limits. It is
    written as a file of variables, which is read again and planned before it takes its place.
  - It runs on the controller; no node is contacted. The play must be for one host.
options:
  state:
    description:
      - V(planned) returns the candidates, and which of them have all their results in the history of measurements.
      - V(chosen) chooses among those, and writes the file. Where none keeps the limits, the task fails.
    type: str
    choices: [planned, chosen]
    default: planned
  limits:
    description:
      - A mapping with C(ttft_ms) and C(tpot_ms), milliseconds; one that is left out is no limit.
      - By default the recipe's.
    type: raw
  failed:
    description: For O(state=chosen), why candidates could not be measured, by their names. They are not chosen.
    type: dict
    default: {}
  file:
    description: File on the controller for the best. By default C(tuned.yml) in the folder of reports.
    type: path
  reports_dir:
    description:
      - Directory on the controller with the reports and the history of measurements.
      - By default C(verify_reports_dir), or C(fleet_reports_dir), or C(reports/) and the inventory's name.
    type: path
attributes:
  check_mode:
    description: The candidates are shown; no file is written.
    support: full
  diff_mode:
    description: The file's content is shown.
    support: full
  idempotent:
    description: The same results give the same file.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Plan what is tried
  inference.fleet.tune:
    limits: {ttft_ms: 2000, tpot_ms: 50}
  register: planned

- name: Choose the best
  inference.fleet.tune:
    state: chosen
    limits: {ttft_ms: 2000, tpot_ms: 50}
    file: group_vars/trn3/tuned.yml
"""

RETURN = r"""
candidates:
  description:
    - For each candidate C(name), C(override), C(servers) (plan entries), C(deployment), C(calls) (for
      M(inference.fleet.benchmark_run)) and C(measured), whether all results are there.
  returned: O(state=planned)
  type: list
  elements: dict
limits:
  description: The limits that count, C(ttft_ms) and C(tpot_ms); null is none.
  returned: success
  type: dict
best:
  description: Name of the best candidate; null where none keeps the limits.
  returned: O(state=chosen)
  type: str
file:
  description: Absolute path of the file.
  returned: O(state=chosen)
  type: str
"""
