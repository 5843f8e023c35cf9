#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: certificate
short_description: One verdict of what was verified, benchmarked and evaluated, with its page
version_added: 0.1.0
description:
  - Reads C(verdict.json) and the history of measurements in the folder of reports on the controller, and writes
    C(certificate.json) and the page C(report.html) beside them.
  - The page has charts and tables.
  - It runs on the controller; no node is contacted.
options:
  reports_dir:
    description:
      - Directory on the controller with the reports.
      - By default C(verify_reports_dir), or C(fleet_reports_dir), or C(reports/) and the inventory's name.
    type: path
  regression_limit:
    description:
      - By how many percent a metric may be worse than in the runs before; more is a regression, unless it is noise.
      - By default 15.
    type: float
  this_run:
    description:
      - Whether only what was verified and measured since M(inference.fleet.verification_run) began this run counts.
      - Otherwise the newest counts, whenever it was measured.
    type: bool
    default: false
  strict:
    description:
      - Whether the task fails where anything is not good or missing.
      - An evaluation that no published score can be compared with, or with too few questions for it, is neither. The
        certificate says then that the accuracy was not evaluated.
    type: bool
    default: false
  shown:
    description: Whether the certificate is shown as a table at the end of the play.
    type: bool
    default: true
attributes:
  check_mode:
    description: Nothing is written; the options are checked.
    support: full
  diff_mode:
    description: A report is no change.
    support: none
  idempotent:
    description: A report is no change; it is written anew each time.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Make a page of what was measured so far
  inference.fleet.certificate:
  run_once: true

- name: Certify, or fail
  inference.fleet.certificate:
    this_run: true
    strict: true
    regression_limit: 10
  run_once: true
"""

RETURN = r"""
certificate:
  description: What certificate.json holds; null in check mode.
  returned: success
  type: dict
  contains:
    ok:
      description: Whether all parts are good; null where something is missing.
      type: bool
    complete:
      description: Whether nothing failed, and nothing is missing but a published score or questions enough.
      type: bool
    parts:
      description: Of C(verify), C(benchmark) and C(evaluate) each C(ok), C(summary) and C(reasons).
      type: dict
fleet_page:
  description: The absolute path of the page.
  returned: outside check mode
  type: str
fleet_report:
  description: The certificate as a table for people, C(title), C(columns) and C(rows).
  returned: where O(shown), outside check mode
  type: dict
reports_dir:
  description: The absolute path of the folder with the reports.
  returned: success
  type: str
"""
