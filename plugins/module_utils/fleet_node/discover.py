# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Registries of the objects that the files of a folder define, so that a new file extends them; operations."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pkgutil
import typing


def discover(package, folders, word, file=None):
    """{name: object that NAME.py or NAME/FILE.py defines as `word`} of the modules of a package, sorted by name.

    package: its dotted name; folders: its __path__; file: without .py. Only modules whose source defines the word are
    imported, because other modules of the folder may need the registry.
    """
    found = {}
    for module in sorted(pkgutil.iter_modules(folders), key=lambda one: one.name):
        name = "%s.%s" % (package, module.name) + ("." + file if module.ispkg and file else "")
        spec = importlib.util.find_spec(name)
        source = spec.loader.get_source(name) if spec is not None else ""
        if isinstance(source, bytes):  # as Ansible's own loader gives it
            source = source.decode("utf-8")
        if any(mark % word in source for mark in ("\nclass %s(", "\nclass %s:", "\n%s = ")):
            found[module.name] = getattr(importlib.import_module(name), word)
    return found


# ---- operations


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation.

    arguments, rules: Ansible's argument_spec, and further rules such as required_if. run(params, check_mode): returns
    the result, whose `warnings` are shown as warnings. due(result): in check mode, the reason to run, or None; without
    it `changed` counts. reads: it changes nothing on the node. nested: run() also gets operation_of and validated.
    """

    arguments: dict
    run: typing.Callable
    due: typing.Callable | None = None
    reads: bool = False
    rules: dict = dataclasses.field(default_factory=dict)
    nested: bool = False


def options(kind, *names, **defaults):
    """{name: option} of Ansible's argument_spec: options of one type, without a default and with these defaults."""
    found = {name: {"type": kind} for name in names}
    found.update((name, {"type": kind, "default": default}) for name, default in defaults.items())
    return found


def required(kind, *names, **more):
    """The same of options that a caller must give. more: further keys of each option, such as `elements`."""
    return {name: {"type": kind, "required": True, **more} for name in names}


def lists(elements, *names):
    """The same of lists, which are empty by default."""
    return {name: {"type": "list", "elements": elements, "default": []} for name in names}
