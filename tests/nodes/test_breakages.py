# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After each fault on a converged node, status.yml and the next run report it, the run repairs it, and the run after
that changes nothing.

`make test` has one fault of each class, several at once; `make soak` each alone.
"""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.tests.nodes.breakages import BREAKAGES, ENTRY, HARMLESS, UNIT
from ansible_collections.inference.fleet.tests.nodes.conftest import created

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


# A run that writes the checkpoint again restarts its servers and reports no other fault of theirs, so such a fault is
# not combined with one of a server.
TOGETHER = [
    (
        "a shared directory is closed to others",
        "a byte of the encoding is corrupt",
        "the unit is edited",
        "every account may read the secrets",
        "the unit of the second server is disabled",
    ),
    (
        "a package of the environment is deleted",
        "the checkpoint's config.json is edited",
        "the toolkit's marker is lost",
    ),
    ("the record of its start is lost",),
    ("the watchdog is stopped", "it runs without its service manager"),
    ("the program is deleted", "the checkpoint's manifest is lost"),
    ("the account is deleted, and a server killed",),
]
BY_NAME = {one.name: one for one in BREAKAGES}


@pytest.fixture(scope="module")
def converged(nodes, make_site):
    """A node on which site.yml has nothing to do."""
    with created(["break-%d" % os.getpid()], "cpu", ["wheels", "encodings"]) as made:
        site = make_site(made)
        site.play("playbooks/site.yml", **VARIABLES).ok()
        assert again(site).count("changed") == 0
        yield site


def again(site, *arguments, **others):
    return site.play("playbooks/site.yml", *arguments, **VARIABLES, **others).ok()


def status(site):
    return site.play("playbooks/status.yml", **VARIABLES)


def words(run):
    return " ".join(run.output.replace("\\n", " ").split())


def broken_and_repaired(site, breakages):
    for one in breakages:
        site.node.ssh(one.how)
        if one.reboot:
            site.node.reboot()
    try:
        reported = [one.status for one in breakages if one.status]
        if reported:
            run = status(site)
            assert (run.status, [text for text in reported if text not in words(run)]) == (2, [])
        for one in breakages:
            if one.release:
                run = site.play("playbooks/site.yml", **VARIABLES)
                assert run.status != 0
                assert all(text in words(run) for text in one.says), one.name
                site.node.ssh(one.release)
        run = again(site, "-v", "--diff")
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
def test_faults_are_reported_and_repaired(converged, names):
    broken_and_repaired(converged, [BY_NAME[name] for name in names])


def test_harmless_changes_restart_nothing(converged):
    before = converged.pids()
    for what, how, proof in HARMLESS:
        converged.node.ssh(how)
        assert again(converged).count("changed") == 0, what
        converged.node.ssh(proof)
    assert "override.conf" in status(converged).ok().output
    converged.node.ssh("rm -r /etc/systemd/system/%s.d && systemctl daemon-reload" % UNIT)
    assert converged.pids() == before


@pytest.mark.soak
def test_a_full_and_a_read_only_file_system_leave_the_servers_unchanged(converged):
    site, folder = converged, os.path.dirname(ENTRY)
    before, files = site.pids(), site.node.ssh("cat %s/*" % folder)
    change = {"instances": {"server-0": {"arguments": {"max-num-seqs": 4}}}}

    def refused(reason):
        run = site.play("playbooks/site.yml", override=change, **VARIABLES).failed(ENTRY)
        assert reason in words(run)

    mount = "cp -a {0} /tmp/kept && mount -t tmpfs -o size=64k,mode=755 none {0} && cp -a /tmp/kept/. {0} && "
    fill = "(dd if=/dev/zero of={0}/.fill bs=1k 2> /dev/null; true)"
    try:
        site.node.ssh((mount + fill).format(folder))
        refused("No space left on device")
        site.node.ssh("rm %s/.fill && mount -o remount,ro %s" % (folder, folder))
        refused("Read-only file system")
    finally:
        site.node.ssh("umount %s" % folder)
    assert (site.pids(), site.node.ssh("cat %s/*" % folder)) == (before, files)
    assert again(site).count("changed") == 0


@pytest.mark.soak
@pytest.mark.parametrize("one", BREAKAGES, ids=lambda one: one.name)
def test_each_fault_alone(converged, one):
    broken_and_repaired(converged, [one])
