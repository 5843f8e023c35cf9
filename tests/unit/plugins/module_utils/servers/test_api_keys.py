# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a key may be, who sends which, and the ASGI middleware that lets vLLM accept several."""

from __future__ import annotations

import asyncio
import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import health_request as asking
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import vllm_api_keys
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import write_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import api_keys
from ansible_collections.inference.fleet.tests.unit.engines import plans

NAME, OTHERS = "VLLM_API_KEY", "INFERENCE_FLEET_OTHER_API_KEYS"


UNPRINTABLE = "is empty, or contains a space or a character that is not printable ASCII"


@pytest.mark.parametrize(("value", "message"), [
    (12345, "fleet_api_key is a number, not a string"), (True, "fleet_api_key is a boolean, not a string"),
    (["a", ["b"]], "fleet_api_key[1] is a list, not a string"), (["a", ""], "fleet_api_key[1] " + UNPRINTABLE),
    (["a", "b", "a\n"], "fleet_api_key[2] is the same as fleet_api_key[0]"),
    *(("sk-1" + text, "fleet_api_key " + UNPRINTABLE) for text in (" ", "\t2", "\nkey", "\0", "\x7f", "\xe9")),
    ("sk-1" * 256 + "k", "fleet_api_key has 1025 characters"),
])  # fmt: skip
def test_an_invalid_key_is_named_with_its_problem(value, message):
    caught = plans.error(api_keys.api_keys, value)
    assert (caught.code, " ".join(caught.values[:2])) == ("secrets.invalid", message)
    assert "sk-1" not in caught.message


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [("HF_TOKEN", "a\0b", "contains a NUL character"), ("HF_TOKEN", ["a"], "is a list"),
     ("HF_TOKEN", {"a": 1}, "is a mapping"), (NAME, "a b", UNPRINTABLE)],
)  # fmt: skip
def test_what_no_secret_can_hold(name, value, problem):
    caught = plans.error(api_keys.secret_value, name, "vault_x", value)
    assert (caught.code, caught.values[:2]) == ("secrets.invalid", ("vault_x", problem))


@pytest.mark.parametrize(("name", "variable", "value", "text"), [
    *((NAME, "fleet_api_key", value, text) for value, text in [
        (None, ""), ("", ""), ([], ""), ("\n", ""), ("a\n", "a"), ("a\r\n", "a"), ("!~", "!~"), (["a", "b", "c"], "a"),
        ("k" * 1024, "k" * 1024)]),
    *((OTHERS, "fleet_api_key", value, text) for value, text in [
        (["a", "b", "c\n"], "b c"), (["a"], None), ("a", None), (None, None)]),
    (NAME, "vault_key", "a\n", "a"),
    ("HF_TOKEN", "vault_token", "a\n", "a\n"), ("HF_TOKEN", "vault_token", 7, "7"),
    ("HF_TOKEN", "vault_token", None, ""),
])  # fmt: skip
def test_what_a_secret_holds(name, variable, value, text):
    assert api_keys.secret_value(name, variable, value) == text


def test_servers_with_different_keys_cannot_be_asked_by_one_client(tmp_path):
    paths = NodePaths(str(tmp_path))
    entries = [{"name": name, "secrets": {NAME: "fleet_api_key"}} for name in ("a", "b")]
    os.makedirs(paths.secrets)
    for name, key in (("a", "k1"), ("b", "k1")):
        write_json(paths.secret(name), {NAME: key, OTHERS: "k2"})
    assert api_keys.common_client_key(paths, entries) == "k1"
    write_json(paths.secret("b"), {NAME: "k2"})
    caught = plans.error(api_keys.common_client_key, paths, entries)
    assert (caught.code, caught.values) == ("api-key.differs", ("a, b",))
    assert api_keys.common_client_key(paths, [{"name": "c", "secrets": {}}]) == ""


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"VLLM_API_KEY": 7}', '{"VLLM_API_KEY": "sk-secret\\n"}'])
def test_a_planned_key_that_the_node_lacks_is_an_error_that_does_not_show_it(tmp_path, content):
    paths, entry = NodePaths(str(tmp_path)), {"name": "a", "secrets": {NAME: "fleet_api_key"}}
    if content:
        os.makedirs(paths.secrets)
        with open(paths.secret("a"), "w", encoding="utf-8") as stream:
            stream.write(content)
    caught = plans.error(api_keys.client_key, paths, entry)
    assert (caught.code, "sk-secret" in caught.message) == ("api-key.not-on-node", False)


@pytest.mark.parametrize(("secrets", "headers"), [
    ({}, None), (None, None), ({"HF_TOKEN": "x"}, None),
    ({NAME: "sk-1", OTHERS: "sk-2"}, {"Authorization": "Bearer sk-1"}),
    ({NAME: "edited by hand\n"}, None),  # http.client would show it in its error
    ({NAME: 7}, None),
])  # fmt: skip
def test_headers(secrets, headers):
    assert asking.headers(secrets) == headers


def answer(scope, monkeypatch, others="second third"):
    """(scopes that reach vLLM, messages that the middleware sends instead)."""
    monkeypatch.setenv(NAME, "first")
    monkeypatch.setenv(OTHERS, others)
    reached, sent = [], []

    async def app(scope, receive, send):
        assert receive == "receive"
        reached.append(scope)

    async def send(message):
        sent.append(message)

    asyncio.run(vllm_api_keys.ApiKeys(app)(scope, "receive", send))
    return reached, sent


@pytest.mark.parametrize(("kind", "sent"), [
    ("http", b"Bearer first"), ("http", b"bearer third"), ("websocket", b"Bearer second"),
])  # fmt: skip
def test_every_key_is_handed_on_as_the_first(monkeypatch, kind, sent):
    headers = [(b"host", b"second"), (b"authorization", sent)]
    scope = {"type": kind, "headers": headers, "path": "/v1/models", "method": "GET"}
    reached, refused = answer(scope, monkeypatch)
    assert reached == [{**scope, "headers": [headers[0], (b"authorization", b"Bearer first")]}]
    assert refused == []
    assert headers == [(b"host", b"second"), (b"authorization", sent)]


WRONG = [
    b"Bearer fourth", b"Bearer second third", b"Bearer ", b"Bearer", b"Basic second", b"second", b"Bearer \xff\xfe",
    b"Bearer  first", b"Bearer firs", b"", None,
]  # fmt: skip


@pytest.mark.parametrize(("sent", "path"), [
    *((one, "/v1/models") for one in WRONG),
    *((None, path) for path in ("/invocations", "/tokenize", "/", "/docs", "/healthy", "/x/health", "/metrics/../v1")),
])  # fmt: skip
def test_without_a_key_nothing_is_reached(monkeypatch, sent, path):
    headers = [] if sent is None else [(b"authorization", sent)]
    reached, refused = answer({"type": "http", "headers": headers, "path": path, "method": "POST"}, monkeypatch)
    assert reached == []
    assert [message.get("status") for message in refused] == [401, None]
    assert refused[1]["body"] == b'{"error":"Unauthorized"}'
    reached, refused = answer({"type": "websocket", "headers": headers, "path": path}, monkeypatch)
    assert (reached, refused) == ([], [{"type": "websocket.close", "code": 1008}])


@pytest.mark.parametrize(("path", "method", "root"), [
    ("/health", "GET", ""), ("/ping", "POST", ""), ("/metrics", "GET", ""), ("/metrics/", "GET", ""),
    ("/version", "GET", ""), ("/v1/chat/completions", "OPTIONS", ""), ("/llm/health", "GET", "/llm"),
])  # fmt: skip
def test_what_needs_no_key(monkeypatch, path, method, root):
    scope = {"type": "http", "headers": [], "path": path, "method": method, "root_path": root}
    assert answer(scope, monkeypatch, "") == ([scope], [])
    assert answer({"type": "lifespan"}, monkeypatch, "") == ([{"type": "lifespan"}], [])


def test_without_its_key_a_server_does_not_start(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(KeyError, match=NAME):
        vllm_api_keys.ApiKeys(None)
