# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations run in the process of a test, by the code of the module inference.fleet.node."""

from __future__ import annotations

import contextlib
import io
import json
from unittest import mock

from ansible.module_utils import basic
from ansible.module_utils.common import warnings
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import called, discover
from ansible_collections.inference.fleet.plugins.modules import node


def operate(operation, check=False, **arguments):
    """What an operation returns on this machine: {…, failed: …}."""
    warnings._global_warnings.clear()  # those of an earlier run; a module's own process has none
    given = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
    output, status = io.StringIO(), 0
    with patch_module_args(given), contextlib.redirect_stdout(output):
        try:
            Operation(operation).main()
        except SystemExit as ended:
            status = ended.code
    result = json.loads(output.getvalue())
    assert bool(status) == result.get("failed", False)
    result.pop("invocation", None)
    return result


def four_steps(operation, **arguments):
    """Check, apply, check again, apply again. Returns the results of the first two; the last two change nothing."""
    return repeated(lambda check: operate(operation, check, **arguments))


def repeated(run):
    """four_steps() of a function of check mode."""
    check, applied = run(True), run(False)
    assert (check.get("changed"), applied.get("changed")) == (True, True), (check, applied)
    for check_mode in (True, False):
        again = run(check_mode)
        assert not again["changed"], again
        assert again["diff"]["before"] == again["diff"]["after"] == applied["diff"]["after"]
    return check, applied


def answering(results, calls=None):
    """A function that finds operations which return or raise `results` by their names, and add to `calls`."""

    def found(name):
        def run(params, check_mode):
            if calls is not None:
                calls.append((name, params, check_mode))
            if isinstance(results[name], Exception):
                raise results[name]
            return results[name]

        return discover.Operation({}, run) if name in results else None

    return found


class Operation:
    """An operation in the place of a module: main() takes the arguments that Ansible gave to this process."""

    def __init__(self, name):
        self.name = name

    def main(self):
        given = json.loads(basic._ANSIBLE_ARGS)["ANSIBLE_MODULE_ARGS"]
        ansible = {key: value for key, value in given.items() if key.startswith("_ansible_")}
        arguments = {key: value for key, value in given.items() if key not in ansible}
        with (
            patch_module_args({"operation": self.name, "arguments": arguments, **ansible}),
            mock.patch.object(node, "program", return_value=(called, None)),
        ):
            node.main()
