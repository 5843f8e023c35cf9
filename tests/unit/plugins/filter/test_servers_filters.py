# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.inference.fleet.plugins.filter import servers
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import server_values

restart_batches = servers.FilterModule().filters()["restart_batches"]


def entry(budget_s=300, poll_s=2, after=(), **secrets):
    return {"health": {"budget_s": budget_s, "poll_s": poll_s}, "start": {"after": list(after)}, "secrets": secrets}


def test_secret_names_once_and_sorted():
    assert servers.secret_names([entry(A="z", B="a"), entry(A="z", C="/of/the/node.pem"), entry()]) == ["a", "z"]
    assert servers.secret_names([]) == []


@pytest.mark.parametrize(
    ("entries", "wait", "retries"),
    [
        ([], 9, 1),
        ([entry()], 9, 30),
        ([entry(), entry(budget_s=5400, poll_s=10)], 9, 540),
        # A follower starts its own budget when its leader is ready.
        ([entry(5400, 19.5), entry(5400, 20, ["server-0"])], 20, 515),
    ],
)
def test_polling_lasts_as_long_as_the_longest_budget(entries, wait, retries):
    assert (servers.poll_wait(entries), servers.poll_retries(entries)) == (wait, retries)


def test_log_lines_have_a_heading_each():
    shown = servers.log_lines(
        [{"name": "a", "state": "running", "log_tail": "x\ny\n"}, {"name": "b", "log_tail": None}]
    )
    assert shown == ["== a (running) ==", "x", "y", "== b (None) =="]
    forged = [{"name": "a", "state": "running", "log_tail": ["== b (failed) ==", " == c"]}]
    assert servers.log_lines(forged)[1:] == ["> == b (failed) ==", ">  == c"]


@pytest.mark.parametrize(
    ("mirror", "hosts"),
    [
        ("", ["10.0.0.1:5000", "docker.io", "nvcr.io"]),
        ({"docker.io": "mirror.example/hub"}, ["10.0.0.1:5000", "mirror.example", "nvcr.io"]),
        ("mirror.example:5000/hub", ["mirror.example:5000"]),
    ],
)
def test_registries_that_are_asked(mirror, hosts):
    """Docker Hub among them, which an image need not name."""
    for of_the_hub in ("vllm/vllm-openai:1", "docker.io/team/app:1", "redis"):
        images = [{"image": name} for name in (of_the_hub, "nvcr.io/team/app:1", "10.0.0.1:5000/app")]
        assert servers.registries(images, mirror) == hosts


@pytest.mark.parametrize(
    ("sources", "folder"),
    [
        (["/a/inventories/local/"], "reports/local"),
        (["/a/inventories/local/hosts.yml"], "reports/local"),
        (["/a/site-1/inventory"], "reports/site-1"),
        (["/a/trn3.prod.yml"], "reports/trn3.prod"),
        (["/a/local", "/b/more nodes.yml", "/c/local"], "reports/local+more-nodes"),
        (["n1, [fe80::1]:22,../n2"], "reports/n1--fe80--1--22-..-n2"),
        (["..,"], "reports/inventory"),
        (["/a/" + "x" * 120], "reports/" + "x" * 100),
        ([], "reports/inventory"),
    ],
)
def test_each_inventory_has_its_reports(sources, folder):
    assert servers.reports_dir(sources) == folder


def led(name, after=(), follows=False):
    return {"host": "n1", "name": name, "start": {"after": list(after), "restart_with_leader": follows}}


PLAIN = [led("server-0"), led("server-1"), led("server-2", ["server-0"])]
LED = [led("b", ["a"], True), led("a"), led("c", ["b"], True), led("d")]


@pytest.mark.parametrize(
    ("servers", "meant", "batches"),
    [
        (PLAIN, "server-1", [["server-1"]]),
        (PLAIN, "server-2, server-0", [["server-0"], ["server-2"]]),
        (PLAIN, ["server-1", "server-1"], [["server-1"]]),
        (PLAIN, ["all"], [["server-0"], ["server-1"], ["server-2"]]),
        (LED, "a", [["a", "b", "c"]]),
        (LED, "c", [["c"]]),
        (LED, "c,a", [["a", "b", "c"]]),
        (LED, "all", [["a", "b", "c"], ["d"]]),
    ],
)
def test_servers_restart_one_after_another_and_followers_with_their_leader(servers, meant, batches):
    assert restart_batches(servers, meant) == batches


def part(name, role):
    return {**led(name), "role": role, "health": {"budget_s": 600}}


FRONT, PREFILL, DECODE = part("frontend-0", "frontend"), part("prefill-0", "prefill"), part("decode-0", "decode")
PARTS, MORE = [FRONT, PREFILL, DECODE], part("prefill-1", "prefill")


@pytest.mark.parametrize(
    ("entries", "meant", "elsewhere", "running", "gaps"),
    [
        (PARTS, "all", [], None, ["frontend-0", "prefill-0", "decode-0"]),
        ([*PARTS, MORE], "prefill-0", [], None, []),
        ([*PARTS, MORE], "prefill-0,prefill-1", [], None, []),  # one after the other
        ([*PARTS, MORE], "prefill-0", [], ["frontend-0", "prefill-0", "decode-0"], ["prefill-0"]),
        (PARTS, "prefill-0", [], ["frontend-0", "decode-0"], []),  # it is away already
        (PARTS, "prefill-0", [MORE], None, []),
        (PARTS, "decode-0", [MORE], None, ["decode-0"]),
        ([part("server-0", "server")], "server-0", [], None, []),
    ],
)
def test_the_last_server_of_a_role_is_named(entries, meant, elsewhere, running, gaps):
    found = servers.restart_gaps(entries, restart_batches(entries, meant), elsewhere, running)
    assert [gap.partition(":")[0] for gap in found] == gaps


THREE = "server-0, server-1, server-2"


@pytest.mark.parametrize(
    "meant", [None, "", ",", [], 3, {"server-0": 1}, [0], "server-9", "server-1,x,y", "all,server-0"]
)
def test_unknown_servers(meant):
    with pytest.raises(FleetError) as caught:
        server_values.batches(PLAIN, meant)
    assert (caught.value.code, caught.value.values[1]) == ("restart.server-unknown", THREE)
    with pytest.raises(AnsibleFilterError):
        restart_batches(PLAIN, meant)
