#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: verification_run
short_description: Say in the reports which hosts a verdict is due of
version_added: 0.1.0
description:
  - Begins a run in the fleet's report on the controller. Each host of the play that has servers counts as not verified
    from here on, until M(inference.fleet.endpoint_verify) brings its verdict. So a host that cannot be reached, or
    fails before its servers are asked, does not go on looking well because of what an earlier run found.
  - Hosts that are planned but not in the play, as with C(--limit), keep their last verdict.
  - It runs on the controller, before anything can fail; no node is contacted. In one run of C(ansible-playbook) it may
    be called again. Hosts that have failed since keep the verdict that they got.
options:
  reports_dir:
    description:
      - Directory on the controller for the reports, made where it is missing. Empty does nothing.
      - By default C(verify_reports_dir), or C(fleet_reports_dir), or C(reports/) and the inventory's name.
      - A relative one begins where C(ansible-playbook) was started.
      - One that cannot be written is a warning.
    type: path
attributes:
  check_mode:
    description: Nothing is written.
    support: full
  diff_mode:
    description: A report is no change.
    support: none
  idempotent:
    description: The second call of a run writes nothing where no verdict came in between.
    support: full
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Count every host of the play as not verified until it is
  inference.fleet.verification_run:
    reports_dir: reports
  run_once: true
"""

RETURN = r"""
reports_dir:
  description: The absolute path of O(reports_dir), where the run was written down.
  returned: where it was
  type: str
run:
  description: The run as it stands in the report; null in check mode and without O(reports_dir).
  returned: success
  type: dict
  contains:
    id:
      description: The same in all tasks of one C(ansible-playbook).
      type: str
      sample: 5f0c2c4be6a1
    began:
      description: When, in UTC.
      type: str
      sample: "2026-01-02T03:04:05Z"
    hosts:
      description: Hosts that a verdict was due of in this run.
      type: list
      elements: str
"""
