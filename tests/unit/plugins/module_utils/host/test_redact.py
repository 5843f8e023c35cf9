# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens that are accepted and refused; secrets masked in every spelling that a library could give them."""

from __future__ import annotations

import base64
import io
import json
import re
from urllib.parse import quote, quote_plus, urlsplit

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.redact import (
    Masked,
    Redactor,
    clean_token,
    forms,
    parameter_secrets,
    proxy_address,
)
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

SPELLINGS = {
    "plain": lambda secret: secret,
    "repr": repr,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "a header's repr": lambda secret: "Illegal header value %r" % ("Bearer " + secret).encode(),
    "JSON": json.dumps,
    "JSON as it is": lambda secret: json.dumps(secret, ensure_ascii=False),
    "JSON of a repr": lambda secret: json.dumps(repr(secret)),
    "JSON twice": lambda secret: json.dumps(json.dumps(secret)),
    "in an address": quote,
    "in an address, slashes too": lambda secret: quote(secret, safe=""),
    "in a form": quote_plus,
}
SECRETS = ["hf_Zq7abcdef", "hf_Zq7abcdef\n", "a/b?c#d@e%f", 'quo"te\\back', "tab\there", "smörgås", "it's", "two words"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", SECRETS)
def test_every_spelling_is_masked(secret, spelling):
    said = Redactor([secret]).text("before %s after" % SPELLINGS[spelling](secret))
    assert said.startswith("before ") and said.endswith(" after")
    for piece in (*forms(secret.strip()), *re.findall("[A-Za-z0-9]{4,}", secret)):
        assert piece not in said


@pytest.mark.parametrize(
    ("value", "token"),
    [(None, None), ("", None), *((around % "hf_Zq7!~", "hf_Zq7!~") for around in ("%s", "%s\n", "\n %s \r\n"))],
)
def test_a_token_of_printable_ascii_is_taken_without_blanks_around_it(value, token):
    assert clean_token("fleet_hf_token", value) == token


HIDDEN = ("token.invalid", "environment.invalid")


@pytest.mark.parametrize(("check", "value"), [
    *((clean_token, value) for value in ("hf_S\nEKRIT", "S EKRIT", "S\0EKRIT", "S\u00e9EKRIT", " \n", 7, ["x"])),
    (proxy_address, "http://me:pa\0EKRIT@proxy"),
])  # fmt: skip
def test_an_invalid_value_is_not_shown(check, value):
    caught = error(check, "fleet_hf_token", value)
    assert caught.code in HIDDEN and "fleet_hf_token" in caught.message and "EKRIT" not in caught.message


PASSWORDS = ["pa55word", "pa#55word", "pa/55word", "pa?55word", "pa@55word", "pa%55word", "pa%4055word", "12345/word"]


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize("password", PASSWORDS)
def test_the_password_of_a_proxy(password, scheme):
    address = "%sme:%s@proxy:3128" % (scheme, password)
    masked = Redactor(variables={"https_proxy": address})
    header = base64.b64encode(("me:" + password).encode()).decode()
    for said in (address, repr(address), "Basic " + header, password, quote(password, safe="")):
        assert "word" not in masked.text(said) and header not in masked.text(said)
    found = parameter_secrets({"environment": {"HTTPS_PROXY": address}})
    assert password in found and header in found
    parts = urlsplit(proxy_address("HTTPS_PROXY", address + "\n") if scheme else "x://" + proxy_address("p", address))
    assert (parts.hostname, parts.port, parts.username) == ("proxy", 3128, "me")
    assert "word" in parts.password and not set(parts.password) & set("#/?@")


NAMES = "HF_TOKEN MY_AUTH MYAUTH my_key API_KEY APIKEY DB_PASSWORD DB_PASS SECRET_1 AUTHORIZATION AUTH_HEADER KEY "
NAMES += "GIT_CREDENTIALS OIDC_PWD SESSION_COOKIE"
HARMLESS = "AUTHOR GIT_AUTHOR_NAME PWD OLDPWD KEYBOARD PATH COMPASS BYPASS_X"


@pytest.mark.parametrize(("names", "secret"), [(NAMES.split(), True), (HARMLESS.split(), False)])
def test_variables_that_are_called_secret(names, secret):
    found = {name: "s3cretvalue" in parameter_secrets({"environment": {name: "s3cretvalue"}}) for name in names}
    assert found == dict.fromkeys(names, secret)


PARAMETERS = "token X-Amz-Signature X-Amz-Credential auth_key sig api_key Policy"


@pytest.mark.parametrize("query", [
    "a=b&access_token=s3cretvalue#x",
    "Expires=1&Signature=s3cretvalue&Key-Pair-Id=K1",
    *("%s=s3cretvalue&X-Amz-Expires=300" % name for name in PARAMETERS.split()),
])  # fmt: skip
def test_the_parameters_of_addresses(query):
    address = "https://hub/api?" + query
    assert "s3cretvalue" not in Redactor().text("GET %s failed" % address)
    assert "s3cretvalue" in parameter_secrets({"endpoint": address})


def test_what_is_no_secret_stays():
    text = "https://hub/org/name/resolve/main/config.json?download=true&size=3 and me@example.org"
    assert Redactor(["", None], {"NO_PROXY": "localhost"}).text(text) == text
    redactor = Redactor(["sk-local-test-key-1234567890"])
    for text in ("the key of a local test", "sk", "12345678", "test-key", "a\nlocal", "", "…"):
        assert redactor.text(text) == text
    assert Redactor(["s3cret"]).value({"s3cret": ["s3cret", 3, None]}) == {"s3cret": ["***", 3, None]}


LONG = "hf_Zq7abcdefGHIJKLmnopQRST"


@pytest.mark.parametrize("spelling", ["plain", "JSON", "in an address, slashes too"])
def test_what_a_cut_leaves_of_a_secret_is_masked(spelling):
    """Whatever cut a text before it came here: the middle, the end, the beginning, a line that wraps, an ellipsis."""
    secret = "a/b?c#" + LONG
    redactor = Redactor([secret])
    text = "before " + SPELLINGS[spelling](secret) + " after"
    spelt = SPELLINGS[spelling](secret).strip('"')
    for at in range(0, len(text) + 1, 3):
        pieces = [text[:at], text[at:], text[:at] + "…", text[:at] + "...", text[:at] + "\n  " + text[at:]]
        for piece in pieces:
            shown = redactor.text(piece)
            left = [spelt[i : i + 9] for i in range(len(spelt) - 8) if spelt[i : i + 9] in shown]
            assert not left, (piece, shown)


def test_a_stream_masks_a_secret_that_comes_in_pieces():
    for at in (1, 5, 24):
        sink = io.StringIO()
        stream = Masked(sink, Redactor([LONG]))
        for piece in ("one\ntoken ", LONG[:at], LONG[at:], " and\nmore"):
            stream.write(piece)
        stream.close()
        assert sink.getvalue() == "one\ntoken *** and\nmore"
