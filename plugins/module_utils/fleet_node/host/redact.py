# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets in arguments, environments and addresses, and how to mask them in messages, logs and job files."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote, quote_plus, unquote

from ..errors import FleetError

MASK = "***"
URL_USER = re.compile(r"://([^\s/?#]+)@")
LOOSE_USER = re.compile(r"://([^\s/?#@:\[]*:(?!\d*(?:[/?#]|$))\S+)@")
BARE_USER = re.compile(
    r"^([^\s/?#@:]+:[^\s/?#]+)@(?!sha256:)"
)  # as curl and Go parse a proxy; an image has a digest there
TOKEN_LIKE = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|BEARER|KEY(?:S|_|\d|$)|AUTH(?!ORS?(?:_|$))|(?:^|_)PASS(?:_|$)|_PWD$",
    re.IGNORECASE,
)
PARAMETER = re.compile(
    r"([?&;]([\w.-]*(?:token|secret|passw|signature|credential|auth|policy)[\w.-]*|(?:[\w.-]*[_-])?(?:key|sig|sign)"
    r"|key-pair-id|apikey|pass|pwd)=)([^&;\s\"'<>\\]+)",
    re.IGNORECASE,
)
PROXY_LIKE = re.compile(r"PROXY$", re.IGNORECASE)
TOKEN_LENGTH = 6  # shorter values are switches: "1" or "true" would be masked everywhere
PIECE_LENGTH = 4  # characters of a password that its address is cut at: a parser reads the a of a#b as a port
PART_LENGTH = 10  # characters of a secret that a cut leaves
EDGE_LENGTH = 5
BEGINNING = re.compile(r"(?m)^([ \t]*)(\S{1,%d})" % PART_LENGTH)
ENDING = re.compile(r"(?m)(\S{1,%d})(?=[ \t]*$|\u2026|\.\.\.)" % PART_LENGTH)
HELD = 1 << 16  # characters of a line that has no end yet
PRINTABLE = re.compile(r"[!-~]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ESCAPE = re.compile(r"%[0-9A-F]{2}")

read_on_node = set()  # secrets that this process has read from files; called.py masks them in the result


def clean_token(name, value):
    """The token in the variable `name`, stripped, or None. Raises FleetError, which never shows the value."""
    if value is None or value == "":
        return None
    token = value.strip() if isinstance(value, str) else ""
    if not PRINTABLE.fullmatch(token):
        raise FleetError("token.invalid", name)
    return token


def forms(secret):
    """The spellings of a secret that libraries use in messages, headers and addresses, including itself."""
    found = {secret, secret.strip()}
    for one in list(found):
        raw = one.encode("utf-8", "surrogatepass")
        found |= {repr(one)[1:-1], repr(raw)[2:-1], json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1]}
        found |= {quote(raw, safe=""), quote(raw), quote_plus(raw), unquote(one)}
        found |= {ESCAPE.sub(lambda match: match[0].lower(), quote(raw, safe="")), one.replace("/", "\\/")}
    found |= {repr(one)[1:-1] for one in list(found)} | {json.dumps(one)[1:-1] for one in list(found)}
    return {one for one in found if one.strip()}


def encoded(secret):
    """What base64 makes of a secret anywhere in a string, without the characters that depend on its neighbours."""
    raw, found = secret.encode("utf-8", "surrogatepass"), set()
    for before in range(3):
        end = (len(raw) + before) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(b"\0" * before + raw).decode()[(0, 2, 3)[before] : end])
    return found


def login_forms(user, password):
    """The forms of a password (of the user, if there is no password: it is a token then), and of the header that a
    client makes of the two."""
    found = forms(password or user)
    for pair in ((user, password), (unquote(user), unquote(password))):
        raw = ":".join(pair).encode("utf-8", "surrogatepass")
        found |= {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()}
    return found


def url_secrets(*values):
    """The passwords and tokens in URLs among `values` (strings, lists and dicts of them), to be kept out of logs.

    USER:PASSWORD@HOST counts as a secret, and so does ?token=… .
    """
    found = set()
    for user, password in _logins(values):
        found |= {password or user, unquote(password or user)}
    for text in strings(values):
        for _whole, _name, value in PARAMETER.findall(text):
            found |= {value, unquote(value), value.partition("#")[0]}
    return found - {""}


def strings(value):
    """Yield the strings in a value with lists and mappings."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, str):
        yield value
    elif not isinstance(value, (bytes, int, float, type(None))):
        for one in value:
            yield from strings(one)


def _logins(values):
    """(user, password) of the addresses in strings."""
    for text in strings(values):
        if "@" in text:
            for pattern in (URL_USER, BARE_USER, LOOSE_USER):
                for who in pattern.findall(text):
                    user, _colon, password = who.partition(":")
                    yield user, password


def _proxy_logins(address):
    """(user, password) of a proxy; everything before the last @ of it is a login."""
    if "@" in address:
        who = address.partition("://")[2] if "://" in address else address
        user, _colon, password = who.rpartition("@")[0].partition(":")
        yield user, password


def proxy_address(name, value):
    """The value of a proxy variable, with user and password escaped. Raises FleetError, which never shows the value."""
    text = str(value).strip()
    if re.search(r"[\x00-\x20\x7f]", text):
        problem = (
            "the address in %s contains a blank or a control character, which must be escaped, such as %%20" % name
        )
        raise FleetError("environment.invalid", problem)
    scheme, mark, rest = text.rpartition("://") if "://" in text.partition("@")[0] else ("", "", text)
    who, at, host = rest.rpartition("@")
    if not at:
        return text
    escaped = ":".join(quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", part), safe="%") for part in who.split(":", 1))
    return scheme + mark + escaped + at + host


def without_secrets(address):
    """A string that may be a URL, without what is before a user's @ and after a question mark."""
    return re.sub(r"[^/]*@", "***@", re.split(r"[?#]", address)[0])


def checked_variables(environment):
    """{name: value} of a module's environment variables, as strings. Raises FleetError, which shows no value."""
    found = {str(name): str(value) for name, value in (environment or {}).items()}
    for name, value in found.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            problem = "the variable %s has an invalid name, or NUL in its value" % json.dumps(name)
            raise FleetError("environment.invalid", problem)
    return found


def variable_secrets(variables):
    """The secrets in environment variables {name: value}: by their names, and in the addresses of proxies."""
    found = set()
    for name, value in variables.items() if isinstance(variables, dict) else ():
        text = str(value)
        if TOKEN_LIKE.search(name) and len(text.strip()) >= TOKEN_LENGTH:
            found |= forms(text)
        if PROXY_LIKE.search(name):
            for user, password in _proxy_logins(text.strip()):
                found |= login_forms(user, password)
                found |= {part for part in re.split(r"[/?#@]", password) if len(part) >= PIECE_LENGTH}
    return found


def parameter_secrets(parameters):
    """The values of a module's parameters that no log may show: url_secrets() of all; those that are secrets by the
    name of a parameter or of one of its variables (`environment`, `proxy_env`); of its logins (`auth`) all except the
    usernames."""
    texts, token, endpoint = list(strings(parameters)), parameters.get("token"), parameters.get("endpoint")
    if isinstance(endpoint, str) and "://" not in endpoint:
        texts.append("x://" + endpoint)
    secrets = url_secrets(texts) | _login_secrets(parameters.get("auth")) | {token if isinstance(token, str) else ""}
    found = {one for secret in secrets for one in forms(secret)}
    for user, password in _logins(texts):
        found |= login_forms(user, password)
    return found.union(*(variable_secrets(parameters.get(name)) for name in ("environment", "proxy_env")))


def _login_secrets(auth):
    if isinstance(auth, dict):
        auth = [value for key, value in auth.items() if key != "username"]
    if isinstance(auth, (list, tuple)):
        return {one for value in auth for one in _login_secrets(value)}
    return {str(auth)} if auth else set()


def _without_parts(text, length, parts):
    """The text with a mask for each run of characters that pieces of this length cover."""
    found, kept, at = [], 0, 0
    while at <= len(text) - length:
        if text[at : at + length] not in parts:
            at += 1
            continue
        end = at + length
        while end < len(text) and text[end - length + 1 : end + 1] in parts:
            end += 1
        found += [text[kept:at], MASK]
        kept = at = end
    return "".join([*found, text[kept:]])


class Redactor:
    """Masks secrets (None is ignored), those of environment variables, and signatures in addresses.

    Also masks what a cut leaves of a secret: PART_LENGTH characters or two thirds anywhere, EDGE_LENGTH of its start
    at the end of a line or before an ellipsis, or of its end at the beginning of a line.
    """

    def __init__(self, secrets=(), variables=None):
        found, complete = variable_secrets(dict(variables or {})), set()
        for secret in secrets:
            complete |= forms(secret) if secret else set()
        self._found = sorted(found | complete, key=len, reverse=True)
        self._parts, self._heads, self._tails = {}, set(), set()
        for secret in complete:
            length = min(PART_LENGTH, -(-2 * len(secret) // 3))
            if length > EDGE_LENGTH:
                parts = self._parts.setdefault(length, set())
                parts.update(secret[at : at + length] for at in range(len(secret) - length + 1))
                self._heads |= {secret[:end] for end in range(EDGE_LENGTH, length)}
                self._tails |= {secret[-end:] for end in range(EDGE_LENGTH, length)}

    def text(self, text):
        """The text, masked."""
        for secret in self._found:
            text = text.replace(secret, MASK)
        for length, parts in sorted(self._parts.items(), reverse=True):
            text = _without_parts(text, length, parts)
        if self._heads:
            text = BEGINNING.sub(lambda match: match[1] + self._edge(match[2], self._tails, True), text)
            text = ENDING.sub(lambda match: self._edge(match[1], self._heads, False), text)
        return PARAMETER.sub(lambda match: match[1] + MASK, text)

    @staticmethod
    def _edge(word, edges, first):
        """The characters at an edge of a line, masked as far as they are an edge of a secret."""
        for length in range(len(word), EDGE_LENGTH - 1, -1):
            if (word[:length] if first else word[-length:]) in edges:
                return MASK + word[length:] if first else word[:-length] + MASK
        return word

    def value(self, value):
        """A JSON value with its strings masked, except keys of mappings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(one) for one in value]
        return value


class Masked:
    """A stream that masks what is written to it, by line, because a secret may be written in pieces."""

    def __init__(self, stream, redactor):
        self._stream = stream
        self._redactor = redactor
        self._rest = ""

    def write(self, text):
        """Write as a stream does."""
        lines, end, rest = (self._rest + text).rpartition("\n")
        if len(rest) > HELD:
            lines, end, rest = lines + end + rest, "", ""
        self._rest = rest
        if lines or end:
            self._stream.write(self._redactor.text(lines) + end)
        return len(text)

    def close(self):
        """Write the last line, which has no end."""
        if self._rest:
            self._stream.write(self._redactor.text(self._rest))
            self._rest = ""
            self._stream.flush()

    def __getattr__(self, name):
        return getattr(self._stream, name)
