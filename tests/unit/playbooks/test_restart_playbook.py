# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""restart.yml refuses to take away the last server of a role, before anything is restarted."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.processes import (
    MARKER_ROOT,
    MARKER_SERVER,
)
from ansible_collections.inference.fleet.tests.unit.playbooks.test_status_playbook import status

WORKERS = {"servers": {"server": {"role": "decode", "count": 2, "port": None}}, "arguments": {"port": None}}


@contextlib.contextmanager
def running(root, *names):
    """Processes that are taken for these servers."""
    markers = [{MARKER_SERVER: name, MARKER_ROOT: str(root)} for name in names]
    found = [subprocess.Popen(["sleep", "600"], env={**os.environ, **one}) for one in markers]
    yield
    for one in found:
        one.kill()
        one.wait()


@pytest.mark.parametrize(
    ("there", "arguments", "refused"),
    [
        (("server-0", "server-1"), (), False),
        (("server-0",), (), True),
        (("server-0",), ("-e", "fleet_restart_anyway=true"), False),
    ],
    ids=["another runs", "the last", "the last, anyway"],
)
def test_the_last_server_of_a_role(tmp_path, there, arguments, refused):
    with running(tmp_path / "root-n1", *there):
        arguments = ("--check", "-e", "fleet_server=server-0", *arguments)
        run = status(tmp_path, *arguments, playbook="playbooks/restart.yml", n1={"fleet_override": WORKERS})
    words = "server-0: no other decode of this deployment runs, so requests fail until it is ready again"
    assert (words in run.output, "fleet_restart_anyway=true" in run.output) == (refused, refused), run.output
    assert ("server-0: would " in run.output) is not refused, run.output
    assert (run.status != 0) is refused
