# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check mode, the token that is seen nowhere, proxies and certificates."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import gpt_oss
from ansible_collections.inference.fleet.tests.unit.engines import certificates
from ansible_collections.inference.fleet.tests.unit.operating import Operation
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    REPO,
    SHARD,
    TOKEN,
    Node,
    both,
)

module = Operation("model_weights")


class TestCheckMode:
    @both
    def test_the_hub_is_asked_without_a_job(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])], page=10) as hub:
            node = Node(capsys, tmp_path, hub, source)
            proxied = {
                "endpoint": "http://hub.example.org", "environment": {"HTTP_PROXY": hub.endpoint, "NO_PROXY": ""}
            }  # fmt: skip
            for ways in ({}, proxied):
                foreseen = node.run(True, token=TOKEN, **ways)
                assert foreseen["fetched"] == sorted(node.wanted()), foreseen
                assert foreseen["to_fetch_bytes"] == sum(map(len, node.wanted().values()))
                assert foreseen["commit"] == hub.repositories[REPO].head
            assert [entry["proxied"] for entry in hub.requests if entry["kind"] == "list"][-1]
            assert not node.destination.exists() and not node.root.exists()
            assert node.run(True)["problem"] in ("repository", "access")
            assert node.run(True, token=TOKEN, revision="v9")["problem"] == "revision"

    @both
    @pytest.mark.parametrize("down", [True, False])
    def test_a_hub_that_is_down_or_busy_is_not_waited_for(self, capsys, tmp_path, hub, source, monkeypatch, down):
        warnings = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
        node = Node(capsys, tmp_path, hub, source)
        if down:
            hub.stop()
        else:
            hub.fault("status", path="*", status=429, retry_after=300, on=["info", "list"])
        foreseen = node.run(True, retries=5)
        assert (foreseen["changed"], foreseen["message"]) == (
            True, "would install %s in %s; how much is not known" % (node.name, node.destination)
        )  # fmt: skip
        assert len(warnings) == 1 and warnings[0].startswith("Not checked: ")


class TestSecrets:
    @both
    def test_the_token_is_nowhere(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 30_000, access="private", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub, source)
            hub.fault("hold", path=SHARD, at=1000)
            said = [node.run(wait_s=0, token=TOKEN)]
            argv = Path("/proc/%d/cmdline" % node.pid()).read_bytes()
            said.append(node.finish(token=TOKEN))
            assert said[-1]["changed"], said[-1]
            said += [node.run(token=TOKEN, verify="full"), node.run(token=TOKEN + "x", refresh=True)]
            assert said[-1]["problem"] in ("access", "repository")
            assert TOKEN not in json.dumps(said) and TOKEN.encode() not in argv
            for path in [*tmp_path.rglob("*")]:
                assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
            assert [entry for entry in hub.requests if entry.get("on_cdn") and entry.get("token")] == []

    @pytest.mark.parametrize(
        "changes",
        [{"endpoint": "https://me:%s@mirror" % TOKEN}, {"endpoint": "me:%s@mirror" % TOKEN},
         {"endpoint": "https://%s@mirror" % TOKEN}, {"environment": {"HF_TOKEN": TOKEN}},
         {"environment": {"https_proxy": "http://me:%s@proxy" % TOKEN}, "workers": 0},
         {"environment": {"https_proxy": "http://me:a#b/%s?@proxy" % TOKEN}, "workers": 0},
         {"environment": {"https_proxy": "http://me:%s\0@proxy" % TOKEN}},
         {"environment": {"MY_AUTH": TOKEN}}, {"environment": {"A\0B": "x"}}, {"environment": {"AB": "x\0"}},
         {"endpoint": "https://mirror/?token=%s" % TOKEN}, {"endpoint": "https://mirror/a?access_token=%s&b=1" % TOKEN},
         {"token": TOKEN[:9] + "\n" + TOKEN[9:]}, {"token": "\0" + TOKEN}, {"token": TOKEN + "é"},
         {"revision": "main\0"}, {"destination": "/models/a\nb"}, {"repo": "a/b\n"}, {"include": ["*\0"]}],
    )  # fmt: skip
    def test_secrets_in_the_wrong_place(self, capsys, node, changes):
        """Not in what -vvv shows either, where the arguments are left out."""
        with patch_module_args({**node.arguments, **changes}), pytest.raises(SystemExit):
            module.main()
        said = json.loads(capsys.readouterr().out)
        assert said["failed"] and said["invocation"] == {"module_args": {}}
        assert TOKEN not in json.dumps(said) and TOKEN[9:] not in said["msg"] and "Traceback" not in json.dumps(said)

    def test_the_password_of_a_proxy(self, node):
        proxy = "http://me:s3cr3tProxy@127.0.0.1:9"
        failed = node.run(environment={"http_proxy": proxy, "no_proxy": ""})
        assert failed["failed"] and "s3cr3tProxy" not in json.dumps(failed)
        for path in node.root.rglob("*"):
            assert not path.is_file() or b"s3cr3tProxy" not in path.read_bytes(), path


class TestWays:
    @both
    def test_through_a_proxy(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        endpoint = "http://hub.example.org"
        environment = {"HTTP_PROXY": hub.endpoint, "NO_PROXY": ""}
        assert node.run(endpoint=endpoint, environment=environment)["changed"]
        assert {entry["proxied"] for entry in hub.requests if entry["kind"] == "list"} == {True}

    @pytest.mark.parametrize("content", [None, "hello", "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n"])
    def test_a_ca_bundle_that_is_none(self, node, tmp_path, content):
        if content is not None:
            (tmp_path / "ca.pem").write_text(content)
        node.refused("weights.argument-invalid", ca_bundle=str(tmp_path / "ca.pem"))
        assert node.hub.requests == [] and not node.root.exists()

    def test_a_private_ca(self, capsys, tmp_path, monkeypatch):
        certificate, context = tmp_path / "ca.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for path, text in zip((certificate, tmp_path / "key"), certificates.made()):
            path.write_text(text)
        context.load_cert_chain(certificate, tmp_path / "key")
        with Hub([gpt_oss(REPO, 30_000)], context=context) as hub:
            node = Node(capsys, tmp_path, hub)
            failed = node.run()
            assert failed["problem"] == "network" and "certificate" in failed["msg"].lower()
            foreseen = node.run(True, ca_bundle=str(certificate))
            assert len(foreseen["fetched"]) == 26
            monkeypatch.chdir(tmp_path)
            assert node.run(ca_bundle="ca.pem")["code"] == "weights.argument-invalid"
            assert node.run(ca_bundle=str(certificate))["changed"]
            assert node.found() == node.wanted()
