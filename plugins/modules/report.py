#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write reports on the control node
version_added: 0.1.0
description:
  - Writes a report from the results of a run. Nothing runs on managed nodes; use it with C(run_once).
options:
  kind:
    description:
      - V(verification) begins a run. The report lists the hosts that will get a verdict, so no old
        verdict remains valid.
      - V(converged) writes the verdicts of hosts on which this run changes nothing, from the operation C(check) of
        M(inference.fleet.node). Without them it does nothing.
      - V(certificate) writes C(certificate.json) and the page C(index.html) from verdicts and measurements.
      - V(doctor) collects the findings of all hosts of the play from a registered result, as C(ansible_stats) and
        C(doctor.json), and writes the bundle.
      - V(status) collects the status of all hosts of the play from a registered result, as C(ansible_stats) and a file.
      - V(tune) plans the candidates of a sweep, or writes the settings of the best candidate.
    type: str
    required: true
    choices: [certificate, converged, doctor, status, tune, verification]
  reports_dir:
    description:
      - The folder of the reports. An empty string writes none. For V(certificate), V(doctor), V(tune) and
        V(verification).
      - By default C(verify_reports_dir), C(fleet_reports_dir), or C(reports/) and the inventory's name.
    type: path
  file:
    description:
      - The file to write, for V(status), V(doctor) (the bundle) and V(tune) (by default C(tuned.yml) in the folder of
        the reports).
    type: path
  registered:
    description: The variable with the result of the operation C(doctor), or C(engine_servers_info) for V(status).
    type: str
  regression_limit:
    description:
      - By how many percent a metric may be worse than in earlier runs, for V(certificate).
    type: float
    default: 15
  this_run:
    description: Whether only results since V(verification) began this run count, for V(certificate).
    type: bool
    default: false
  strict:
    description:
      - Whether the task fails if a part of the certificate is missing or not good, for V(certificate).
      - An evaluation without a comparable published score, or with too few questions, does not fail.
    type: bool
    default: false
  shown:
    description: Whether the certificate is shown as a table, for V(certificate).
    type: bool
    default: true
  state:
    description: Whether V(tune) plans the candidates or chooses the best measured candidate.
    type: str
    default: planned
    choices: [planned, chosen]
  limits:
    description: Limits of latency for V(tune), a mapping that replaces the recipe's C(tune.limits).
    type: raw
  failed:
    description: Candidates that failed, with reasons, for V(tune).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Arguments are checked, and nothing is written.
    support: full
  diff_mode:
    description: Only V(tune) shows the file that it writes.
    support: partial
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Reset verdicts
  inference.fleet.report:
    kind: verification
  run_once: true

- name: Certify, or fail
  inference.fleet.report:
    kind: certificate
    this_run: true
    strict: true
    regression_limit: 10
  run_once: true
"""

RETURN = r"""
run:
  description: The run, with its C(id); null without reports.
  returned: with V(verification)
  type: dict
hosts:
  description: The hosts whose verdicts were written.
  returned: with V(converged)
  type: list
  elements: str
certificate:
  description:
    - The content of C(certificate.json), with C(ok), C(complete), C(generated) and C(parts); null in check mode.
  returned: with V(certificate)
  type: dict
status:
  description: C(schema), C(at), C(differs) and C(hosts), which has C(reached), C(differs), C(servers) and C(problem).
  returned: with V(status)
  type: dict
doctor:
  description:
    - C(schema), C(at), C(healthy) and C(hosts), which has C(reached), C(healthy), C(findings) and C(problem).
  returned: with V(doctor)
  type: dict
candidates:
  description: The candidates with C(name), C(override), C(servers), C(deployment), C(calls) and C(measured).
  returned: with V(tune) and O(state=planned)
  type: list
  elements: dict
best:
  description: The name of the best candidate; null if none keeps the limits.
  returned: with V(tune) and O(state=chosen)
  type: str
"""
