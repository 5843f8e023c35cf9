#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: node_state
short_description: Tell in one call where a run has something to do on a node
version_added: 0.1.0
description:
  - Looks at a node as C(site.yml) is about to change it, preflight, prepare, weights and serve in this order, and says
    which step is the first that has something to do, and why. It changes nothing.
  - It runs the code of the modules that the steps run, in check mode, in one call. Which these are, and with which
    arguments, is part of the host's plan; the action plugin fills in what may hold a password.
  - A step that cannot be looked at, or whose look fails, counts as one that differs, so that the step itself runs and
    says what is wrong. So does a step whose playbook or role is another than the collection's own, or of a platform or
    an engine that does not say what its role does.
  - Where no step has anything to do and the quick verification is due, the same call verifies the servers, and the play
    of the verification uses that answer.
  - The result is kept for the run. C(lookup('inference.fleet.hosts', step='weights')) leaves out hosts that have
    nothing to do there.
options:
  looks:
    description: Filled in by the action plugin. What to look at.
    type: list
    elements: dict
    default: []
    suboptions:
      step:
        description: The step that it belongs to.
        type: str
        required: true
      module:
        description: The module that the step runs.
        type: str
        required: true
      arguments:
        description: Its arguments.
        type: dict
        required: true
  verify:
    description: Filled in by the action plugin. Arguments of M(inference.fleet.endpoint_verify), which follows in the
      same call where no step has anything to do.
    type: dict
extends_documentation_fragment:
  - inference.fleet.node.read_only
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Look where the run has something to do
  inference.fleet.node_state:
  register: found

- name: Say so
  ansible.builtin.debug:
    msg: "{{ found.first }}"
"""

RETURN = r"""
steps:
  description: The steps that were looked at, in their order, up to the first that differs.
  type: list
  elements: dict
  returned: success
  contains:
    step:
      description: Its name.
      type: str
      sample: serve
    differs:
      description: Whether it has something to do.
      type: bool
    reason:
      description: Why; null where it has nothing to do.
      type: str
      sample: "server-1: unit was edited"
first:
  description: The first step that differs, null where none does.
  type: str
  returned: success
serving:
  description: Whether servers run on the node, the plan's or others of the same root.
  type: bool
  returned: success
hangs:
  description: A program of the node did not end in time, which is an error. After any other failure every step is run.
  type: bool
  returned: failure
"""
