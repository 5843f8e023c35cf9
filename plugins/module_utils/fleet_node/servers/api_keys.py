# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API key of a fleet, from the variable fleet_api_key to the secrets of a server and the requests of its clients.

A server's secrets contain the first key, which its engine requires and clients send, under a name of API_KEYS, and the
other keys, if there are any, under a name of OTHER_API_KEYS.
"""

from __future__ import annotations

from ..engines.health_request import PRINTABLE
from ..engines.registry import API_KEYS, OTHER_API_KEYS
from ..errors import FleetError
from ..host import redact
from ..host.files import read_json
from ..host.os_errors import os_words

VARIABLE = "fleet_api_key"
LONGEST = 1024
KINDS = {type(None): "null", dict: "a mapping", bool: "a boolean", int: "a number", float: "a number"}
ALLOWED = "1 to %d printable ASCII characters without spaces, in quotes, or a list of such keys" % LONGEST
STRING = "a string without NUL characters"


def api_keys(value, variable=VARIABLE):
    """[str] of the keys in a variable, first the key that clients send; [] for null, an empty string or list.

    Line breaks at the end, which `echo KEY | ansible-vault encrypt_string` leaves, are cut off. Raises FleetError,
    which never shows a key.
    """
    if value is None or value == "" or value == []:
        return []
    several = isinstance(value, (list, tuple))
    keys = []
    for number, one in enumerate(value if several else [value]):
        where = "%s[%d]" % (variable, number) if several else variable
        if not isinstance(one, str):
            raise _invalid(where, "is %s, not a string" % KINDS.get(type(one), "a " + type(one).__name__))
        key = str(one).rstrip("\r\n")
        if not key and not several:
            return []
        if len(key) > LONGEST:
            raise _invalid(where, "has %d characters" % len(key))
        if not PRINTABLE.fullmatch(key):
            raise _invalid(where, "is empty, or contains a space or a character that is not printable ASCII")
        if key in keys:
            raise _invalid(where, "is the same as %s[%d]" % (variable, keys.index(key)))
        keys.append(key)
    return keys


def _invalid(where, words, allowed=ALLOWED):
    return FleetError("secrets.invalid", where, words, allowed)


def client_key(paths, entry):
    """The API key that clients of a planned server send, from its file of secrets; "" if its plan has no key.

    paths: NodePaths. The key is masked in the result of this call. Raises FleetError if the file cannot be read or
    contains no key.
    """
    names = [name for name in API_KEYS if name in entry["secrets"]]
    if not names:
        return ""
    path = paths.secret(entry["name"])
    try:
        found = read_json(path)
        key = found.get(names[0]) if isinstance(found, dict) else None
        usable = isinstance(key, str) and PRINTABLE.fullmatch(key)
        reason = None if usable else "%s is missing or contains no %s" % (path, names[0])
    except OSError as error:
        reason = os_words(error)
    if reason is not None:
        raise FleetError("api-key.not-on-node", entry["name"], reason)
    redact.read_on_node.add(key)
    return key


def common_client_key(paths, entries):
    """The API key of servers to which one client sends requests. Raises FleetError if they have different keys."""
    keys = {entry["name"]: client_key(paths, entry) for entry in entries}
    if len(set(keys.values())) > 1:
        raise FleetError("api-key.differs", ", ".join(keys))
    return next(iter(keys.values()), "")


def is_file(source):
    """Whether a secret comes from a file of the node, by its absolute path, instead of from a variable."""
    return source.startswith("/")


def secret_value(name, variable, value):
    """The secret `name` of a server as a string, from `value` of `variable`; "" if the value is empty, None if it is
    optional and missing. Raises FleetError, which never shows the value.
    """
    if variable == VARIABLE or name in API_KEYS:
        keys = api_keys(value, variable)
        return (" ".join(keys[1:]) or None) if name in OTHER_API_KEYS else keys[0] if keys else ""
    if value is None:
        return ""
    if isinstance(value, (dict, list, tuple)):
        raise _invalid(variable, "is a mapping" if isinstance(value, dict) else "is a list", STRING)
    text = str(value)
    if "\0" in text:
        raise _invalid(variable, "contains a NUL character", STRING)
    return text
