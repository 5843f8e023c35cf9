# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every operation that takes variables or logins: nothing of their secrets is logged, printed or returned."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.redact import (
    parameter_secrets,
    url_secrets,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import FILE_OF
from ansible_collections.inference.fleet.plugins.modules import node
from ansible_collections.inference.fleet.tests.unit.operating import Operation

SECRETS = ("pa55word", "pr0xyword", "t0ken-of-a-hub", "l0gin")
VALUES = {
    "environment": {"HTTPS_PROXY": "http://me:pa55word@proxy:3128", "http_proxy": "me:pr0xyword@proxy:3128",
                    "HF_TOKEN": "t0ken-of-a-hub", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "NO_PROXY": "localhost"},
    "auth": {"registry.example": {"username": "me", "password": "l0gin"}, "other.example": "l0gin"},
}  # fmt: skip
VALUES["proxy_env"] = VALUES["environment"]
REQUIRED = {
    "container_engine": {},
    "container_image": {"image": "registry.example/me/app:1"},
    "model_weights": {"source": "huggingface", "repo": "me/app", "destination": "/models/me"},
    "python_environment": {"path": "/envs/me"},
    "tiktoken_encodings": {"directory": "/encodings", "sources": []},
}
OPTIONS = {name: set(operation_of(name).arguments) & set(VALUES) for name in FILE_OF}


def test_these_are_all():
    assert {name for name, options in OPTIONS.items() if options} == set(REQUIRED)


@pytest.mark.parametrize(("name", "as_text"), [*((name, False) for name in REQUIRED), ("container_image", True)])
def test_a_call_that_is_refused_logs_and_shows_no_argument(monkeypatch, capsys, name, as_text):
    logged = []
    monkeypatch.setattr(node.Module, "log", lambda self, msg, log_args=None: logged.append((msg, log_args)))
    values = {key: json.dumps(VALUES[key]) if as_text else VALUES[key] for key in OPTIONS[name]}
    with patch_module_args({**REQUIRED[name], **values, "nobody_knows": "this"}), pytest.raises(SystemExit):
        Operation(name).main()
    output = capsys.readouterr().out
    said = json.loads(output)
    assert said["failed"] and "nobody_knows" in said["msg"]
    assert [secret for secret in SECRETS if secret in output] == []
    assert (said["invocation"], logged) == ({"module_args": {}}, [(name + " of None", None)])


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        ("https://user:s3cret@host/simple", {"s3cret"}),
        ("user:s3:cr@t@proxy:3128", {"s3:cr@t"}),
        ("https://user:a%40b@host", {"a%40b", "a@b"}),
        ("https://a:b1@x/y https://c:d2@z", {"b1", "d2"}),
        ({"x": [{"y": "https://u:p@h"}]}, {"p"}),
        ("https://[::1", set()),
        ("nobody@example.org", set()),
        ("registry.example/app:1@sha256:11", set()),
        ("demo @ file:///x@1", set()),
        (None, set()),
    ],
)
def test_secrets_of_addresses(value, secrets):
    assert url_secrets(value) == secrets


def test_an_address_may_lack_its_scheme_where_it_is_one():
    assert parameter_secrets({"endpoint": "t0ken@mirror", "environment": {"HTTP_PROXY": "t1ken@proxy:1"}}) == {
        "t0ken", "dDBrZW46", "t1ken", "dDFrZW46",
    }  # fmt: skip
    assert parameter_secrets({"environment": {"EMAIL": "me@example.org"}, "auth": None}) == set()
