# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of hosts, as the plan reads them: which there are, what they may be, and where recipes are found."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os

import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils import seen_files
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import variable_kinds
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.host_variables import LOCKED
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.site_recipes import check_outside, recipes_of
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
ELSEWHERE = "'hostvars' is undefined"  # jinja's words for a value of another host's, which only plays work out
SERVICES = ("etcd_", "nats_")  # what their variables begin with
CLOSE = 0.9  # of the names of variables: other ones that begin like ours are somebody else's


@functools.cache
def table():
    """variables.yml."""
    return _yaml(os.path.splitext(os.path.abspath(__file__))[0] + ".yml")


@functools.cache
def shared():
    """{name: its row} of the fleet_* variables that people set."""
    return {name: row for section in table()["sections"] for name, row in section["variables"].items()}


@functools.cache
def known():
    """Names of all fleet_* variables, also of those that plays set."""
    return frozenset((*shared(), *table()["internal"]))


@functools.cache
def of_roles():
    """{name: (option of the role's argument spec, row of the table or None)} of the variables of roles."""
    found = {}
    for folder in sorted(os.scandir(os.path.join(COLLECTION, "roles")), key=lambda one: one.name):
        specs = os.path.join(folder.path, "meta", "argument_specs.yml")
        if os.path.isfile(specs):
            for name, option in _yaml(specs)["argument_specs"]["main"].get("options", {}).items():
                found[name] = (option, row_of(name, option))
    return found


def row_of(name, option):
    """What the table says of a role's variable; None where its argument spec says enough."""
    if option.get("choices") or option.get("type") == "bool":
        return None
    rows = (row for row in table()["roles"] if any(fnmatch.fnmatchcase(name, one) for one in row["names"]))
    return next(rows, None)


def _yaml(path):
    with open(path, encoding="utf-8") as stream:
        return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def recipe_paths(variables):
    """Folders that recipes are looked for in, before the collection's own."""
    configured = variables.get("fleet_recipe_paths") or []
    if isinstance(configured, str):
        configured = [part for part in configured.split(os.pathsep) if part]
    if not isinstance(configured, list) or not all(isinstance(folder, str) and folder for folder in configured):
        raise FleetError(
            "inventory.recipe-paths-not-a-list",
            "fleet_recipe_paths is %s; allowed: a list of folders, for example [/srv/recipes].",
            (show(configured),),
        )
    folders = [os.path.expanduser(folder) for folder in configured]
    missing = [folder for folder in folders if not seen_files.is_folder(folder)]
    if missing:
        raise FleetError(
            "inventory.recipe-path-missing",
            "fleet_recipe_paths names %s, which is no folder on the controller; allowed: folders that are there. Make "
            "it, or remove it from the list.",
            (", ".join(show(folder) for folder in missing),),
        )
    for folder in folders:
        check_outside(folder, variables.inventory_sources)
    folders += [place for source in variables.inventory_sources for place in recipes_of(source)]
    return list(dict.fromkeys(folders))


def overlays_of(variables):
    """Names in fleet_overlay: a name, several joined by commas, or a list of them."""
    given = variables.get("fleet_overlay") or []
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise FleetError(
            "inventory.overlay-invalid",
            "fleet_overlay is %s; allowed: the name of an overlay of the recipe, or a list of names.",
            (show(given),),
        )
    return tuple(dict.fromkeys(names))


def check_variables(variables, mistakes):
    """Note what is wrong with the names and values of a host's variables, whatever the run reads of them.

    Of roles those are checked that the host's roles read. A value in a vault that is locked is not looked at.
    """
    for name in sorted(variables.names):
        usual = name.lower().replace("-", "_")
        if usual.startswith("fleet") and name not in known() and not overrides.VARIABLE.match(name):
            close = difflib.get_close_matches(usual, known(), 1, cutoff=CLOSE)
            if close:
                mistakes.add(
                    "inventory.variable-unknown",
                    "variable %s is unknown; did you mean %s? Use that name.",
                    (name, close[0]),
                )
    for name, row in shared().items():
        if name in variables.names and row["kind"] != "plan":
            with mistakes.noted():
                _check(variables, name, functools.partial(variable_kinds.check, name, spec=row), row.get("secret"))
    ours = variables.has_recipe
    for name, (option, row) in of_roles().items() if ours or _serves(variables) else ():
        if (ours or name.startswith(SERVICES)) and variables.has(name):
            check = functools.partial(variable_kinds.check_option, name, option=option)
            if row:
                check = functools.partial(variable_kinds.check, name, spec=row)
            with mistakes.noted():
                _check(variables, name, check, lazy=True)


def _serves(variables):
    """Whether a host is in a group of the services that servers share."""
    groups = variables.peek("group_names") or []
    return any(variables.peek(name + "group", name[:-1]) in groups for name in SERVICES)


def _check(variables, name, check, lazy):
    """lazy: the plays template it, not the plan; so what cannot be worked out here is none of the plan's business."""
    try:
        value = variables.peek(name)
    except FleetError as error:
        left = lazy or LOCKED in error.values or any(ELSEWHERE in str(one) for one in error.values)
        if not error.code.startswith("input.") and left:
            return
        raise
    check(value=value)


def read_checked(variables, name, default, mistakes, check=None):
    """A variable's value, ``default`` where it is not set or null; what is wrong with it is noted."""
    value = default
    with mistakes.noted():
        given = variables.get(name)
        value = default if given is None else given
        if check:
            check(name, value)
    return value
