# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people write, before anything reads it: values that no JSON can hold, paths, addresses, numbers, switches.

Each check returns or raises one sentence that names the key, the value and what is allowed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import posixpath
import unicodedata

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import (
    FALSE,
    NUMBER,
    TRUE,
    WHOLE,
    close_to,
    odd_characters,
    path_text,
    show,
    visible,
)

MAX_DEPTH = 32
MAX_VALUES = 100_000  # of one variable or recipe, aliases written out
MAX_NUMBER = 2**63 - 1
MAX_LINE = 1024
# Folders that no deployment may have for itself: a purge, or a new checkpoint, would remove what is in them.
SYSTEM_FOLDERS = (
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/sbin", "/usr/share", "/var",
    "/var/lib", "/var/log", "/var/run", "/var/tmp",
)  # fmt: skip


class Mistakes:
    """Gathers the messages of FleetErrors, so that all are said at once."""

    def __init__(self):
        self.errors = []

    @contextlib.contextmanager
    def noted(self):
        """A FleetError within ends the block and is kept."""
        try:
            yield
        except FleetError as error:
            self.keep(error)

    def add(self, code, message, values=()):
        """Keep a mistake, unless it is there already. Arguments: of FleetError."""
        self.keep(FleetError(code, message, values))

    def keep(self, error):
        """Keep the problems of a FleetError."""
        self.errors.append(error)

    def raise_any(self):
        """Raises one FleetError with all messages, a line for each; nothing where there are none."""
        if self.errors:
            raise FleetError.together(self.errors)


def invalid(where, value, allowed):
    """The FleetError of a value that is not allowed. where: names it in the message."""
    odd = odd_characters(value) if isinstance(value, str) and invisible(value) else ""
    return FleetError(
        "input.value-invalid", "%s is %s%s; allowed: %s. Correct the value.", (where, show(value), odd, allowed)
    )


def taken_twice(key, value, other):
    """The FleetError of a device, port or path that two servers or groups have."""
    return FleetError("plan.taken-twice", "%s has %s, which %s has as well. Change one of them.", (key, value, other))


def unusable(where, allowed):
    """The FleetError of a value that may hold a password."""
    return FleetError(
        "input.secret-invalid",
        "%s is not usable (it is not shown, as it may hold a password); allowed: %s. Correct the value.",
        (where, allowed),
    )


def unknown_key(where, key, value, known):
    """The FleetError of a key that a mapping may not have."""
    close = close_to(str(key), known, 0.6)
    return FleetError(
        "input.key-unknown",
        "%s has the unknown key '%s'%s (value %s)%s; allowed: %s. Correct or remove it.",
        (
            where, visible(key), odd_characters(key), show(value), "; did you mean '%s'?" % close if close else "",
            ", ".join(known),
        ),
    )  # fmt: skip


def invisible(text):
    """Whether a string contains an invisible character or a non-ASCII space."""
    return any(unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp", "Cn", "Co") or one == "\u00a0" for one in text)


def clean(value, name):
    """``value`` of the variable or file ``name`` as dict, list, str, int, float, bool and None.

    It drops the tagged and lazy containers of the templating engine. Raises FleetError with a line for each value that
    JSON cannot hold.
    """
    mistakes, count = Mistakes(), [0]
    result = _clean(value, name, (), frozenset(), mistakes, count)
    mistakes.raise_any()
    return result


def _clean(value, name, path, above, mistakes, count):
    key = "%s: '%s'" % (name, path_text(path)) if path else name
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise _too_large(name, "has more than %d values" % MAX_VALUES)
    if isinstance(value, (dict, list, tuple)):
        if id(value) in above or len(path) > MAX_DEPTH:
            text = "contains itself" if id(value) in above else "is nested more than %d deep" % MAX_DEPTH
            mistakes.keep(_too_large(key, text))
            return None
        above = above | {id(value)}
    if isinstance(value, dict):
        result = {}
        for inner, item in value.items():
            _check_key(inner, key, mistakes)
            result[str(inner)] = _clean(item, name, (*path, str(inner)), above, mistakes, count)
        return result
    if isinstance(value, (list, tuple)):
        return [_clean(item, name, (*path, index), above, mistakes, count) for index, item in enumerate(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int) and abs(value) <= MAX_NUMBER:
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    # The templating engine derives classes, whose names mean nothing to the reader.
    kind = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "datetime"))
    mistakes.add(
        "input.type-unusable",
        "%s is %s; allowed: strings, finite numbers up to %d, true, false, null, lists and mappings. Correct it, or "
        "put it into quotes.",
        (key, "%s (%s)" % (show(value), kind.__name__), MAX_NUMBER),
    )
    return None


def _too_large(key, text):
    return FleetError(
        "input.too-large", "%s %s, aliases (*name) written out. Remove the alias, or what it repeats.", (key, text)
    )


def _check_key(inner, key, mistakes):
    if not isinstance(inner, str) or inner != inner.strip() or not inner or invisible(inner):
        instead = str(inner).strip()
        if isinstance(inner, bool):  # YAML 1.1 reads on and off so
            instead = "on" if inner else "off"
        mistakes.add(
            "input.key-invalid",
            "%s has the key %s%s; allowed: a string without spaces around it or characters that cannot be seen. Put it "
            'into quotes: "%s".',
            (key, show(inner), odd_characters(inner), visible(instead)),
        )


def check_string(where, value):
    """Raises FleetError unless ``value`` is a string on one line, of characters that can be seen."""
    if not isinstance(value, str) or not value or value != value.strip() or invisible(value) or len(value) > MAX_LINE:
        allowed = "a string on one line, without spaces around it, of %d characters at most" % MAX_LINE
        raise invalid(where, value, allowed)


def check_folder(where, value, example, root="", own=True):
    """Raises FleetError unless ``value`` is a path outside of system folders. Returns it without a trailing /.

    example: a path that is allowed. root: fleet_root, which it must not hold. own: whether it is written
    to; what is only read may be anywhere but at /.
    """
    check_string(where, value)
    path = "/" + posixpath.normpath(value).lstrip("/")
    shared = path == "/" or (own and (path in SYSTEM_FOLDERS or posixpath.dirname(path) == "/home"))
    around = own and root and (root + "/").startswith(path + "/")
    if not value.startswith("/") or ".." in value.split("/") or shared or around:
        allowed = "an absolute path without '..' or ~, to a folder of this deployment alone%s, for example %s"
        raise invalid(where, value, allowed % (" that does not contain fleet_root" if around else "", example))
    return value.rstrip("/")


def check_address(where, value):
    """Raises FleetError unless ``value`` is an address that a server can listen on."""
    try:
        address = ipaddress.ip_address(value) if isinstance(value, str) and "%" not in value else None
    except ValueError:
        address = None
    if address is None or address.is_multicast or str(address) == "255.255.255.255":
        raise invalid(where, value, "an IPv4 or IPv6 address of the node, for example 127.0.0.1, fd00::5, or 0.0.0.0")


def number(value, whole=True):
    """``value`` as a number, None where it is none: a string counts where it looks like one, true does not."""
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
    """``value`` as a number above 0, or from ``low``, to ``high``. FleetError says what is allowed."""
    found = number(value, whole)
    if found is None or found > high or (found < low if low is not None else found <= 0):
        kind, least = "whole number" if whole else "number", "above 0" if low is None else "from %d" % low
        raise invalid(where, value, "a %s %s, at most %d" % (kind, least, high))
    return found


def check_choice(where, value, allowed):
    """Raises FleetError unless ``value`` is one of the strings ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        raise invalid(where, value, ", ".join(allowed))


def check_switch(where, value):
    """Raises FleetError unless ``value`` is true or false, or a word for it."""
    if isinstance(value, float) or str(value).strip().lower() not in TRUE | FALSE | {"1", "0"}:
        raise invalid(where, value, "true or false")


def check_version(where, value):
    """Raises FleetError unless ``value`` is a string or a number: the version of a secret."""
    if isinstance(value, (list, dict)) or value == "":
        raise invalid(where, value, "a string or a number")


def check_batches(where, value):
    """Raises FleetError unless ``value`` says how many hosts at a time: what Ansible's `serial` takes."""
    batches = value if isinstance(value, list) else [value]
    for one in batches or [None]:
        percent = isinstance(one, str) and one.strip().endswith("%")
        size = number(one.strip()[:-1] if percent else one)
        if size is None or not 1 <= size <= (100 if percent else 10**6):
            raise invalid(where, value, 'a number of hosts, a percentage from "1%" to "100%", or a list of these')


def address_of(host, variables):
    """The address of a host that the inventory declares. Raises FleetError if a variable needs facts."""
    for name in ("fleet_address", "ansible_host"):
        value = variables.get(name)
        if value:
            return str(value)
    return host
