# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that run are changed in turns: what they replace is kept until it is verified, and comes back otherwise."""

from __future__ import annotations

import concurrent.futures
import pathlib

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import http_client
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import server_files
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    engine_environment,
    pids,
    rehash,
    wait_until,
)

SECRET = {"secrets": {"HF_TOKEN": "token"}, "secret_versions": {"HF_TOKEN": "1"}}


def changed(entry, **changes):
    return rehash(entry, **{"environment": {"OMP_NUM_THREADS": "2"}, **changes})


def wave(node, entries, *only, **options):
    return node.module("engine_servers", entries, changes="wave", only=list(only), **options)


def turns(node, entries, **options):
    return node.servers(entries, changes="one_by_one", **options)


def roll_back(node, entries):
    """Roll back, and wait for the old servers."""
    result = node.servers(entries, state="rolled_back")
    wait_until(lambda: not node.module("engine_ready", entries, only=result["back"], deployed=True).get("failed"))
    return result


@pytest.fixture
def two(node):
    """Two servers that answer, and the plan's new entries of both."""
    old = [node.entry("server-0"), node.entry("server-1")]
    node.serving(old)
    return node, old, [changed(one) for one in old]


def test_servers_that_run_are_changed_in_their_turns(two):
    node, old, new = two
    before = pids(node.servers(old))
    found = turns(node, new)
    assert (found["changed"], found["answering"], found["actions"]) == (False, False, [])
    assert found["waves"] == [["server-0"], ["server-1"]]
    assert found["pending"] == dict.fromkeys(before, "changed: environment")
    check = turns(node, new, check=True)
    assert (check["changed"], check["waves"], len(check["actions"])) == (True, found["waves"], 2)
    assert check["diff"]["after"].count('"OMP_NUM_THREADS": "2"') == 2
    for name, other in (("server-0", new), ("server-1", [])):
        wave(node, new, name)
        node.ready(new if name == "server-1" else [new[0], old[1]])
        assert node.servers(new, state="verified", only=[name])["changed"] is False
        assert not other or pids(node.servers([new[0], old[1]]))["server-1"] == before["server-1"]
    last = turns(node, new)
    assert (last["changed"], last["waves"], last["answering"]) == (False, [], True)
    assert not set(pids(last).values()) & set(before.values())


@pytest.mark.parametrize("how", ["never listens", "cannot be executed"])
def test_a_new_definition_that_does_not_work_gives_way_to_the_old_one(node, how, tmp_path):
    config = {"path": str(tmp_path / "old.json"), "format": "json", "content": {"a": 1}}
    old = node.entry("server-0", config=config, **SECRET)
    other = node.entry("server-1")
    node.serving([old, other], secrets={"token": "hf_old"})
    before, kept = pids(node.servers([old, other], secrets={"token": "hf_old"})), pathlib.Path(node.paths.etc)
    files = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file() and path.name != "server-0.conf"}
    waiting = [*old["command"], "--wait-for", "/nowhere"]
    command = {"never listens": waiting, "cannot be executed": ["/etc/passwd"]}[how]
    new = changed(old, command=command, config={**config, "path": str(tmp_path / "new.json")},
                  secret_versions={"HF_TOKEN": "2"})  # fmt: skip
    result = wave(node, [new, other], "server-0", secrets={"token": "hf_new"})
    record = pathlib.Path(node.paths.secrets) / ".previous.json"
    if how == "cannot be executed":  # nothing was stopped, and nothing is put back
        assert result["failed"] and not record.exists()
        result = roll_back(node, [new, other])
        assert (result["changed"], result["back"], pids(result)) == (False, [], before)
        return
    assert record.stat().st_mode & 0o777 == 0o600
    assert node.module("engine_ready", [new, other], only=["server-0"])["failed"]
    result = roll_back(node, [new, other])
    assert (result["back"], [one["kind"] for one in result["actions"]]) == (["server-0"], ["restart"])
    after = node.servers([old, other], secrets={"token": "hf_old"})
    assert (after["changed"], after["answering"]) == (False, True)
    assert (pids(after)["server-1"], pids(after)["server-0"] != before["server-0"]) == (before["server-1"], True)
    assert engine_environment(pids(after)["server-0"])[b"HF_TOKEN"] == b"hf_old"
    assert {path: path.read_bytes() for path in files} == files
    assert not record.exists() and not (tmp_path / "new.json").exists()


def test_what_was_never_verified_is_nothing_to_go_back_to(two):
    """The operator corrects the plan after a run that was killed; the next definition is wrong as well."""
    node, old, new = two
    wave(node, new, "server-0")
    wrong = [rehash(old[0], command=["false"]), old[1]]
    assert turns(node, wrong)["waves"] == [["server-0"]]
    wave(node, wrong, "server-0")
    roll_back(node, wrong)
    assert node.servers(old)["answering"]


def test_absent_servers_have_no_old_definitions(two):
    node, _old, new = two
    wave(node, new, "server-0")
    assert server_files.unverified(node.paths) == ["server-0"]
    node.servers(new, state="absent")
    record = pathlib.Path(node.paths.secrets, ".previous.json")
    assert not record.exists()
    record.write_text('{"server-0": 5}')
    assert server_files.kept(node.paths) == {}  # what is no record counts as none


def test_servers_that_need_each_others_devices_go_and_come_back_together(node):
    old = [node.entry("server-%d" % number, devices=[number]) for number in range(3)]
    node.serving(old)
    large = changed(old[0], devices=[0, 1, 2], command=["false"])
    fresh = node.entry("server-9", devices=[2])
    plan = [large, fresh]
    assert turns(node, plan)["waves"] == [["server-0", "server-9", "server-1", "server-2"]]
    done = wave(node, plan, "server-0", "server-9", "server-1", "server-2")
    assert sorted((one["name"], one["kind"]) for one in done["actions"]) == [
        ("server-0", "change"), ("server-1", "remove"), ("server-2", "remove"), ("server-9", "create"),
    ]  # fmt: skip
    assert node.running("server-1") == []
    result = roll_back(node, plan)
    assert (sorted(result["back"]), result["removed"]) == (["server-0", "server-1", "server-2"], ["server-9"])
    after = node.servers(old)
    assert (after["changed"], after["answering"], node.running("server-9")) == (False, True, [])


def test_requests_are_refused_while_the_last_one_is_answered(node):
    """Else one that comes between the last answer and the end is lost."""
    entry = node.entry("server-0", "--held", "--refuses")
    node.serving([entry])
    url = "http://127.0.0.1:%d/v1/chat/completions" % entry["port"]
    metrics = url.replace("v1/chat/completions", "metrics")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answer = pool.submit(http_client.request, "POST", url, {"model": "small", "hold": True}, 90)
        wait_until(lambda: " 1.0" in http_client.request("GET", metrics, timeout=30).text)
        refused = pool.submit(
            wait_until, lambda: http_client.request("POST", url, {"model": "small"}, 30).status == 503
        )
        wave(node, [changed(entry)], "server-0", drain_s=60)
        refused.result(90)
        assert answer.result(90).status == 200
