# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an operation on a node, for the module inference.fleet.node."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

from . import engines, operations, platforms
from .errors import FleetError
from .host.os_errors import os_error
from .host.redact import parameter_secrets, read_on_node


def run(name, arguments, check_mode, validate, hide, unkept=None, root=""):
    """(the result of an operation, its warnings). Raises FleetError.

    validate(argument_spec, arguments, **rules) -> (parameters, [error], values that are secrets). hide(secrets) masks
    them in logs and results. unkept: the FleetError of a program that cannot be installed on the node; operations that
    only read run anyway. root: the default of the argument root.
    """
    hide(parameter_secrets(arguments))
    operation = operation_of(name)
    if operation is None:
        raise FleetError("node.operation-unknown", name)
    if unkept is not None and not operation.reads:
        raise unkept

    def validated(one, given):
        if "root" in one.arguments:
            given = {"root": root, **given}
        parameters, errors, secrets = validate(one.arguments, given, **one.rules)
        hide(secrets)
        if errors:
            raise FleetError("arguments.invalid", "; ".join(errors))
        hide(parameter_secrets(parameters))  # strings have become mappings
        return parameters

    parameters = validated(operation, arguments)
    more = {"operation_of": operation_of, "validated": validated} if operation.nested else {}
    try:
        result = operation.run(parameters, check_mode, **more)
    except OSError as error:
        raise os_error("The operation %s cannot be completed" % name, error) from error
    finally:
        hide(read_on_node)
    return result, result.pop("warnings", ())


def operation_of(name):
    """The Operation of this name; None if there is none."""
    if name in operations.FILE_OF:
        return importlib.import_module("%s.%s" % (operations.__name__, operations.FILE_OF[name])).OPERATIONS[name]
    for folder in (platforms, engines):
        for package in pkgutil.iter_modules(folder.__path__):
            own = "%s.%s.operations" % (folder.__name__, package.name)
            if package.ispkg and importlib.util.find_spec(own) is not None:
                found = importlib.import_module(own).OPERATIONS.get(name)
                if found is not None:
                    return found
    return None
