#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: node
short_description: Check, apply, show and stop the servers of a node
version_added: 0.1.0
description:
  - Runs an operation of this collection's program on a managed node. All roles and playbooks of the collection use this
    module.
  - A node that does not have this version of the program gets a copy once, below C(var/lib/inference-fleet/program) of
    its root. Nothing is copied in check mode, or before the node has that folder.
options:
  operation:
    description:
      - The operation. Those of interest in your own plays are listed here; the others belong to roles.
      - V(check) runs the operations of the host's plan in check mode, in one call, and returns the first step of
        C(site.yml) that has to run. It has no arguments.
      - V(doctor) runs all of them, whatever the others return, with checks of the node and its servers, and returns
        RV(findings). C(playbooks/doctor.yml) uses it.
      - V(engine_servers) applies the plan. Missing servers start, changed servers restart, servers that are not in the
        plan are stopped and removed. New files are checked and staged before a server stops. It does not wait for
        readiness. With C(state=stopped) it stops servers; with C(state=absent) it removes them.
      - V(engine_ready) fails until all servers have answered a completion. Use it with C(until). C(final) in its result
        means that waiting longer is of no use.
      - V(engine_servers_info) returns the status of the servers and how they differ from the plan; with C(log_lines)
        also the end of their logs.
      - V(unused_files) lists files of former plans, and removes them with C(remove=true).
    type: str
  arguments:
    description:
      - The arguments of the operation.
      - All operations on servers have C(servers), the plan entries as P(inference.fleet.plan#lookup) returns them;
        C(root), an absolute path that all files of the fleet are below, C(fleet_root) by default; C(manager), V(auto),
        V(systemd) or V(supervisord); C(toolkit), the virtual environment with supervisord; and C(only), names of
        servers.
      - V(engine_servers) has C(state) (V(started), V(restarted), V(stopped), V(absent), V(verified) or
        V(rolled_back)), and C(changes), what becomes of running servers that have to stop. V(at_once) changes them,
        V(one_by_one) and V(together) return the order in which to change them as RV(waves), and V(wave) changes those
        in C(only) and keeps their former definitions until V(verified) or V(rolled_back).
      - V(engine_servers) also has C(secrets), a mapping of the variables in the entries' C(secrets) to values;
        C(drain_s), seconds for the requests of a server; C(watchdog), a mapping with C(interval), C(failures) and
        C(timeout); C(start_on_boot) for supervisord.
      - V(doctor) has C(bundle), whether files for the bundle are collected.
      - V(engine_ready) has C(timeout), seconds for each request, and C(wait_s), seconds that the call may wait.
      - V(engine_servers_info) has C(log_lines), C(probe), whether each server is asked for a completion, and C(report),
        whether a table is shown.
    type: dict
    default: {}
  version:
    description: Set by the action plugin. The version of the program.
    type: str
  root:
    description: Filled in by the action plugin. The value of C(root) for operations with this argument, unless given.
    type: str
    default: ""
  lib:
    description: Set by the action plugin. The node's directory.
    type: str
  make:
    description: Set by the action plugin. Whether to create the directory of the program.
    type: bool
    default: false
  background:
    description: Set by the action plugin. Whether the task has C(async). A missing program is then an error.
    type: bool
    default: false
  archive:
    description: Set by the action plugin. The program, if the node lacks it.
    type: path
  sha256:
    description: Set by the action plugin. Checksum of the archive.
    type: str
attributes:
  check_mode:
    description: The operation returns the changes without making them.
    support: full
  diff_mode:
    description: Depends on the operation.
    support: full
  idempotent:
    description: Depends on the operation.
    support: full
notes:
  - This module has an action plugin on the control node.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Apply the plan
  inference.fleet.node:
    operation: engine_servers
    arguments:
      servers: "{{ lookup('inference.fleet.plan', deploys=true) }}"

- name: Wait until all servers are ready
  inference.fleet.node:
    operation: engine_ready
    arguments:
      servers: "{{ lookup('inference.fleet.plan') }}"
      wait_s: 29
  register: ready
  until: ready is success or ready.final | default(false)
  retries: 60
  delay: 1

- name: Show the status of the servers and the end of their logs
  inference.fleet.node:
    operation: engine_servers_info
    arguments:
      servers: "{{ lookup('inference.fleet.plan') }}"
      log_lines: 20

- name: Stop a server
  inference.fleet.node:
    operation: engine_servers
    arguments:
      servers: "{{ lookup('inference.fleet.plan') }}"
      only: [server-0]
      state: stopped
"""

RETURN = r"""
servers:
  description:
    - The servers, each with C(name), C(state) (V(running), V(waiting), V(failed), V(stopped) or V(missing)), C(ready),
      C(since), C(restarts), C(pid), C(hash), C(reason) and C(log_tail). V(engine_servers_info) adds C(drift), how the
      server differs from the plan.
  returned: with V(engine_servers), V(engine_ready) and V(engine_servers_info)
  type: list
  elements: dict
actions:
  description: The actions, or in check mode the actions that would follow, with C(name), C(kind) and C(reason).
  returned: with V(engine_servers)
  type: list
  elements: dict
  sample: [{"name": "server-0", "kind": "restart", "reason": "state is restarted"}]
waves:
  description: Lists of servers to change together, one list after the other.
  returned: with V(engine_servers)
  type: list
  elements: list
  sample: [[server-0], [server-1]]
kept:
  description: Whether the role P(inference.fleet.serve#role) has kept this plan on the node for a rollback.
  returned: with V(engine_servers)
  type: bool
answering:
  description: Whether nothing was changed, and every server was seen ready and answers.
  returned: with V(engine_servers)
  type: bool
differs:
  description: Whether a server differs from the plan.
  returned: with V(engine_servers_info)
  type: bool
findings:
  description:
    - The results of all checks with C(check), C(ok) (null if the check is not possible), C(cause), C(remedy), C(code),
      C(page), what the documentation has on the code, and C(server).
  returned: with V(doctor)
  type: list
  elements: dict
healthy:
  description: Whether no check found a problem.
  returned: with V(doctor)
  type: bool
first:
  description: The first step of C(site.yml) that has to run, or null.
  returned: with V(check)
  type: str
program_needed:
  description: Whether the node lacks the program; the action plugin then copies it and repeats the call.
  type: bool
  returned: when it does
program_fault:
  description: Why the installed program is not this version.
  type: str
  returned: with RV(program_needed)
program_python:
  description: The version of the node's Python.
  type: str
  returned: when it is too old
program_damaged:
  description: Whether the archive arrived damaged.
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
    "root": {"type": "str", "default": ""},
    "lib": {"type": "str"},
    "make": {"type": "bool", "default": False},
    "background": {"type": "bool", "default": False},
    "archive": {"type": "path"},
    "sha256": {"type": "str"},
}


class Module(AnsibleModule):
    """A module that does not log the operation's arguments:
    they may be long, and only the program knows their secrets."""

    def _log_invocation(self):
        self.log("%s of %s" % (self.params["operation"], self.params["version"]))


def validate(spec, arguments, **rules):
    """Return (parameters, [error], values that are secrets)."""
    found = ArgumentSpecValidator(spec, **rules).validate(arguments)
    said = [(isinstance(one, UnsupportedError), one.msg.rstrip(".")) for one in found.errors]
    messages = ["unknown arguments: " + text if unknown else text for unknown, text in said]
    return found.validated_parameters, messages, found._no_log_values


def program(module, lib, version):
    """Return (fleet_node, imported; the FleetError of a program that cannot be stored, or None).
    Ends the module if the program is needed."""
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
    params, module.params = module.params, {}  # results do not contain the parameters
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
            params["operation"], params["arguments"], module.check_mode, validate, module.no_log_values.update, unkept,
            params["root"],
        )  # fmt: skip
    except called.FleetError as error:
        module.fail_json(msg=error.message, **error.details)
    for text in warnings:
        module.warn(text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
