#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: node
short_description: Run an operation of this collection on a node
version_added: 0.1.0
description:
  - Runs an operation of the program that this collection keeps on each node, C(plugins/module_utils/fleet_node). The
    operations are the files of its folders C(operations); each says what it takes and returns.
  - The program lies below C(var/lib/inference-fleet/program) of the node's root, in a folder for each version. A node
    that lacks this version is given it once. Before the node has its folders, and in check mode, nothing is kept.
  - It is for the roles and playbooks of this collection.
options:
  operation:
    description: What to run. Without it the module only says whether the node lacks the program.
    type: str
  arguments:
    description: What the operation takes.
    type: dict
    default: {}
  version:
    description: Filled in by the action plugin. The version of the program.
    type: str
  lib:
    description: Filled in by the action plugin. The node's folder.
    type: str
  make:
    description: Filled in by the action plugin. Whether that folder is made for the program where there is none.
    type: bool
    default: false
  background:
    description: Filled in by the action plugin. Whether nobody waits for this call, with C(async). A node that lacks
      the program is then an error.
    type: bool
    default: false
  archive:
    description: Filled in by the action plugin. The program, where the node asked for it.
    type: path
  sha256:
    description: Filled in by the action plugin. Of the archive.
    type: str
attributes:
  check_mode:
    description: The operation says what it would do.
    support: full
  diff_mode:
    description: What the operation shows.
    support: full
  idempotent:
    description: As the operation.
    support: full
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Make the folders of a node
  inference.fleet.node:
    operation: node_layout
    arguments:
      root: /opt/fleet
"""

RETURN = r"""
program_needed:
  description: Whether the node lacks the program; the action plugin then brings it and calls again.
  type: bool
  returned: when it does
program_fault:
  description: Why what is there is not this version.
  type: str
  returned: with RV(program_needed)
program_python:
  description: The version of the node's Python.
  type: str
  returned: when it is too old
program_damaged:
  description: Whether the archive came damaged.
  type: bool
  returned: when it did
"""

import hashlib
import importlib
import os
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program_check

OLDEST = (3, 9)
PROGRAM = "fleet_node"
ARGUMENTS = {
    "operation": {"type": "str"},
    "arguments": {"type": "dict", "default": {}},
    "version": {"type": "str"},
    "lib": {"type": "str"},
    "make": {"type": "bool", "default": False},
    "background": {"type": "bool", "default": False},
    "archive": {"type": "path"},
    "sha256": {"type": "str"},
}


class Module(AnsibleModule):
    """The operation's arguments are not logged; they may be long, and their secrets are known to the program alone."""

    def _log_invocation(self):
        self.log("%s of %s" % (self.params["operation"], self.params["version"]))


def validate(spec, arguments, **rules):
    """(parameters, [error], values that are secrets)."""
    found = ArgumentSpecValidator(spec, **rules).validate(arguments)
    said = [(isinstance(one, UnsupportedError), one.msg.rstrip(".")) for one in found.errors]
    messages = ["unknown arguments: " + text if unknown else text for unknown, text in said]
    return found.validated_parameters, messages, found._no_log_values


def program(module, lib, version):
    """(fleet_node, imported; the FleetError of one that cannot be kept or None). Ends the module where it is needed."""
    folder = os.path.join(program_check.place(lib), version)
    module.program_handle = program_check.in_use(folder)
    fault = program_check.fault(folder, version)
    if fault is None:
        sys.path.insert(0, folder)
        return importlib.import_module(PROGRAM + ".called"), None
    archive = module.params["archive"]
    if archive is None and module.params["background"]:
        module.fail_json(msg="The program of this collection went missing on the node: %s. Run again." % fault)
    if archive is None:
        module.exit_json(changed=False, program_needed=True, program_fault=fault)
    with open(archive, "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() != module.params["sha256"]:
            module.fail_json(msg="The program came damaged.", program_damaged=True)
    sys.path.insert(0, archive)
    found, unkept = importlib.import_module(PROGRAM + ".program"), None
    try:
        folder = found.keep(lib, module.check_mode, module.params["make"])
    except found.FleetError as error:
        folder, unkept = None, error
    if folder is not None:
        module.program_handle = program_check.in_use(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == PROGRAM]:
            del sys.modules[name]
        sys.path[0] = folder
        importlib.invalidate_caches()
    return importlib.import_module(PROGRAM + ".called"), unkept


def main():
    module = Module(argument_spec=ARGUMENTS, supports_check_mode=True)
    params, module.params = module.params, {}  # no result shows them
    if sys.version_info < OLDEST:
        found = "%d.%d" % sys.version_info[:2]
        module.fail_json(msg="Python %s is too old." % found, program_python=found)
    module.params = {name: params[name] for name in ("archive", "background", "sha256", "make")}
    called, unkept = program(module, params["lib"], params["version"])
    module.params = {}
    if params["operation"] is None:
        module.exit_json(changed=False)
    try:
        result, warnings = called.run(
            params["operation"], params["arguments"], module.check_mode, validate, module.no_log_values.update, unkept
        )
    except called.FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    for text in warnings:
        module.warn(text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
