# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""engine_ready and engine_servers_info over servers that run, wait, fail, answer wrongly, and are not there."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, runner
from ansible_collections.inference.fleet.tests.unit.engines.small_node import rehash, wait_until

READY = "engine_ready"
INFO = "engine_servers_info"


def fails(node, entries, **params):
    result = node.module(READY, entries, **params)
    assert result["failed"], result
    return result


def fails_with(node, entries, condition, what="it"):
    """The first failure for which the condition is true."""

    def look():
        result = fails(node, entries)
        return result if condition(result) else None

    return wait_until(look, what=what)


def says(words):
    """Whether the message of a failure has these words."""
    return lambda result: words in result["msg"]


def test_a_key_that_a_server_logs_and_has_deleted_from_its_file_is_masked(node):
    entry = rehash(node.entry("server-0"), command=["sh", "-c", "echo the key is k3y-of-a-server; exec sleep 900"])
    node.servers([entry])
    said = fails_with(node, [entry], says("the key is"), "its log")
    assert "k3y-of-a-server" in json.dumps(said)
    masked = fails(node, [entry], secrets={"fleet_api_key": ["other", "k3y-of-a-server"], "none": None})
    assert "the key is ***" in masked["msg"]
    assert "k3y" not in json.dumps(masked)


def test_from_nothing_to_ready(node, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # no proxy is ever asked
    entries = [
        node.entry("server-0"),
        node.entry("server-1", "--wait-for", str(tmp_path / "go")),
        rehash(node.entry("worker"), role="decode", model_id="not asked for"),
        rehash(node.entry("bare"), role="prefill", port=None, command=["sleep", "900"]),
    ]
    check = node.module(READY, entries, check=True)
    assert (check["changed"], check["skipped_reason"]) == (False, "not verified (check)")
    missing = fails(node, entries)
    assert (missing["final"], [one["state"] for one in missing["servers"]]) == (True, ["missing"] * 4)

    node.servers(entries)
    # until then others start as well, and its log has not reached the disk
    waiting = fails_with(node, entries, lambda found: "3 of 4" in found["msg"] and "token none" in found["msg"])
    assert (waiting["final"], fails(node, entries, wait_s=1)["final"]) == (False, False)
    assert [server["ready"] for server in waiting["servers"]] == [True, False, True, True]
    assert waiting["servers"][1]["log_tail"][1:] == ["token none"]
    assert waiting["servers"][0]["log_tail"] == []

    with ThreadPoolExecutor() as pool:
        ready = pool.submit(node.module, READY, entries, wait_s=60)
        (tmp_path / "go").touch()
        assert (ready.result()["changed"], ready.result()["msg"]) == (False, "4 of 4 servers ready.")
    verified = node.module(READY, entries, check=True)
    assert "skipped_reason" not in verified
    assert [server["ready"] for server in verified["servers"]] == [True] * 4
    assert len(node.module(READY, entries, only=["server-0"])["servers"]) == 1
    assert fails(node, entries, only=["x"])["code"] == "servers.only-unknown"

    changed = [rehash(entries[0], environment={"A": "1"}), *entries[1:]]
    older = fails(node, changed)
    assert (older["final"], "it differs in environment" in older["msg"]) == (True, True)
    assert node.module(READY, changed, check=True)["skipped_reason"] == "not verified (check)"

    node.servers(entries, state="stopped", only=["server-0"])
    assert fails(node, entries)["servers"][0]["state"] == "stopped"


def test_why_servers_are_not_ready(node):
    died = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.81 GiB"
    command = ["/bin/sh", "-c", "echo '%s'; sleep 0.2; exit 1" % died, "dynamo.trtllm"]
    entries = [
        node.entry("broken", "--broken", "the scheduler is busy"),
        rehash(node.entry("other"), model_id="gpt-oss-120b"),
        rehash(node.entry("unhealthy"), health={"path": "/nothing", "budget_s": 1, "poll_s": 1}),
        rehash(node.entry("dying", engine="dynamo"), command=command),
    ]
    node.servers(entries)
    words = [
        ['completion: HTTP 500 {"error": "the scheduler is busy"}'],
        ["models: 'gpt-oss-120b' is not listed (small)"],
        ["health: HTTP 404", "over its start budget of 1 s"],
        [", because a GPU ran out of memory: lower max_batch_size, "],
    ]

    def found(result):
        rows = zip(words, result["servers"], strict=True)
        return result["final"] and all(one in row["reason"] for several, row in rows for one in several)

    assert died in fails_with(node, entries, found)["servers"][3]["log_tail"]


def test_info(node):
    entries = [node.entry("server-0"), node.entry("server-1"), node.entry("server-2")]
    assert node.module(INFO, [])["servers"] == []
    assert [one["state"] for one in node.module(INFO, entries)["servers"]] == ["missing"] * 3
    assert not os.path.exists(node.paths.servers)
    node.serving(entries)
    pids = [one["pid"] for one in node.servers(entries)["servers"]]

    changed = rehash(entries[0], command=[*entries[0]["command"], "--x"], environment={})
    plan = [changed, entries[1]]
    for check in (True, False):
        info = node.module(INFO, plan, check=check)
        assert info["changed"] is False
        rows = info["servers"]
        found = [(one["name"], bool(one["drift"])) for one in rows]
        assert found == [("server-0", True), ("server-1", False), ("server-2", True)]
    one = rows[1]
    expected = {"state": "running", "ready": None, "restarts": 0, "pid": pids[1], "port": entries[1]["port"],
                "hash": entries[1]["hash"], "log_tail": []}  # fmt: skip
    assert expected.items() <= one.items()
    assert 3 < one["memory_mib"] < 100

    only = node.module(INFO, plan, only=["server-2"], log_lines=1, probe=True)["servers"]
    assert [(one["name"], one["ready"], one["log_tail"]) for one in only] == [
        ("server-2", True, ["listening on 127.0.0.1:%d" % entries[2]["port"]])
    ]
    node.servers(plan[1:], only=["server-1"], state="stopped")
    rows = node.module(INFO, [], probe=True)["servers"]
    assert [(one["state"], one["ready"], one["drift"]) for one in rows] == [
        ("running", True, None), ("stopped", False, None), ("running", True, None),
    ]  # fmt: skip
    assert node.module(INFO, plan, only=["x"])["code"] == "servers.only-unknown"


def test_a_server_that_listens_on_all_addresses_against_its_plan(node):
    """It would serve the whole network without a password; a second run finds it again."""
    entry = node.entry("server-0", "--bind", "0.0.0.0")
    node.servers([entry])
    failed = fails_with(node, [entry], says("it listens on all addresses (0.0.0.0:%d)" % entry["port"]))
    assert failed["final"] is True
    assert node.servers([entry])["answering"] is False
    wide = rehash(entry, bind="0.0.0.0")
    node.serving([wide])
    assert node.servers([wide])["answering"] is True


# -- API keys ----------------------------------------------------------------------------------------------------------

KEY = 'sk-a"b/c%41'
KEYED = {
    "secrets": {"VLLM_API_KEY": "fleet_api_key", "INFERENCE_FLEET_OTHER_API_KEYS": "fleet_api_key"},
    "secret_versions": {"VLLM_API_KEY": "1", "INFERENCE_FLEET_OTHER_API_KEYS": "1"},
}


def test_a_refused_key_is_final_at_once_and_never_shown(node):
    words = "it refuses the API key that it was started with; restart it: "
    entry = node.entry("server-0", "--wants-key", "sk-another", **KEYED)
    node.servers([entry], secrets={"fleet_api_key": KEY})
    result = fails_with(node, [entry], lambda found: "refused" not in found["msg"])
    assert result["final"] is True
    reason = result["servers"][0]["reason"]
    assert words + "models: HTTP 401" in reason and '"sent": "Bearer ***"' in reason
    (info,) = node.module(INFO, [entry], probe=True)["servers"]
    assert info["ready"] is False
    assert info["reason"].startswith(words + "models")
    for spelling in (KEY, json.dumps(KEY)[1:-1]):
        assert spelling not in json.dumps([result, info])


def test_a_server_with_an_api_key_is_asked_at_its_own_address(node):
    entry = node.entry("server-0", "--guards-health", "--bind", "::", bind="::", **KEYED)
    node.servers([entry], secrets={"fleet_api_key": [KEY + "\n", "sk-second"]})
    assert node.ready([entry])["msg"] == "1 of 1 servers ready."
    (info,) = node.module(INFO, [entry], probe=True)["servers"]
    assert (info["ready"], info["reason"], info["drift"]) == (True, None, None)
    with open(node.paths.secret("server-0"), encoding="utf-8") as stream:
        assert json.load(stream) == {"VLLM_API_KEY": KEY, "INFERENCE_FLEET_OTHER_API_KEYS": "sk-second"}
    assert node.servers([entry], secrets={"fleet_api_key": [KEY, "sk-second"]})["answering"] is True
    options = asking.Options(mode="quick", timeout=60, api_key=KEY)
    with_verdict = runner.verify_servers([entry], options, lambda planned: lambda one: "ours")
    assert {probe["name"]: probe["ok"] for probe in with_verdict["verdicts"][0]["probes"]}["model-id"] is True
