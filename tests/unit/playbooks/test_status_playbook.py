# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""status.yml, doctor.yml and restart.yml for hosts that differ, do not, and cannot be reached."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tarfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.doctor import CHECKS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.processes import (
    MARKER_ROOT,
    MARKER_SERVER,
)
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import host_variables
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import flat, hosts_file

PORT = 39000  # of servers that are never started
NOWHERE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
BROKEN = {"fleet_override": {"nothing": 1}}


def status(folder, *arguments, playbook="playbooks/status.yml", groups=None, **hosts):
    own = {"fleet_override": {"servers": {"server": {"count": 1, "port": PORT}}}}
    found = {name: {**host_variables(folder / ("root-" + name)), **own, **hosts[name]} for name in hosts}
    environment = {"ANSIBLE_SSH_RETRIES": "0", "ANSIBLE_CONFIG": str(CLONE / "ansible.cfg"),
                   "ANSIBLE_COLLECTIONS_PATH": str(CLONE / ".ansible" / "collections")}  # fmt: skip
    inventory = hosts_file(folder, found, **(groups or {}))
    return play(str(CLONE / playbook), inventory, *arguments, timeout=120, folder=folder, environment=environment)


def test_what_differs_is_exit_status_2_and_the_table_is_whole(tmp_path):
    (tmp_path / "made").mkdir()
    arguments = ("-e", "fleet_status_file=made/status.json")
    run = status(tmp_path, *arguments, n1={}, n2={})
    assert run.status == 2
    output = flat(run.output)
    for name in ("n1", "n2"):
        assert "%s server-0 39000 missing no - - - it is not deployed" % name in output
    file = tmp_path / "made" / "status.json"  # relative to where ansible-playbook was started
    found = json.loads(file.read_text())
    assert (found["schema"], found["differs"], sorted(found["hosts"])) == (1, True, ["n1", "n2"])
    one = found["hosts"]["n1"]
    assert (one["reached"], one["differs"], one["problem"]) == (True, True, None)
    assert one["servers"][0]["differences"][0]["kind"] == "not deployed"
    assert os.listdir(tmp_path / "made") == ["status.json"]

    status(tmp_path, *arguments, "-e", "fleet_status_strict=false", "--check", n1={}, n2={}).ok()
    assert json.loads(file.read_text())["at"] >= found["at"]


def test_a_host_that_cannot_be_reached_takes_nothing_from_the_others(tmp_path):
    file = tmp_path / "status.json"
    etcd = {"etcd": {"hosts": {"n1": None}}}
    run = status(tmp_path, "-e", "fleet_status_file=%s" % file, groups=etcd, n1=NOWHERE, n2={}, n3=BROKEN)
    output = flat(run.output)
    assert "n1 - - - - - - - unreachable" in output
    assert "n2 server-0 39000 missing no - - - it is not deployed" in output
    hosts = json.loads(file.read_text())["hosts"]
    assert [hosts[name]["reached"] for name in ("n1", "n2", "n3")] == [False, True, None]
    assert hosts["n1"]["problem"]  # ssh's own words, or Ansible's of a pipe that ssh has closed already
    assert "nothing" in hosts["n3"]["problem"]
    assert run.status == 4  # whatever else there is
    assert hosts["n1"]["differs"] is None


def test_a_file_that_cannot_be_written_is_said_before_a_node_is_asked_and_secrets_need_not_be_readable(tmp_path):
    """As with a vault whose password nobody gave."""
    override = {"servers": {"server": {"count": 1, "port": PORT}}, "secrets": {"HF_TOKEN": "test_token"}}
    run = status(tmp_path, n1={"fleet_override": override, "test_token": "{{ nowhere.to.be_found }}"})
    assert (run.status, "not deployed" in run.output, "test_token" in run.output) == (2, True, False)
    (tmp_path / "file").write_text("")
    run = status(tmp_path, "-e", "fleet_status_file=file/status.json", n1={})
    assert run.status == 2 and "fleet_status_file %s/file/status.json cannot be written" % tmp_path in flat(run.output)
    assert "Read the status of the servers" not in run.output


def test_doctor_runs_through_on_an_empty_node_and_goes_on_without_a_host_that_is_down(tmp_path):
    bundle = tmp_path / "bundle.tar.gz"
    arguments = ("-e", "fleet_reports_dir=%s" % (tmp_path / "reports"), "-e", "fleet_bundle=%s" % bundle)
    run = status(tmp_path, *arguments, playbook="playbooks/doctor.yml", n1=NOWHERE, n2={}, n3=BROKEN)
    assert run.status == 4
    output = flat(run.output)
    assert "n1 - - - unreachable" in output
    assert "n2 server-0 servers doctor.server-differs server-0: it is not deployed → Run site.yml" in output
    found = json.loads((tmp_path / "reports" / "doctor.json").read_text())
    assert (found["schema"], found["healthy"]) == (1, False)
    assert [found["hosts"][name]["reached"] for name in ("n1", "n2", "n3")] == [False, True, None]
    assert "nothing" in found["hosts"]["n3"]["problem"]
    findings = found["hosts"]["n2"]["findings"]
    assert "doctor.check-failed" not in {one["code"] for one in findings}
    checks = {one["check"].partition(":")[0] for one in findings}
    assert {*CHECKS, "node_preflight", "node_layout", "model_weights", "verification"} <= checks
    assert not (tmp_path / "root-n2").exists()
    with tarfile.open(bundle) as archive:
        assert {"bundle/doctor.json", "bundle/n2/versions.json"} <= set(archive.getnames())
        assert [one["name"] for one in json.load(archive.extractfile("bundle/n2/plan.json"))] == ["server-0"]


WORKERS = {"servers": {"server": {"role": "decode", "count": 2, "port": None}}, "arguments": {"port": None}}


@pytest.mark.parametrize(("there", "arguments", "refused"), [
    (("server-0", "server-1"), (), False), (("server-0",), (), True),
    (("server-0",), ("-e", "fleet_restart_anyway=true"), False),
], ids=["another runs", "the last", "the last, anyway"])  # fmt: skip
def test_the_last_server_of_a_role(tmp_path, there, arguments, refused):
    with contextlib.ExitStack() as stack:
        for name in there:  # processes that are taken for these servers
            marks = {MARKER_SERVER: name, MARKER_ROOT: str(tmp_path / "root-n1")}
            process = stack.enter_context(subprocess.Popen(["sleep", "600"], env={**os.environ, **marks}))
            stack.callback(process.kill)
        arguments = ("--check", "-e", "fleet_server=server-0", *arguments)
        run = status(tmp_path, *arguments, playbook="playbooks/restart.yml", n1={"fleet_override": WORKERS})
    words = "server-0: no other decode of this deployment runs, so requests fail until it is ready again"
    assert (words in run.output, "fleet_restart_anyway=true" in run.output) == (refused, refused), run.output
    assert ("server-0: would " in run.output) is not refused, run.output
    assert (run.status != 0) is refused
