# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of raw user input: values that JSON cannot represent, paths, addresses, numbers, switches; placeholders.

Each check returns, or raises an error of one sentence with the key, the value and the allowed values.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import posixpath
import re
import unicodedata

from ...module_utils.fleet_node.errors import FleetError
from .words import NUMBER, SWITCHES, WHOLE, meant, odd_characters, path_text, show, visible

MAX_DEPTH = 32
MAX_VALUES = 100_000  # of one variable or recipe, with aliases expanded
MAX_NUMBER = 2**63 - 1
MAX_LINE = 1024
# Folders that a deployment must not use as its data folder: a purge or a new checkpoint would delete their content.
SYSTEM_FOLDERS = (
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/sbin", "/usr/share", "/var",
    "/var/lib", "/var/log", "/var/run", "/var/tmp",
)  # fmt: skip


class Mistakes:
    """Collects the messages of FleetErrors, to report them together."""

    def __init__(self):
        self.errors = []

    @contextlib.contextmanager
    def noted(self):
        """Return a context manager. A FleetError raised in its block ends the block and is kept."""
        try:
            yield
        except FleetError as error:
            self.keep(error)

    def result_of(self, call, *arguments):
        """Return the result of a call, None if it raised a FleetError, which is kept."""
        with self.noted():
            return call(*arguments)

    def add(self, code, *values):
        """Keep a mistake, unless the same mistake is already kept. The arguments are those of FleetError."""
        self.keep(FleetError(code, *values))

    def keep(self, error):
        """Keep the problems of a FleetError."""
        self.errors.append(error)

    def raise_any(self):
        """Raises one FleetError with all messages, one per line, if there are any."""
        if self.errors:
            raise FleetError.together(self.errors)


def invalid(where, value, allowed):
    """Return the FleetError of a value that is not allowed. where: the name of the value in the message."""
    odd = odd_characters(value) if isinstance(value, str) and invisible(value) else ""
    return FleetError("input.value-invalid", where, show(value), odd, allowed)


def taken_twice(key, value, other):
    """Return the FleetError of a device, port or path that two servers or groups use."""
    return FleetError("plan.taken-twice", key, value, other)


def unusable(where, allowed):
    """Return the FleetError of a value that may contain a password."""
    return FleetError("input.secret-invalid", where, allowed)


def unknown_key(where, key, value, known):
    """Return the FleetError of a key that a mapping does not support."""
    values = (where, visible(key), odd_characters(key), show(value), meant(str(key), known), ", ".join(known))
    return FleetError("input.key-unknown", *values)


def invisible(text):
    """Return whether a string contains an invisible character or a non-ASCII space."""
    return any(unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp", "Cn", "Co") or one == "\u00a0" for one in text)


def clean(value, name):
    """Return ``value`` of the variable or file ``name`` as dict, list, str, int, float, bool and None.

    The result contains none of the templating engine's tagged and lazy containers. Raises FleetError, with a line for
    each value, if JSON cannot represent a value.
    """
    mistakes, count = Mistakes(), [0]
    result = _clean(value, name, (), mistakes, count)
    mistakes.raise_any()
    return result


def _clean(value, name, path, mistakes, count):
    key = "%s: '%s'" % (name, path_text(path)) if path else name
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise FleetError("input.too-large", name, "has more than %d values" % MAX_VALUES)
    if len(path) > MAX_DEPTH:
        raise FleetError("input.too-large", key, "is nested more than %d deep" % MAX_DEPTH)
    if isinstance(value, dict):
        result = {}
        for inner, item in value.items():
            _check_key(inner, key, mistakes)
            result[str(inner)] = _clean(item, name, (*path, str(inner)), mistakes, count)
        return result
    if isinstance(value, (list, tuple)):
        return [_clean(item, name, (*path, index), mistakes, count) for index, item in enumerate(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int) and abs(value) <= MAX_NUMBER:
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    # The templating engine derives classes; their names mean nothing to the reader.
    kind = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "datetime"))
    mistakes.add("input.type-unusable", key, "%s (%s)" % (show(value), kind.__name__), MAX_NUMBER)
    return None


def _check_key(inner, key, mistakes):
    if not isinstance(inner, str) or inner != inner.strip() or not inner or invisible(inner):
        instead = str(inner).strip()
        if isinstance(inner, bool):  # YAML 1.1 parses on and off as booleans
            instead = "on" if inner else "off"
        mistakes.add("input.key-invalid", key, show(inner), odd_characters(inner), visible(instead))


def check_string(where, value):
    """Raises FleetError if ``value`` is not a string of visible characters on one line."""
    if not isinstance(value, str) or not value or value != value.strip() or invisible(value) or len(value) > MAX_LINE:
        allowed = "a string on one line, without spaces around it, of %d characters at most" % MAX_LINE
        raise invalid(where, value, allowed)


def check_folder(where, value, example, root="", own=True):
    """Raises FleetError if ``value`` is not a path outside of system folders.

    example: an allowed path. root: fleet_root, which the path must not contain. own: whether the collection writes to
    the path; a path that is only read may be anywhere except at /.
    """
    check_string(where, value)
    path = "/" + posixpath.normpath(value).lstrip("/")
    shared = path == "/" or (own and (path in SYSTEM_FOLDERS or posixpath.dirname(path) == "/home"))
    around = own and root and (root + "/").startswith(path + "/")
    if not value.startswith("/") or ".." in value.split("/") or shared or around:
        allowed = "an absolute path without '..' or ~, to a folder of this deployment alone%s, for example %s"
        raise invalid(where, value, allowed % (" that does not contain fleet_root" if around else "", example))


def check_address(where, value):
    """Raises FleetError if ``value`` is not an address that a server can listen on."""
    try:
        address = ipaddress.ip_address(value) if isinstance(value, str) and "%" not in value else None
    except ValueError:
        address = None
    if address is None or address.is_multicast or str(address) == "255.255.255.255":
        raise invalid(where, value, "an IPv4 or IPv6 address of the node, for example 127.0.0.1, fd00::5, or 0.0.0.0")


def number(value, whole=True):
    """Return ``value`` as a number, or None if it is not a number.
    A string that contains a number counts; true does not."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        if not (WHOLE if whole else NUMBER).fullmatch(value.strip().lower()):
            return None
        return int(value) if whole else float(value)
    if (whole and not isinstance(value, int)) or not math.isfinite(value):
        return None
    return value


def check_number(where, value, high, whole=True, low=None):
    """Return ``value`` as a number above 0, or from ``low``, up to ``high``.
    Raises FleetError with the allowed range."""
    found = number(value, whole)
    if found is None or found > high or (found < low if low is not None else found <= 0):
        kind, least = "whole number" if whole else "number", "above 0" if low is None else "from %d" % low
        raise invalid(where, value, "a %s %s, at most %d" % (kind, least, high))
    return found


def check_choice(where, value, allowed):
    """Raises FleetError if ``value`` is not one of the strings ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        raise invalid(where, value, ", ".join(allowed))


def check_switch(where, value):
    """Raises FleetError if ``value`` is neither true, false, nor a word for them."""
    if isinstance(value, float) or str(value).strip().lower() not in SWITCHES:
        raise invalid(where, value, "true or false")


def check_version(where, value):
    """Raises FleetError if ``value``, the version of a secret, is neither a string nor a number."""
    if isinstance(value, (list, dict)) or value == "":
        raise invalid(where, value, "a string or a number")


def address_of(host, variables):
    """Return the address that the inventory declares for a host. Raises FleetError, which names the host, if a variable
    needs facts."""
    try:
        return str(variables.get("fleet_address") or variables.get("ansible_host") or host)
    except FleetError as error:
        raise error.within(host + ": ") from error


# -- placeholders ${name} ----------------------------------------------------------------------------------------------

PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")


def substitute(value, context, where):
    """Return ``value`` with each ${name} replaced from ``context``, also in nested lists and mappings. $${ yields ${.

    Raises FleetError, with the place, the placeholder and the allowed placeholders, if a placeholder is unknown or if
    its value is None (such as a port that is not set).
    """
    if isinstance(value, dict):
        for key in value:
            if PLACEHOLDER.search(key):
                raise invalid("the key of " + where, key, "a key without placeholders")
        return {key: substitute(item, context, "%s.%s" % (where, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, context, "%s[%d]" % (where, index)) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def one(match):
        if match.group(0) == "$${":
            return "${"
        name = match.group(1)
        if not match.group(2):
            raise invalid(where, value, "${name}, or $${ for ${ itself")
        if context.get(name) is None:
            known = sorted(key for key in context if context[key] is not None)
            why = "has no value here" if name in context else "is unknown"
            hint, allowed = meant(name.strip(), known, "${%s}", 0.8), ", ".join("${%s}" % key for key in known)
            raise FleetError("plan.placeholder-unknown", where, name, why, hint, allowed)
        return str(context[name])

    return PLACEHOLDER.sub(one, value)


def base_context(recipe, paths, host):
    """Return {name: value} of the placeholders that apply to all servers of a host. paths: NodePaths."""
    return {
        "host": host,
        "recipe": recipe["name"],
        "root": paths.root,
        "lib": paths.lib,
        "models": paths.models,
        "venvs": paths.venvs,
        "encodings": paths.encodings,
    }
