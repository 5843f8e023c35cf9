# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What addresses of indexes, hubs and proxies, variables and logins carry that no log may show."""

from __future__ import annotations

import re
from urllib.parse import unquote

URL_USER = re.compile(r"://([^\s/?#]+)@")
BARE_USER = re.compile(
    r"^([^\s/?#@:]+:[^\s/?#]+)@(?!sha256:)"
)  # as curl and Go take a proxy; an image has a digest there
TOKEN_LIKE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|COOKIE", re.IGNORECASE)
PROXY_LIKE = re.compile(r"PROXY$", re.IGNORECASE)
TOKEN_LENGTH = 6  # what is shorter is a switch: masked, its "1" or "true" would go missing everywhere


def url_secrets(*values):
    """The passwords and tokens in URLs among `values` (strings, lists and dicts of them), to be kept out of logs.

    USER:PASSWORD@HOST is one as well.
    """
    found = set()
    for value in values:
        if isinstance(value, dict):
            found |= url_secrets(*value.values())
        elif isinstance(value, (list, tuple)):
            found |= url_secrets(*value)
        elif isinstance(value, str) and "@" in value:
            for pattern in (URL_USER, BARE_USER):
                for who in pattern.findall(value):
                    user, _colon, password = who.partition(":")
                    found |= {password or user, unquote(password or user)}
    return found


def parameter_secrets(parameters):
    """What of a module's parameters no log may show: url_secrets() of all; of its variables (`environment`,
    `proxy_env`) what a name calls a token; of its logins (`auth`) all but the usernames."""
    found = url_secrets(parameters)
    addresses = [parameters.get("endpoint")]
    for variables in (parameters.get("environment"), parameters.get("proxy_env")):
        for name, value in variables.items() if isinstance(variables, dict) else ():
            if TOKEN_LIKE.search(name) and len(str(value)) >= TOKEN_LENGTH:
                found.add(str(value))
            addresses += [value] if PROXY_LIKE.search(name) else []
    found |= url_secrets(["x://" + one for one in addresses if isinstance(one, str) and "://" not in one])
    return found | _login_secrets(parameters.get("auth"))


def _login_secrets(auth):
    if isinstance(auth, dict):
        auth = [value for key, value in auth.items() if key != "username"]
    if isinstance(auth, (list, tuple)):
        return {one for value in auth for one in _login_secrets(value)}
    return {str(auth)} if auth else set()


class SecretsHidden:
    """Before AnsibleModule among a module's bases: parameter_secrets() are masked in all that it logs and returns.

    A set of no_log_values after its constructor comes too late: that logs the parameters, and shows them where one
    is refused. And no_log for a whole mapping would mask every harmless word in it as well.
    """

    def _load_params(self):
        super()._load_params()
        self.no_log_values.update(parameter_secrets(self.params))

    def _log_invocation(self):  # what came as text are mappings by now
        self.no_log_values.update(parameter_secrets(self.params))
        super()._log_invocation()
