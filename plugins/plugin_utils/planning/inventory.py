# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of an inventory that this collection deploys to, and hosts that are the same machine."""

from __future__ import annotations

import os

import jinja2
from ansible import context

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.server_spec import digest, server_ports
from ..base.checks import clean
from ..base.words import show, some

FACTS = "The plan touches no node and reads no facts; write the value into the inventory."
LOCKED = "Give the vault's password (--ask-vault-pass), or write the value where it is not encrypted."


class HostVariables:
    """The variables of a host. Only variables that the plan needs are templated or decrypted, once each.
    Returned values must not be changed."""

    def __init__(self, host, variables, inventory_sources=()):
        """variables: mapping. inventory_sources: paths given with -i."""
        self.host = host
        self.names = set(variables)
        self.inventory_sources = tuple(str(source) for source in inventory_sources)
        self.read = set()  # names of the variables that the plan was made from
        self.looked = set()  # names of the variables that were only checked
        self._variables = variables
        self._values = {}  # name → value or FleetError

    def get(self, name, default=None):
        """Return the variable's value, or ``default``.
        Raises FleetError, with its name, if a variable cannot be evaluated here."""
        self.read.add(name)
        return self._value(name, default)

    def peek(self, name, default=None):
        """get() for a variable that the plan does not depend on."""
        self.looked.add(name)
        return self._value(name, default)

    def has(self, name):
        """Return whether the host has the variable."""
        self.looked.add(name)
        return name in self.names

    def _value(self, name, default):
        if name not in self.names:
            return default
        if name not in self._values:
            try:
                self._values[name] = self._template(name)
            except FleetError as error:
                self._values[name] = error
        if isinstance(self._values[name], FleetError):
            raise self._values[name]
        return self._values[name]

    def _template(self, name):
        try:
            value = self._variables[name]
            if isinstance(value, jinja2.Undefined):
                str(value)  # raises the error that a lookup returns as a value
            return clean(value, "variable " + name)
        except FleetError:
            raise
        except Exception as error:  # any error of a template: undefined facts, a locked vault, bad Jinja
            text = " ".join(str(error).split()).rstrip(".")
            locked = any(word in text.lower() for word in ("vault", "decrypt"))
            advice = LOCKED if locked else FACTS
            raise FleetError("inventory.variable-unresolvable", name, text, advice) from error

    @property
    def has_recipe(self):
        """Whether this is an inference host.
        A host whose fleet_recipe cannot be evaluated counts: the plan reports the error."""
        try:
            return self.get("fleet_recipe") is not None
        except FleetError:
            return True

    def fingerprint(self, names):
        """Return a digest of the values of the variables ``names``."""
        values = {name: self._readable(name) for name in sorted(names) if name in self.names}
        ours = sorted(name for name in self.names if name.lower().startswith("fleet"))
        return digest([self.host, self.inventory_sources, sorted(names), ours, values])

    def _readable(self, name):
        try:
            return [self._value(name, None)]
        except FleetError as error:
            return error.message  # a locked vault's API key is no reason against a plan


class Hosts:
    """HostVariables of the hosts of an inventory, by name. Each is created once."""

    def __init__(self, variables_of, inventory_sources=()):
        """variables_of(host) -> mapping. inventory_sources: paths given with -i."""
        self.inventory_sources = tuple(inventory_sources)
        self.made = {}  # results of planning that all hosts share
        self._variables_of = variables_of
        self._hosts = {}

    @classmethod
    def of_task(cls, variables):
        """Return the Hosts of the variables that Ansible passes to a task (hostvars and the sources)."""
        hostvars = variables["hostvars"]

        def variables_of(host):
            if host not in hostvars:  # hostvars[host] would be a ReferenceError outside of templates
                raise KeyError(host)
            return hostvars[host]

        return cls(variables_of, variables.get("ansible_inventory_sources") or ())

    def asked(self):
        """Return the HostVariables that were requested so far."""
        return list(self._hosts.values())

    def __call__(self, host):
        if host not in self._hosts:
            self._hosts[host] = HostVariables(host, self._variables_of(host), self.inventory_sources)
        return self._hosts[host]


def cluster_of(variables):
    """Return the fleet_cluster of a host as a string, because YAML reads some names as numbers; None without one."""
    cluster = variables.get("fleet_cluster")
    return None if cluster is None else str(cluster)


NO_INVENTORIES = ("group_vars", "host_vars", "vars_plugins")  # in an inventory directory


def recipes_of(source):
    """Return the folders with a site's recipes for the inventory `source`:
    `recipes` next to it and, for a file, next to its folder."""
    source = os.path.normpath(source)
    inside = [] if os.path.isdir(source) else [os.path.dirname(source)]
    return [os.path.join(folder, "recipes") for folder in (*inside, os.path.dirname(inside[0] if inside else source))]


def check_inventory_folders(sources):
    """Raises FleetError for recipes inside an inventory directory, because Ansible reads them as inventories.

    sources: paths given with -i.
    """
    for source in sources:
        if not os.path.isdir(source):
            continue
        for folder, names, files in os.walk(source):
            names[:] = [name for name in names if not name.startswith(".") and name not in NO_INVENTORIES]
            if os.path.basename(folder) == "recipes" and any(name.endswith((".yml", ".yaml")) for name in files):
                check_outside(folder, [source])


def check_outside(folder, sources):
    """Raises FleetError for a folder of recipes inside an inventory directory."""
    real = os.path.realpath(folder)
    for source in sources:
        root = os.path.realpath(source)
        inside = os.path.isdir(root) and (real + "/").startswith(root + "/")
        if inside and not any(part.startswith(".") for part in os.path.relpath(real, root).split("/") if part != "."):
            raise FleetError("inventory.recipes-inside", folder, source, recipes_of(source)[-1])


# Services that a role of the same name provides: the schemes of their addresses without and with TLS. A service on a
# single host listens on loopback without TLS, on several hosts with TLS, unless the variable NAME_tls specifies
# otherwise.
PROVIDED = {"etcd": ("http", "https"), "nats": ("nats", "tls")}


def inference_hosts(hosts, others, deployed=False):
    """Return those of ``hosts`` that have fleet_recipe. others: Hosts. deployed: also hosts that have only
    fleet_hardware, because servers of an earlier plan may run there."""
    given = map(others, hosts)
    return [one.host for one in given if (deployed and "fleet_hardware" in one.names) or one.has_recipe]


def no_recipe():
    """Return the FleetError of an inventory without an inference host."""
    from ..recipe import load as recipes

    return FleetError("inventory.no-recipe", ", ".join(recipes.available([recipes.OWN_RECIPES])))


def no_host(sources):
    """Return the FleetError of an inventory without any host."""
    return FleetError("inventory.no-host", ", ".join(show(str(one)) for one in sources) or "none was given with -i")


def check_limit(ours, play_hosts, variables):
    """Raises FleetError if --limit selects no host that this collection manages.

    ours: inference hosts. play_hosts: the hosts that --limit selects. variables: the variables of the task.
    """
    names = (variables.get(name + "_group", name) for name in (*PROVIDED, "endpoint", "monitoring"))
    served = {host for name in names for host in variables["groups"].get(name, ())}
    if not set(play_hosts) & {*ours, *served}:
        raise FleetError("inventory.limit-empty", some(list(play_hosts)) or "none", some(list(ours)))


def address_given():
    """Return whether the command line sets ansible_host, which then applies to every host."""
    return any("ansible_host" in str(given) for given in context.CLIARGS.get("extra_vars") or ())


SHARED = (
    "both are one machine (%s) with one %s. Remove one of the names, or set another fleet_root and other ports for it."
)


def one_machine(planned, others):
    """Yield (FleetError, two hosts) for names of the same machine whose servers would conflict.

    Names are the same machine if Ansible uses the same address, port and kind of connection for them. others: Hosts.
    """
    if address_given():
        return  # an address of the command line applies to every host and does not identify machines
    machines = {}
    for host, item in planned.items():
        if not item["servers"] or len(planned) < 2:
            continue
        variables = others(host)
        try:
            kind = str(variables.peek("ansible_connection") or "ssh").rpartition(".")[2]
            kind = "ssh" if kind == "smart" else kind
            address = "localhost" if kind == "local" else str(variables.peek("ansible_host") or host).lower()
            port, root = variables.peek("ansible_port"), variables.peek("fleet_root") or ""
            port = port or (22 if kind == "ssh" else None)
        except FleetError:
            continue  # the connection reports it
        machine, known = "%s, %s" % (kind, address), machines.setdefault((kind, address, str(port)), [])
        ports = {port for entry in item["servers"] for port, _name in server_ports(entry)}
        for other, other_root, other_ports in known:
            if root == other_root or ports & other_ports:
                what = "fleet_root (%s)" % show(root) if root == other_root else "port %d" % min(ports & other_ports)
                yield FleetError("inventory.one-machine-twice", SHARED % (machine, what)), (other, host)
        known.append((host, root, ports))
