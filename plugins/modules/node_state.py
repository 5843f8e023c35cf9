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
  - It runs the code of the modules that the steps run, in check mode, in one call. The action plugin reads the tasks
    and their arguments from the playbooks of the steps and the roles, so nothing is written twice.
  - A step that cannot be looked at, or whose look fails, counts as one that differs, so that the step itself runs and
    says what is wrong.
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
  secrets:
    description: Filled in by the action plugin. Arguments that hold secrets, by the number of the look.
    type: dict
    default: {}
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
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.looking import look
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import parameter_secrets


class Module(AnsibleModule):
    """Secrets among the arguments of the steps are masked in all that it returns; the arguments are not logged."""

    def _load_params(self):
        super()._load_params()
        for one in self.params.get("looks") or ():
            self.no_log_values.update(parameter_secrets(one["arguments"]))
        for one in (self.params.get("secrets") or {}).values():
            self.no_log_values.update(parameter_secrets(one))

    def _log_invocation(self):
        self.log(", ".join(one["module"] for one in self.params["looks"]))


def main():
    module = Module(
        argument_spec={
            "looks": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "step": {"type": "str", "required": True},
                    "module": {"type": "str", "required": True},
                    "arguments": {"type": "dict", "required": True},
                },
            },
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )

    def validated(operation, arguments):
        rules = getattr(operation, "RULES", {})
        found = ArgumentSpecValidator(operation.ARGUMENTS, **rules).validate(arguments)
        module.no_log_values.update(found._no_log_values)
        if found.error_messages:
            raise FleetError("arguments.invalid", "%s.", ("; ".join(found.error_messages),))
        return found.validated_parameters

    looks = [
        {**one, "arguments": {**one["arguments"], **module.params["secrets"].get(str(number), {})}}
        for number, one in enumerate(module.params["looks"])
    ]
    result = look(looks, validated)
    for text in result.pop("warnings"):
        module.warn(text)
    module.params = {}  # the steps' tasks show their arguments
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
