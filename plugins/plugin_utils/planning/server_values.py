# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of planned servers on the control node: secrets and API keys, container engines and images, restarts. A plan
never contains the values of secrets."""

from __future__ import annotations

import ipaddress
import re

from ...module_utils.fleet_node.engines.registry import API_KEYS, ENGINES, OTHER_API_KEYS
from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.server_spec import leaders_to_follow, start_order
from ...module_utils.fleet_node.servers.api_keys import VARIABLE, api_keys, is_file, secret_value
from ..base.checks import invalid
from ..base.words import by_text, show

SECRETS = dict.fromkeys((*API_KEYS, *OTHER_API_KEYS), VARIABLE)
KEY_FLAG = "api-key"
LOCKED = (
    "is in a vault that is locked, or opened with another password; give its password (--ask-vault-pass, "
    "--vault-password-file)"
)


def has_key(variables, deploys):
    """Return whether the servers of a host get API keys.
    A key that cannot be decrypted counts: a plan needs no vault password.

    variables: HostVariables. deploys: whether a value that is not a key raises FleetError.
    """
    readable = False
    try:
        value = variables.get(VARIABLE)
        readable = True
        return bool(api_keys(value))
    except FleetError:
        if deploys and readable:
            raise
        return True


def check_not_in_the_open(where, engine, server):
    """Raises FleetError for a key in the command line, the environment or the configuration, which others can read."""
    name = engine.api_key
    if not name:
        return
    found = ["arguments." + flag for flag in server.values if flag.replace("_", "-") == KEY_FLAG]
    found += ["environment." + name] if name in server.environment else []
    found += ["config.content." + key for key in server.content if str(key).replace("_", "-") == KEY_FLAG]
    found += ["command" for word in server.command if word.partition("=")[0].replace("_", "-") == "--" + KEY_FLAG]
    if found:
        raise FleetError("plan.api-key-in-the-open", where, found[0], VARIABLE)


def give_keys(where, engine, secrets):
    """Return (secrets, arguments) of a server with the fleet's keys; the arguments name a module for engines.
    Raises FleetError if the engine does not support keys, or if the recipe names another variable for them."""
    name = engine.api_key
    if not name:
        raise FleetError("plan.engine-without-api-keys", VARIABLE, engine.label)
    if secrets.get(name, VARIABLE) != VARIABLE:
        raise invalid("%s: secrets.%s" % (where, name), secrets[name], "null, as %s is set" % VARIABLE)
    return {**secrets, **SECRETS}, ENGINES[engine.name].key_arguments


def is_loopback(bind):
    """Return whether only the node itself can reach a server that listens on this address."""
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


def missing_secrets(entries, variables):
    """Return sentences on the secrets of a host's entries that have no value, with equal servers merged;
    [] if all have a value.

    variables: HostVariables.
    """
    found = by_text(
        ((name, variable, _lacking(variables, name, variable)), entry["name"])
        for entry in entries
        for name, variable in sorted(entry["secrets"].items())
        # the other keys come from the variable of the first key, which is already reported
        if name not in OTHER_API_KEYS and not is_file(variable)
    )
    words = "%s: the secret %s comes from the variable '%s', which %s"
    return [words % (", ".join(servers), *secret) for secret, servers in found.items() if secret[-1]]


def _lacking(variables, name, variable):
    """Return the error of a secret's variable, without its value; "" if it has a value."""
    if not variables.has(variable):
        return "is not set for this host; set it, best in a vault"
    try:
        value = secret_value(name, variable, variables.peek(variable))
    except FleetError as error:
        words, cause = error.message, str(error.__cause__ or "")
        undefined = re.search(r"'(\w+)' is undefined", cause)
        if undefined:
            return "names '%s', which is not set for this host; set it, best in a vault" % undefined.group(1)
        if "decrypt" in cause.lower():
            return LOCKED
        if error.__cause__ is not None:
            return "cannot be templated; look at what it refers to"
        return "cannot be used: " + words.rstrip(".")
    return "is empty; set it, best in a vault" if value == "" else ""


def secret_names(servers):
    """Return the names of the variables that contain the servers' secrets, sorted, each once."""
    return sorted({one for entry in servers for one in entry["secrets"].values() if not is_file(one)})


def container_engines(servers):
    """Return the engines of this node that run the servers' containers, sorted,
    without engines at a separate address."""
    found = [entry["container"] for entry in servers if entry["container"]]
    return sorted({container["engine"] for container in found if not container["address"]})


def container_images(servers):
    """Return [{engine, address, image, digest}] of the servers' containers, each once, in the servers' order."""
    keys = ("engine", "address", "image", "digest")
    used = [entry["container"] for entry in servers if entry["container"]]
    return [dict(zip(keys, image)) for image in dict.fromkeys(tuple(one[key] for key in keys) for one in used)]


def registries(images, mirror=""):
    """Return the hosts of the registries of images (container_images), or of the mirror if it is set."""
    from ...module_utils.fleet_node.containers.engine import split_reference
    from ...module_utils.fleet_node.containers.images import mirrored

    return sorted({split_reference(mirrored(image["image"], mirror))[0] for image in images})


def batches(servers, meant):
    """Return [[names]] of the selected servers, leaders first, each with the servers that restart with it.
    Raises FleetError.

    servers: plan entries of a host. meant: a name, several with commas between them, a list of names, or "all".
    """
    entries = {entry["name"]: entry for entry in servers}
    known = ", ".join(entries) or "none"
    names = [name.strip() for name in meant.split(",")] if isinstance(meant, str) else meant
    names = names if isinstance(names, list) else []
    names = list(entries) if names == ["all"] else names
    if not names or set(names) - set(entries):
        raise FleetError("restart.server-unknown", show(meant), known)
    found, order = [], start_order(entries)
    for name in order:
        if name in names and not any(name in batch for batch in found):
            found.append([name])
            for other in order:  # leaders come first, so that followers of followers are found
                if other not in found[-1] and set(leaders_to_follow(entries[other])) & set(found[-1]):
                    found[-1].append(other)
    return found
