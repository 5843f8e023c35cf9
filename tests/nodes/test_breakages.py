# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever somebody breaks on a converged node, the next run says and repairs, and the run after that changes nothing.

`make test` breaks one of each class, several at once; `make soak` each alone, with the look and without.
"""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.tests.nodes.breakages import BREAKAGES, HARMLESS

VARIABLES = {
    "fleet_recipe": "cpu-tiny",
    "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
    "fleet_override": {
        "venv": {"path": "${venvs}/engine", "packages": ["supervisor>=4.3,<5"], "torch": None, "excludes": None,
                 "verify_imports": None},
        "command": ["${venv}/bin/python", "/opt/engine/engine.py"],
        "arguments": {"model": "${model_id}"},
        "config": {"format": "yaml", "content": {"max-num-seqs": 8}},
        "secrets": {"HF_TOKEN": "test_token"},
        "needs": {"host_memory_gib": 0.1, "disk_gib": 0.2},
        "start": {"budget_s": 60, "poll_s": 1},
    },
    "test_token": "hf_breakage",
    "toolkit_find_links": ["/opt/shared/wheels"],
    "toolkit_environment": {"PIP_NO_INDEX": "1"},
    "tiktoken_encodings_sources": [{"type": "file", "path": "/opt/shared/encodings"}],
    "vllm_find_links": ["/opt/shared/wheels"],
    "vllm_environment": {"PIP_NO_INDEX": "1"},
    "fleet_watchdog": True,
    "fleet_watchdog_interval_s": 600,
}  # fmt: skip


# One of each class, several at once: what `make test` breaks. A checkpoint that is written again restarts its servers,
# and then nothing more is said of them: it is not together with what somebody did to a process.
TOGETHER = [
    ("a shared folder is closed to others", "a byte of the encoding is another", "the unit is edited"),
    (
        "a file of the environment's packages is gone",
        "the checkpoint's config.json is another",
        "the toolkit's marker is gone",
    ),
    ("everybody may read the secrets", "the record of its start is gone"),
    ("the watchdog's timer is stopped", "its process runs as another user"),
    ("the guard is gone", "the checkpoint's manifest is gone"),
]
BY_NAME = {one.name: one for one in BREAKAGES}


@pytest.fixture(scope="module")
def converged(nodes, make_site):
    """A node on which all of site.yml has nothing left to do."""
    name = "break-%d" % os.getpid()
    try:
        site = make_site(nodes.create([name], "cpu", ["wheels", "encodings"]))
        site.play("playbooks/site.yml", **VARIABLES).ok()
        assert again(site).count("changed") == 0
        yield site
    finally:
        nodes.docker("rm", "--force", "--volumes", nodes.container_name(name), check=False)


def again(site, *arguments, **others):
    return site.play("playbooks/site.yml", *arguments, **VARIABLES, **others).ok()


def words(run):
    return " ".join(run.output.replace("\\n", " ").split())


def broken_and_repaired(site, breakages, **others):
    for one in breakages:
        site.node.ssh(one.how)
        if one.reboot:
            site.node.reboot()
    try:
        for one in breakages:
            if one.release:
                run = site.play("playbooks/site.yml", **VARIABLES, **others)
                assert run.status != 0
                assert all(text in words(run) for text in one.says), one.name
                site.node.ssh(one.release)
        run = again(site, "-v", "--diff", **others)
        assert run.count("changed") > 0, [one.name for one in breakages]
        said = words(run)
        for one in breakages:
            missing = [text for text in one.says if text not in said] if not one.release else []
            assert not missing, (one.name, missing)
            site.node.ssh(one.proof)
    finally:
        last = again(site)
    assert last.count("changed") == 0, [one.name for one in breakages]
    assert site.verified() == [site.node.name]


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_what_is_broken_is_said_and_repaired(converged, names):
    broken_and_repaired(converged, [BY_NAME[name] for name in names])


def test_what_only_looks_like_a_change_restarts_nothing(converged):
    before = converged.node.ssh("systemctl show --property=MainPID --value inference-fleet-server-0.service")
    for what, how in HARMLESS:
        converged.node.ssh(how)
        assert again(converged).count("changed") == 0, what
    assert converged.node.ssh("systemctl show --property=MainPID --value inference-fleet-server-0.service") == before


def test_the_look_sees_what_all_steps_see(converged):
    broken_and_repaired(converged, [BY_NAME[name] for name in TOGETHER[0]], fleet_look=False)


@pytest.mark.soak
@pytest.mark.parametrize("one", BREAKAGES, ids=lambda one: one.name)
@pytest.mark.parametrize("look", [True, False], ids=["look", "every step"])
def test_each_breakage_alone(converged, one, look):
    broken_and_repaired(converged, [one], fleet_look=look)
