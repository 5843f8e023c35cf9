# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.filter import servers
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError


def entry(budget_s=300, poll_s=2, after=(), **secrets):
    return {"health": {"budget_s": budget_s, "poll_s": poll_s}, "start": {"after": list(after)}, "secrets": secrets}


def test_secret_names_once_and_sorted():
    assert servers.secret_names([entry(A="z", B="a"), entry(A="z"), entry()]) == ["a", "z"]
    assert servers.secret_names([]) == []


@pytest.mark.parametrize(
    ("entries", "delay", "retries"),
    [
        ([], 1, 1),
        ([entry()], 2, 150),
        ([entry(poll_s=0.5)], 1, 300),
        ([entry(), entry(budget_s=5400, poll_s=10)], 2, 2700),
        # A follower starts its own budget when its leader is ready.
        ([entry(5400, 10), entry(5400, 10, ["server-0"])], 10, 1080),
    ],
)
def test_polling_lasts_as_long_as_the_longest_budget(entries, delay, retries):
    assert (servers.poll_delay(entries), servers.poll_retries(entries)) == (delay, retries)


def test_log_lines_have_a_heading_each():
    shown = servers.log_lines([{"name": "a", "state": "running", "log_tail": ["x"]}, {"name": "b", "log_tail": None}])
    assert shown == ["== a (running) ==", "x", "== b (None) =="]
    assert servers.log_lines([{"name": "a", "state": "failed", "log_tail": "x\ny\n"}])[1:] == ["x", "y"]


def test_use_nxdi_is_what_one_of_them_runs():
    plugin, nxdi = {"environment": {}}, {"environment": {"VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference"}}
    assert servers.use_nxdi([plugin, nxdi]) is True
    assert servers.use_nxdi([plugin, {"environment": {"VLLM_NEURON_FRAMEWORK": "other"}}]) is False
    assert servers.use_nxdi([]) is False


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


def test_a_mirror_that_is_a_url_has_no_host():
    with pytest.raises(FleetError, match=r"^fleet_registry_mirror is 'https://mirror\.example'; allowed: "):
        servers.registries([{"image": "redis"}], "https://mirror.example")


@pytest.mark.parametrize(
    ("sources", "folder"),
    [
        (["/a/inventories/local"], "reports/local"),
        (["/a/inventories/local/"], "reports/local"),
        (["/a/inventories/local/hosts.yml"], "reports/local"),
        (["/etc/ansible/hosts"], "reports/ansible"),
        (["/a/site-1/inventory"], "reports/site-1"),
        (["/a/trn3.prod.yml"], "reports/trn3.prod"),
        (["/a/local", "/b/more nodes.yml", "/c/local"], "reports/local+more-nodes"),
        (["localhost,"], "reports/localhost"),
        (["n1, [fe80::1]:22,../n2"], "reports/n1--fe80--1--22-..-n2"),
        (["..,"], "reports/inventory"),
        (["/hosts"], "reports/inventory"),
        (["/a/" + "x" * 120], "reports/" + "x" * 100),
        ([], "reports/inventory"),
    ],
)
def test_each_inventory_has_its_reports(sources, folder):
    assert servers.reports_dir(sources) == folder
