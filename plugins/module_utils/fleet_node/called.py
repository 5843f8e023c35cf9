# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of an operation on a node: the module inference.fleet.node does no more than this."""

from __future__ import annotations

import importlib
import pkgutil

from . import engines, operations, platforms
from .errors import FleetError
from .node.redact import parameter_secrets, read_on_node


def run(name, arguments, check_mode, validate, hide, unkept=None):
    """(the result of an operation, its warnings). Raises FleetError.

    validate(ARGUMENTS, arguments, **RULES) -> (parameters, [error], values that are secrets). hide(secrets): they are
    masked in all that is logged and returned. unkept: the FleetError of a program that cannot be kept on the node;
    operations that only read (READS) do without.
    """
    hide(parameter_secrets(arguments))
    operation = operation_of(name)
    if operation is None:
        raise FleetError("node.operation-unknown", "This collection has no operation %r.", (name,))
    if unkept is not None and not getattr(operation, "READS", False):
        raise unkept

    def validated(one, given):
        parameters, errors, secrets = validate(one.ARGUMENTS, given, **getattr(one, "RULES", {}))
        hide(secrets)
        if errors:
            raise FleetError("arguments.invalid", "%s.", ("; ".join(errors),))
        hide(parameter_secrets(parameters))  # what came as text are mappings by now
        return parameters

    parameters = validated(operation, arguments)
    more = {"operation_of": operation_of, "validated": validated} if getattr(operation, "NESTED", False) else {}
    try:
        result = operation.run(parameters, check_mode, **more)
    finally:
        hide(read_on_node)
    return result, result.pop("warnings", ())


def operation_of(name):
    """The module of what `name` does, with ARGUMENTS and run(); None where there is none."""
    if not name.isidentifier() or name.startswith("_"):
        return None
    for package in _places():
        try:
            return importlib.import_module("%s.%s" % (package, name))
        except ModuleNotFoundError as error:
            if error.name not in (package, "%s.%s" % (package, name)):
                raise
    return None


def _places():
    """Names of packages with operations, the general one first."""
    yield operations.__name__
    for folder in (platforms, engines):
        for found in pkgutil.iter_modules(folder.__path__):
            if found.ispkg:
                yield "%s.%s.operations" % (folder.__name__, found.name)
