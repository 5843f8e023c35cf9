# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API keys and secrets of planned servers, as the controller sees them: never a value in a plan, whatever it is."""

from __future__ import annotations

import ipaddress
import re

from ansible_collections.inference.fleet.plugins.module_utils import vllm_other_keys
from ansible_collections.inference.fleet.plugins.module_utils.api_keys import VARIABLE, api_keys, secret_value
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.guard import API_KEY
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES

SECRETS = {API_KEY: VARIABLE, vllm_other_keys.OTHER_API_KEYS: VARIABLE}
REFERENCE = re.compile(r"^\{\{\s*(\w+)\s*\}\}$")
KEY_FLAG = "api-key"
LOCKED = (
    "is in a vault that is locked, or opened with another password; give its password (--ask-vault-pass, "
    "--vault-password-file)"
)


def key_count(variables, deploys):
    """How many API keys the servers of a host get, without needing them: a plan is made without the vault as well.

    variables: HostVariables. One that cannot be read counts as a key, and a list in the open whose items are locked by
    its length. deploys: whether a value that is no key is a FleetError.
    """
    if VARIABLE not in variables.names:
        return 0
    try:
        value = variables.get(VARIABLE)
    except FleetError:
        return _locked_count(variables)
    try:
        return len(api_keys(value))
    except FleetError:
        if deploys:
            raise
        return len(value) if isinstance(value, list) else 1


def _locked_count(variables):
    value, seen = variables.raw(VARIABLE), set()
    while isinstance(value, str) and REFERENCE.match(value) and value not in seen:
        seen.add(value)
        value = variables.raw(REFERENCE.match(value).group(1))
    return max(1, len(value)) if isinstance(value, (list, tuple)) else 1


def check_engine(where, engine, secrets, count):
    """FleetError where the engine cannot ask for the keys that the fleet has, or the recipe gives it another one."""
    name = ENGINES[engine].api_key
    if count and not name:
        raise FleetError(
            "%s is set, but the engine %s has no API keys: it would answer whoever reaches it. Set %s to null for this "
            "host, and put a gateway that asks for the key in front." % (VARIABLE, ENGINES[engine].label, VARIABLE)
        )
    if count and secrets.get(name, VARIABLE) != VARIABLE:
        raise FleetError(
            "%s: secrets.%s names the variable '%s', but %s is set as well; remove one of the two."
            % (where, name, secrets[name], VARIABLE)
        )


def check_not_in_the_open(where, engine, command, arguments, variables, config):
    """FleetError for a key in the command line, the environment or the configuration: all of them can be read on the
    node and are in the plan."""
    name = ENGINES[engine].api_key
    if not name:
        return
    content = (config or {}).get("content")
    found = ["arguments." + flag for flag in arguments if flag.replace("_", "-") == KEY_FLAG]
    found += ["environment." + name] if name in variables else []
    found += ["config.content." + key for key in content or () if str(key).replace("_", "-") == KEY_FLAG]
    found += ["command" for word in command if word.partition("=")[0].replace("_", "-") == "--" + KEY_FLAG]
    if found:
        raise FleetError(
            "%s: %s holds an API key, which everybody who sees the plan or the node's processes could read; remove it, "
            "and set %s, best in a vault." % (where, found[0], VARIABLE)
        )


def give_keys(engine, count, entry_secrets, argv, environment, folder):
    """(secrets, argv, environment) of a server with the fleet's keys. folder: where modules for engines lie."""
    if not count:
        return entry_secrets, argv, environment
    secrets = {**entry_secrets, ENGINES[engine].api_key: VARIABLE}
    if count > 1:
        secrets[vllm_other_keys.OTHER_API_KEYS] = VARIABLE
        argv = [*argv, "--middleware", "%s.%s" % (vllm_other_keys.MODULE, vllm_other_keys.OtherKeys.__name__)]
        path = ":".join(filter(None, (folder, environment.get("PYTHONPATH"))))
        environment = {**environment, "PYTHONPATH": path}
    return secrets, argv, environment


def is_loopback(bind):
    """Whether only the node itself can reach what listens on this address."""
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


def missing_secrets(entries, variables):
    """Sentences on the secrets of a host's entries that have no value, equal servers together; [] where all have.

    variables: HostVariables.
    """
    problems = {}
    for entry in entries:
        for name, variable in sorted(entry["secrets"].items()):
            lacking = _lacking(variables, name, variable)
            if lacking:
                problems.setdefault((name, variable, lacking), []).append(entry["name"])
    return [
        "%s: the secret %s comes from the variable '%s', which %s" % (", ".join(servers), name, variable, lacking)
        for (name, variable, lacking), servers in problems.items()
    ]


def _lacking(variables, name, variable):
    """What is wrong with a secret's variable; "" where it has a value. It never shows the value."""
    if variable not in variables.names:
        return "is not set for this host; set it, best in a vault"
    try:
        value = secret_value(name, variable, variables.get(variable))
    except FleetError as error:
        words, cause = error.message, str(error.__cause__ or "")
        if "vault" in cause.lower() or "decrypt" in cause.lower():
            return LOCKED
        undefined = re.search(r"'(\w+)' is undefined", cause)
        if undefined:
            return "names '%s', which is not set for this host; set it, best in a vault" % undefined.group(1)
        if error.__cause__ is not None:
            return "cannot be templated; look at what it refers to"
        return "cannot be used: " + words.rstrip(".")
    return "" if value else "is empty; set it, best in a vault"
