# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of hosts for planning: their names, allowed values, and the folders of recipes."""

from __future__ import annotations

import fnmatch
import functools
import ipaddress
import os
import re
import urllib.parse

import yaml

from ...module_utils.fleet_node.containers.images import check_mirror
from ...module_utils.fleet_node.errors import FleetError
from .. import seen_files
from ..base import checks
from ..base.checks import invalid
from ..base.words import close_to
from ..engines import ENGINES
from ..platforms import PLATFORMS
from ..recipe import overrides
from ..seen_files import COLLECTION
from .inventory import LOCKED, check_outside, recipes_of

LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
LIMITS = ("ttft_ms", "tpot_ms")
MOST_MS = 10**9
SECRET_KINDS = {"environment", "hidden", "keys", "logins", "token", "password", "index", "indexes", "url"}
LIST, MAPPING = "a list; with -e as JSON", "a mapping; with -e as JSON"


@functools.cache
def table():
    """Return the content of variables.yml."""
    return read_yaml(os.path.splitext(os.path.abspath(__file__))[0] + ".yml")


def read_yaml(path):
    """Return the content of a YAML file of the collection."""
    with open(path, encoding="utf-8") as stream:
        return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def check_value(name, value, spec):
    """Raises FleetError if this value is not allowed for the variable `name`. spec: its row of variables.yml."""
    if value != "" or not spec.get("empty"):
        _check_kind(name, value, spec["kind"], spec)


def _check_kind(name, value, kind, spec=None):
    row = table()["kinds"][kind]
    if kind in MATCHES or "pattern" in row or "any" in row:
        if not _matches(value, kind, row):
            raise checks.unusable(name, row["words"]) if "secret" in row else invalid(name, value, row["words"])
    elif "items" in row:
        if not isinstance(value, list) and "single" not in row:
            raise invalid(name, value, LIST)
        if value == [] and "single" in row and "empty" not in row:
            raise invalid(name, value, table()["kinds"][row["items"]]["words"])
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            _check_kind("%s[%d]" % (name, index), one, row["items"], spec)
    elif "values" in row:
        _mapping(name, value, "secret" not in row)
        if "exact" in row and set(value) != set(row["exact"]) and (value or "empty" not in row):
            raise checks.unusable(name, "a mapping with " + ", ".join(row["exact"]))
        for key, one in value.items():
            if "keys" in row:
                _check_kind(name + "'s key", key, row["keys"])
            named = [other for pattern, other in row.get("named", {}).items() if re.fullmatch(pattern, key)]
            _check_kind("%s.%s" % (name, key), one, [*named, row["values"]][0])
    if kind in CHECKS:
        CHECKS[kind](name, value, *([spec] if kind in BY_ROW else []))


def _matches(value, kind, row):
    """Return whether a value has the pattern of a kind, passes its function, or is of any of its kinds. A number counts
    as a string, unless the kind is strict."""
    if "any" in row:
        return any(_matches(value, one, table()["kinds"][one]) for one in row["any"])
    text = str(value) if type(value) in (int, float) and "strict" not in row else value
    fits = MATCHES.get(kind) or re.compile(row["pattern"]).fullmatch
    return isinstance(text, str) and not checks.invisible(text) and bool(fits(text))


def _is_host(text):
    """Return whether a string is a name or address of a host, without port."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        labels = text.rstrip(".").split(".")
        return len(text) <= 253 and not re.fullmatch(r"[0-9.]*", text) and all(map(LABEL.fullmatch, labels))


def _is_url(text):
    """Return whether a string is the address of a web server; {version} and {architecture} are filled in later."""
    plain = text.replace("{version}", "0").replace("{architecture}", "x")
    try:
        parts = urllib.parse.urlsplit(plain)
        good = parts.scheme in ("http", "https") and parts.port != 0 and _is_host(parts.hostname or "")
    except ValueError:
        return False
    return good and not re.search(r"[\s\\\"'<>{}|^`]", plain)


def _mapping(name, value, shown=True):
    if not isinstance(value, dict):
        raise invalid(name, value, MAPPING) if shown else checks.unusable(name, MAPPING)


def limits_of(given, tune, name="fleet_tune_limits"):
    """Return {ttft_ms, tpot_ms}, None without a limit: `given`, or the limits of `tune`. Raises FleetError."""
    if given is None:
        return {key: (tune.get("limits") or {}).get(key) for key in LIMITS}
    if not isinstance(given, dict) or set(given) - set(LIMITS) or not given:
        raise invalid(name, given, "a mapping with %s, such as {ttft_ms: 2000}" % " or ".join(LIMITS))
    found = {key: given.get(key) for key in LIMITS}
    return {
        key: value if value is None else float(checks.check_number("%s.%s" % (name, key), value, MOST_MS, whole=False))
        for key, value in found.items()
    }


def _setting(name, value):
    if isinstance(value, (list, dict)) or value is None or checks.invisible(str(value)):
        raise invalid(name, value, "a number, true, false or a string on one line")


def _token(name, value):
    text = value.rstrip("\r\n") if isinstance(value, str) else ""
    if not text or checks.invisible(text) or re.search(r"\s", text):
        raise checks.unusable(name, "a string without spaces or line breaks; a number in quotes")


def _message(name, value):
    if not isinstance(value, str):
        raise invalid(name, value, "a string")


def _folder(name, value, row):
    example = "/srv/inference-fleet" + "; empty for the system's folders" * bool(row.get("empty"))
    checks.check_folder(name, value, example)


def _number(name, value, row):
    checks.check_number(name, value, row["high"], row["kind"] == "integer", row.get("low"))


# Checks of kinds, with the variable's row of the table; the others without.
MATCHES = {  # of kinds that no pattern describes
    "certificate_host": lambda text: _is_host(text.removeprefix("*.")),
    "host": _is_host,
    "url": _is_url,
}
BY_ROW = {
    "choice": lambda name, value, row: checks.check_choice(name, value, row["choices"]),
    "folder": _folder,
    "number": _number,
    "integer": _number,
}
CHECKS = {
    **BY_ROW,
    "address": checks.check_address,
    "engine": lambda name, value: checks.check_choice(name, value, sorted(ENGINES)),
    "hidden": functools.partial(_mapping, shown=False),
    "limits": lambda name, value: limits_of(value, {}, name),
    "line": checks.check_string,
    "mapping": _mapping,
    "message": _message,
    "mirror": lambda name, value: check_mirror(value, name),
    "platform": lambda name, value: checks.check_choice(name, value, sorted(PLATFORMS)),
    "port": lambda name, value: checks.check_number(name, value, 65535),
    "scalar": _setting,
    "switch": checks.check_switch,
    "token": _token,
    "version_of_key": checks.check_version,
}


ELSEWHERE = "'hostvars' is undefined"  # Jinja's message for a value of another host, which only plays can evaluate
SERVICES = ("etcd_", "nats_", "endpoint_", "monitoring_")  # prefixes of their variables
CLOSE = 0.9  # similarity of names; other similar variables may belong to other collections


@functools.cache
def shared():
    """Return {name: its row} of the fleet_* variables that users set."""
    return {name: row for section in table()["sections"] for name, row in section["variables"].items()}


@functools.cache
def known():
    """Return the names of all fleet_* variables, including those that plays set."""
    return frozenset((*shared(), *table()["internal"]))


@functools.cache
def of_roles():
    """Return {name: its row} of the variables of roles."""
    found = {}
    for folder in sorted(os.scandir(os.path.join(COLLECTION, "roles")), key=lambda one: one.name):
        specs = os.path.join(folder.path, "meta", "argument_specs.yml")
        if os.path.isfile(specs):
            for name, option in read_yaml(specs)["argument_specs"]["main"].get("options", {}).items():
                found[name] = row_of(name, option)
    return found


@functools.cache
def may_hold_secrets():
    """Return the names of the variables that may contain a password."""
    rows = {**shared(), **of_roles()}.items()
    return {name for name, row in rows if row.get("secret") or row["kind"] in SECRET_KINDS}


def row_of(name, option):
    """Return the row of a role's variable: of the table, or by the choices or the type in its argument spec."""
    kind = option.get("type")
    if option.get("choices"):
        return {"kind": "choices" if kind == "list" else "choice", "choices": option["choices"]}
    if kind == "bool":
        return {"kind": "switch"}
    for row in table()["roles"]:
        if any(fnmatch.fnmatchcase(name, one) for one in row["names"]):
            return row
    items = "mappings" if option.get("elements") == "dict" else "lines"
    return {"kind": {"dict": "hidden" if option.get("no_log") else "mapping", "list": items}[kind]}


def recipe_paths(variables):
    """Return the folders that are searched for recipes, before the collection's own."""
    configured = variables.get("fleet_recipe_paths") or []
    if not isinstance(configured, list) or not all(isinstance(folder, str) and folder for folder in configured):
        raise invalid("fleet_recipe_paths", configured, "a list of folders, for example [/srv/recipes]")
    folders = [os.path.expanduser(folder) for folder in configured]
    for folder in folders:
        if not seen_files.is_folder(folder):
            raise invalid("fleet_recipe_paths", folder, "a folder that exists on the control node")
        check_outside(folder, variables.inventory_sources)
    folders += [place for source in variables.inventory_sources for place in recipes_of(source)]
    return list(dict.fromkeys(folders))


def overlays_of(variables):
    """Return the names in fleet_overlay: a name, several joined by commas, or a list of them."""
    given = variables.get("fleet_overlay") or []
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise invalid("fleet_overlay", given, "the name of an overlay of the recipe, or a list of names")
    return tuple(dict.fromkeys(names))


def check_variables(variables):
    """Raises FleetError for errors in the names and values of a host's variables, whether or not the run uses them.

    Variables of roles are checked if the host runs the role. An encrypted value without its vault password is not
    checked.
    """
    mistakes = checks.Mistakes()
    for name in sorted(variables.names):
        usual = name.lower().replace("-", "_")
        if usual.startswith("fleet") and name not in known() and not overrides.VARIABLE.match(name):
            close = close_to(usual, known(), CLOSE)
            if close:
                mistakes.add("inventory.variable-unknown", name, close)
    for name, row in shared().items():
        if name in variables.names and row["kind"] != "plan":
            with mistakes.noted():
                _check(variables, name, functools.partial(check_value, name, spec=row), row.get("secret"))
    ours = variables.has_recipe
    for name, row in of_roles().items() if ours or _serves(variables) else ():
        if (ours or name.startswith(SERVICES)) and variables.has(name):
            with mistakes.noted():
                _check(variables, name, functools.partial(check_value, name, spec=row), lazy=True)
    mistakes.raise_any()


def _serves(variables):
    """Return whether a host is in a group of the services that servers share."""
    groups = variables.peek("group_names") or []
    return any(variables.peek(name + "group", name[:-1]) in groups for name in SERVICES)


def _check(variables, name, check, lazy):
    """lazy: the play evaluates the variable, not the plan, so a value that cannot be evaluated here is not an error."""
    try:
        value = variables.peek(name)
    except FleetError as error:
        left = lazy or LOCKED in error.values or any(ELSEWHERE in str(one) for one in error.values)
        if not error.code.startswith("input.") and left:
            return
        raise
    if value is not None:
        check(value=value)


def read_checked(variables, name, default, mistakes, check=None):
    """Return a variable's value, ``default`` if it is null or not set. Errors are noted."""
    given = mistakes.result_of(variables.get, name)
    if check and given is not None:
        mistakes.result_of(check, name, given)
    return default if given is None else given
