# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of roles for the plan of a run's steps, and a check whether a role is unchanged.

The value of a role's variable is set for the host, or is its default: a literal in the role's defaults/main.yml, or a
value from the caller if that default is a template. Variables that may contain a password are not read: the plan
contains their names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os

import yaml

from ..base.words import TRUE
from .run_look import LATER

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known_tasks.json")
UNKNOWN_DATA = ("README.md", "files", "__pycache__")  # of a role: files that do not affect its tasks
LITERAL = object()  # the default is the literal in the role's file


def later(variable, **how):
    """Return an argument that is completed when it is sent, with the value of a variable. how: default, for an empty
    value; omits: an empty value is left out; over: a mapping that the value is merged over."""
    return {LATER: {"variable": variable, **how}}


def of_plan(*keys):
    """Return an argument that is a part of the host's plan."""
    return {LATER: {"plan": list(keys)}}


def if_prepared(value, other):
    """Return an argument that is `value` in a run that also prepares the node, and `other` in other runs."""
    return {LATER: {"prepared": value, "unprepared": other}}


class Role:
    """A role's variables on a host."""

    def __init__(self, name, variables):
        """variables: HostVariables."""
        self.name = name
        self.defaults = defaults_of(name)
        self._variables = variables

    def value(self, name, default=LITERAL):
        """Return the host's variable, else `default`, else the literal of the role. Raises FleetError."""
        if self._variables.has(name):
            return read(self._variables, name)
        return self._literal(name) if default is LITERAL else default

    def switch(self, name, default=LITERAL):
        """value() of a switch."""
        return str(self.value(name, default)).strip().lower() in TRUE | {"1"}

    def later(self, name, shared=None, default=LITERAL, omits=False):
        """value() of a variable that may contain a password. shared: the fleet variable that is its default; if it is
        empty or not set, `default` applies."""
        if self._variables.has(name):
            return later(name, omits=omits)
        if shared is not None and self._variables.has(shared):
            return later(shared, omits=omits, **({} if default is LITERAL else {"default": default}))
        value = self._literal(name) if default is LITERAL else default
        return None if omits and not value else value

    def has(self, name):
        """Return whether the host has the variable."""
        return self._variables.has(name)

    def _literal(self, name):
        value = self.defaults[name]
        if "{{" in json.dumps(value):
            raise AssertionError("the default of %s is a template: specify its value here" % name)
        return value


def read(variables, name):
    """Return a variable's value. The plan depends on it, unless it cannot be evaluated here. Raises FleetError."""
    variables.peek(name)
    return variables.get(name)


def shared(variables, name, default):
    """Return the value of a fleet_* variable; `default` if it is empty or not set. Raises FleetError."""
    return (read(variables, name) if variables.has(name) else None) or default


@functools.cache
def defaults_of(role):
    """Return the role's defaults/main.yml; {} if there is none."""
    try:
        with open(os.path.join(COLLECTION, "roles", role, "defaults", "main.yml"), encoding="utf-8") as stream:
            return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except FileNotFoundError:
        return {}


@functools.cache
def is_known(place):
    """Return whether a role's folder or a step's playbook has the content that the steps were written for."""
    return content_of(os.path.join(COLLECTION, place)) == known().get(place)


@functools.cache
def known():
    """Return {place: content_of(place)}, as recorded by tools/known_tasks.py."""
    with open(KNOWN, encoding="utf-8") as stream:
        return json.load(stream)


def content_of(path):
    """Return a digest of a playbook, or of all files of a role that affect its tasks."""
    path, digest = os.fspath(path), hashlib.sha256()
    for name in sorted(_files(path)):
        with open(os.path.join(path, name) if name else path, "rb") as stream:
            digest.update(b"%s\0%s" % (os.fsencode(name), hashlib.sha256(stream.read()).digest()))
    return digest.hexdigest()


def _files(path):
    if os.path.isfile(path):
        yield ""
    for at, folders, files in os.walk(path):
        top = at == path
        folders[:] = [name for name in folders if name != "__pycache__" and not (top and name in UNKNOWN_DATA)]
        for name in files:
            if not (top and name in UNKNOWN_DATA) and not name.startswith(".") and not name.endswith("~"):
                yield os.path.relpath(os.path.join(at, name), path)
