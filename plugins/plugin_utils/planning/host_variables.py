# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of hosts, read one by one, and which of them were: a plan is right as long as these have not changed.

A run whose plan is kept needs this and not the planner, so nothing of that is imported here.
"""

from __future__ import annotations

import hashlib

import jinja2
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.server_spec import canonical
from ansible_collections.inference.fleet.plugins.plugin_utils.plain import clean

LOCKED = "Give the vault's password (--ask-vault-pass), or write the value where it is not encrypted."


class HostVariables:
    """One host's variables, read one by one: only those that the plan needs are ever templated or decrypted, and each
    once. What is returned is read-only."""

    def __init__(self, host, variables, inventory_sources=()):
        """variables: mapping. inventory_sources: paths given with -i."""
        self.host = host
        self.names = set(variables)
        self.inventory_sources = tuple(str(source) for source in inventory_sources)
        self.read = set()  # names of the variables that the plan was made from
        self.looked = set()  # of those that were only checked
        self._variables = variables
        self._values = {}  # name → (value, FleetError)

    def get(self, name, default=None):
        """The variable's value, or ``default``. FleetError names a variable that cannot be worked out here."""
        self.read.add(name)
        return self._value(name, default)

    def peek(self, name, default=None):
        """get(), of a variable that the plan does not depend on."""
        self.looked.add(name)
        return self._value(name, default)

    def has(self, name):
        """Whether the host has the variable."""
        self.looked.add(name)
        return name in self.names

    def _value(self, name, default):
        if name not in self.names:
            return default
        if name not in self._values:
            try:
                self._values[name] = self._template(name), None
            except FleetError as error:
                self._values[name] = None, error
        value, error = self._values[name]
        if error:
            raise error
        return value

    def _template(self, name):
        try:
            value = self._variables[name]
            if isinstance(value, jinja2.Undefined):
                str(value)  # raises what a lookup is given in place of an error
            return clean(value, "variable " + name)
        except FleetError:
            raise
        except Exception as error:  # whatever the templating engine raises: undefined facts, a locked vault, bad Jinja
            text = " ".join(str(error).split()).rstrip(".")
            locked = any(word in text.lower() for word in ("vault", "decrypt"))
            raise FleetError(
                "inventory.variable-unresolvable",
                "variable %s cannot be worked out for the plan: %s. %s",
                (
                    name,
                    text,
                    LOCKED
                    if locked
                    else "The plan touches no node and reads no facts; write the value into the inventory.",
                ),
            ) from error

    @property
    def has_recipe(self):
        """Whether this is an inference host. One whose fleet_recipe cannot be read is: the plan says why."""
        try:
            return self.get("fleet_recipe") is not None
        except FleetError:
            return True

    def fingerprint(self, names, digest=None):
        """A digest of what a plan that reads the variables ``names`` depends on.

        digest: of bytes, as hexadecimal digits; sha256 for None.
        """
        values = {name: self._readable(name) for name in sorted(names) if name in self.names}
        ours = sorted(name for name in self.names if name.lower().startswith("fleet"))
        data = canonical([self.host, self.inventory_sources, sorted(names), ours, values])
        return digest(data) if digest else hashlib.sha256(data).hexdigest()

    def _readable(self, name):
        try:
            return [self._value(name, None)]
        except FleetError as error:
            return error.message  # a locked vault's API key is no reason against a plan


class Hosts:
    """HostVariables of the hosts of an inventory, by their names; each is made once."""

    def __init__(self, variables_of, inventory_sources=()):
        """variables_of(host) -> mapping. inventory_sources: paths given with -i."""
        self.inventory_sources = tuple(inventory_sources)
        self.made = {}  # what planning makes of them once for all hosts
        self._variables_of = variables_of
        self._hosts = {}

    @classmethod
    def of_task(cls, variables):
        """Those of the variables that ansible gives a task (hostvars and the sources)."""
        hostvars = variables["hostvars"]
        return cls(lambda host: hostvars[host], variables.get("ansible_inventory_sources") or ())

    def asked(self):
        """Those that were asked for until now."""
        return list(self._hosts.values())

    def __call__(self, host):
        if host not in self._hosts:
            self._hosts[host] = HostVariables(host, self._variables_of(host), self.inventory_sources)
        return self._hosts[host]
