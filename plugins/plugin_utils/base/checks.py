# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people write, before anything reads it: values that no JSON can hold, paths, addresses, numbers, switches.

Each check returns or raises one sentence that names the key, the value and what is allowed.
"""

from __future__ import annotations

import contextlib
import datetime
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
        """One FleetError with all messages, a line for each; nothing where there are none."""
        if self.errors:
            raise FleetError.together(self.errors)


def invisible(text):
    """Whether ``text`` has a character that cannot be seen, or a space that is none."""
    return any(unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp", "Cn", "Co") or one == "\u00a0" for one in text)


def clean(value, name):
    """``value`` of the variable or file ``name`` as dict, list, str, int, float, bool and None.

    It drops the tagged and lazy containers of the templating engine. FleetError has a line for each key that is no
    string, each number that is none, and everything else that JSON cannot hold.
    """
    mistakes, count = Mistakes(), [0]
    result = _clean(value, name, (), frozenset(), mistakes, count)
    mistakes.raise_any()
    return result


def _clean(value, name, path, above, mistakes, count):
    key = "%s: '%s'" % (name, path_text(path)) if path else name
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise FleetError(
            "input.too-many-values",
            "%s holds more than %d values, aliases (*name) written out; allowed: as many at most. Remove what it "
            "repeats.",
            (name, MAX_VALUES),
        )
    if isinstance(value, (dict, list, tuple)):
        if id(value) in above or len(path) > MAX_DEPTH:
            mistakes.add(
                "input.too-deep",
                "%s %s. Remove the alias (*name), or write less deeply.",
                (key, "contains itself" if id(value) in above else "is nested more than %d deep" % MAX_DEPTH),
            )
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
    if isinstance(value, (int, float)):
        if not math.isfinite(value) if isinstance(value, float) else abs(value) > MAX_NUMBER:
            mistakes.add("input.number-invalid", "%s is %s; allowed: %s.", (key, *_number_text(value)))
            return None
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, str):
        return str.__str__(value)
    mistakes.add(
        "input.type-unusable",
        "%s is %s; allowed: strings, numbers, true, false, null, lists and mappings. %s.",
        (key, *_foreign(value)),
    )
    return None


def _number_text(value):
    if isinstance(value, float):
        name = "nan (no number)" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return name, "a number that is finite. Write one, or put a word into quotes"
    return "a number of more than %d" % MAX_NUMBER, "up to that. Write a smaller one, or put it into quotes"


def _foreign(value):
    if isinstance(value, (datetime.date, datetime.datetime)):
        return "the date %s" % value, "Put it into quotes"
    if isinstance(value, bytes):
        return "binary data (!!binary)", "Write it as a string"
    if isinstance(value, (set, frozenset)):
        return "a set (!!set)", "Write a list"
    return "of type %s" % type(value).__name__, "Write it as one of these"


def _check_key(inner, key, mistakes):
    if not isinstance(inner, str):
        reads, instead = "", visible(inner)
        if isinstance(inner, bool):
            reads = " (YAML reads %s so)" % ("on, yes and true" if inner else "off, no and false")
            instead = "on" if inner else "off"
        mistakes.add(
            "input.key-not-a-string",
            '%s has the key %s%s, which is no string; a key must be one. Put it into quotes: "%s".',
            (key, show(inner), reads, instead),
        )
    elif inner != inner.strip() or not inner or invisible(inner):
        mistakes.add(
            "input.key-unreadable",
            "%s has the key %s%s; a key must not be empty, nor have spaces around it or characters that cannot be "
            "seen. Remove these.",
            (key, show(str(inner)), odd_characters(inner)),
        )


def check_string(where, value):
    """FleetError unless ``value`` is a string on one line, of characters that can be seen."""
    if not isinstance(value, str) or not value or value != value.strip() or invisible(value) or len(value) > MAX_LINE:
        odd = odd_characters(value) if isinstance(value, str) else ""
        raise FleetError(
            "input.line-invalid",
            "%s is %s%s; allowed: a string on one line, without spaces around it, of %d characters at most. Remove "
            "what is too much.",
            (where, show(value), odd, MAX_LINE),
        )


def check_folder(where, value, example, root="", own=True):
    """FleetError unless ``value`` is an absolute path below the system's own folders. Returns it without a / behind.

    example: a path that is allowed. root: fleet_root, which it must not hold. own: whether it is written
    to; what is only read may be anywhere but at /.
    """
    allowed = "allowed: an absolute path without '..', to a folder of its own, for example %s" % example
    check_string(where, value)
    if not value.startswith("/") or ".." in value.split("/"):
        home = " ~ is not expanded; write the whole path." if value.startswith("~") else ""
        raise FleetError("input.folder-invalid", "%s is %s; %s.%s", (where, show(value), allowed, home))
    path = "/" + posixpath.normpath(value).lstrip("/")
    if path == "/" or (own and (path in SYSTEM_FOLDERS or posixpath.dirname(path) == "/home")):
        raise FleetError(
            "input.folder-not-own",
            "%s is %s, which is not for one deployment alone; %s.",
            (where, show(value), allowed),
        )
    if own and root and (root + "/").startswith(path + "/"):
        raise FleetError(
            "input.folder-holds-root", "%s is %s, which holds fleet_root; %s.", (where, show(value), allowed)
        )
    return value.rstrip("/")


def check_address(where, value):
    """FleetError unless ``value`` is an address that a server can listen on."""
    try:
        address = ipaddress.ip_address(value) if isinstance(value, str) and "%" not in value else None
    except ValueError:
        address = None
    if address is None or address.is_multicast or str(address) == "255.255.255.255":
        raise FleetError(
            "input.address-invalid",
            "%s is %s; allowed: an IPv4 or IPv6 address of the node, without port, brackets, zone or spaces, and no "
            "name: for example 127.0.0.1, 10.0.0.5, 0.0.0.0 for all, or fd00::5.",
            (where, show(value)),
        )


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
        raise FleetError(
            "input.number-out-of-range",
            "%s is %s; allowed: a %s %s, at most %d.",
            (
                where,
                show(value),
                "whole number" if whole else "number",
                "above 0" if low is None else "from %d" % low,
                high,
            ),
        )
    return found


def check_choice(where, value, allowed):
    """FleetError unless ``value`` is one of the strings ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        raise FleetError("input.choice-unknown", "%s is %s; allowed: %s.", (where, show(value), ", ".join(allowed)))


def check_switch(where, value):
    """FleetError unless ``value`` is true or false, or a word for it."""
    if isinstance(value, float) or str(value).strip().lower() not in TRUE | FALSE | {"1", "0"}:
        raise FleetError("input.not-a-switch", "%s is %s; allowed: true or false.", (where, show(value)))


def check_version(where, value):
    """FleetError unless ``value`` is a string or a number: the version of a secret."""
    if isinstance(value, (list, dict)) or value == "":
        raise FleetError(
            "input.not-a-scalar", "%s is %s; allowed: a string or a number. Set another one.", (where, show(value))
        )


def check_batches(where, value):
    """FleetError unless ``value`` says how many hosts at a time: what Ansible's `serial` takes."""
    batches = value if isinstance(value, list) else [value]
    for one in batches or [None]:
        size = number(one.strip()[:-1]) if isinstance(one, str) and one.strip().endswith("%") else number(one)
        percent = isinstance(one, str) and "%" in one
        if size is None or not 1 <= size <= (100 if percent else 10**6):
            raise FleetError(
                "input.serial-invalid",
                '%s is %s; allowed: a whole number of hosts, at least 1, a percentage from "1%%" to "100%%", or a '
                "list of these.",
                (where, show(value)),
            )


__all__ = [
    "Mistakes", "check_address", "check_batches", "check_choice", "check_folder", "check_number", "check_string",
    "check_switch", "check_version", "clean", "invisible", "number", "visible",
]  # fmt: skip
