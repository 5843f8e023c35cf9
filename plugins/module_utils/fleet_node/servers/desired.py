# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan entry on this node: its user, secrets, definition and files, and why it cannot be deployed."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re

from ..engines.registry import OTHER_API_KEYS
from ..errors import FleetError
from ..host import processes
from ..host.files import read_text
from .api_keys import is_file, secret_value
from .model import DesiredServer, config_path

# strings of JSON, numbers that YAML writes otherwise, and the mantissa of a float without a dot
_DIFFERS = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN|(?<![.\d])\d+(?=e)')
# allowed in JSON, but refused or folded by YAML readers
_UNFIT = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def check_secrets(entries, secrets, check_mode=False):
    """Raises FleetError with every secret of the entries ([entry]) whose variable or file is missing, empty or invalid.
    In check mode files are not checked, because an earlier task may create them."""
    problems = []
    for entry in entries:
        for key, source in sorted(entry["secrets"].items()):
            if key in OTHER_API_KEYS:
                continue  # from the variable of the first key
            where, lacking = "variable '%s'" % source, None
            try:
                if is_file(source):
                    where = "file " + source
                    lacking = None if check_mode or read_text(source) else "is missing or empty"
                elif secret_value(key, source, secrets.get(source)) == "":
                    lacking = "is not set, or empty"
            except FleetError as error:
                lacking = "cannot be used: " + error.message.rstrip(".")
            if lacking:
                words = "Server '%s': its secret %s comes from the %s, which %s."
                problems.append(words % (entry["name"], key, where, lacking))
    if problems:
        raise FleetError("servers.secret-missing", " ".join(problems))


def desired_server(node, entry, secrets):
    """The DesiredServer of an entry.

    secrets: {variable: value}, as far as they are known.
    """
    name, user = entry["name"], entry["user"]
    definition = node.manager.definition_path(name)
    # files that the account must not change belong to the user who deploys
    uid = 0 if os.geteuid() == 0 else None
    group = 0 if uid == 0 else None
    files = [(one, 0o644, uid, group) for one in (definition, config_path(entry)) if one]
    with contextlib.suppress(FleetError):
        owner = owner_of(name, user)
        # guards of other accounts read the entries of their leaders
        mode = 0o644 if len(node.accounts) > 1 else 0o640
        files.append((node.paths.entry(name), mode, uid, owner[1] if owner and uid == 0 else group))
        if entry["secrets"]:
            files.append((node.paths.secret(name), 0o600, *(owner or (os.geteuid(), None))))
    config = config_text(entry["config"])
    server = DesiredServer(entry, known_secrets(entry, secrets), user, None, config, files, definition)
    try:
        server.definition = node.manager.definition(entry, user)
    except FleetError as error:
        server.problem = error
    return server


def known_secrets(entry, secrets):
    """{ENV: value} of an entry's secrets as far as they are known: from files of this node, and {variable: value}."""
    known = {}
    for key, source in sorted(entry["secrets"].items()):
        if is_file(source):
            with contextlib.suppress(PermissionError):  # of a status without become
                known[key] = read_text(source)
        elif secrets.get(source) is not None:
            with contextlib.suppress(FleetError):  # check_secrets() reports values that cannot be used
                known[key] = secret_value(key, source, secrets[source])
    return {key: value for key, value in known.items() if value is not None}


def check_deployable(servers):
    """Raises FleetError for the first of these ([DesiredServer]) that this user cannot deploy on this node."""
    own = processes.user_name(os.getuid())
    for one in servers:
        if one.user is not None and one.user != own and os.getuid() != 0:
            raise FleetError(
                "servers.not-prepared",
                one.entry["name"],
                "%s cannot start it as %s" % (own, one.user),
                "the play with become",
            )
        if one.problem is not None:
            raise one.problem


def owner_of(name, user):
    """(uid, gid) of the user, None for the current user. Raises FleetError if this node has no such user."""
    if user is None:
        return None
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise FleetError(
            "servers.not-prepared", name, "this node has no account %s" % user, "prepare.yml, whose role creates it"
        ) from None
    return found.pw_uid, found.pw_gid


def container_owner(entry):
    """(uid, gid) that an entry's container runs as, None if it specifies none."""
    user = (entry["container"] or {}).get("user")
    if not user:
        return None
    uid, _colon, gid = user.partition(":")
    return int(uid), int(gid or 0)


# -- configuration files -----------------------------------------------------------------------------------------------


def config_text(config):
    """The text of an entry's config ({path, format, content}), None for None. For YAML it is JSON in a form that all
    readers of YAML accept, since a node has no YAML library."""
    if config is None:
        return None
    text = json.dumps(config["content"], indent=2, ensure_ascii=False) + "\n"
    return text if config["format"] == "json" else _DIFFERS.sub(_yaml, text)


def _yaml(found):
    word = found.group()
    if word.startswith('"'):
        return _UNFIT.sub(lambda one: "\\u%04x" % ord(one.group()), word)
    # YAML 1.1 wants a dot in the mantissa: 1e-05 would be read as a string
    return {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}.get(word, word + ".0")
