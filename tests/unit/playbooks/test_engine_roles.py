# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles vllm, for real against two package indexes with the pinned list of docs/using/trainium.md, and cpu."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests import doc_examples
from ansible_collections.inference.fleet.tests.nodes import package_indexes
from ansible_collections.inference.fleet.tests.runs import play

PLAY = [
    {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "tasks": [{"name": "Engine", "ansible.builtin.include_role": {"name": "inference.fleet.vllm"}}],
    }
]


def test_the_vendors_index_is_used_beside_the_other(tmp_path):
    example = doc_examples.example("environment", doc_examples.TUTORIAL)
    for name, wheels in package_indexes.WHEELS.items():
        package_indexes.make_index(tmp_path / name, wheels)
    playbook, venv = tmp_path / "play.yml", tmp_path / "venv"
    playbook.write_text(json.dumps(PLAY))
    variables = {
        "ansible_python_interpreter": sys.executable,
        "fleet_deployment": {"venv": {**example["fleet_override_venv"]["venv"], "path": str(venv)}},
        "vllm_uv": str(Path(sys.executable).with_name("uv")),
        "vllm_environment": {"UV_CACHE_DIR": str(tmp_path / "cache")},
        "vllm_index_url": (tmp_path / "pypi").as_uri(),
        "vllm_extra_index_urls": [(tmp_path / "pip").as_uri()],
    }
    assert play(str(playbook), "localhost,", variables=variables).ok().count("changed") == 1
    found = {path.name for path in venv.glob("lib/python3*/site-packages/*.dist-info")}
    assert found == {
        "%s-%s.dist-info" % wheel for wheels in package_indexes.WHEELS.values() for wheel in wheels
    }  # vLLM and PyTorch are in the one index only, the vendor's packages in the other
    assert (venv / "bin" / "vllm").exists()
    assert play(str(playbook), "localhost,", variables=variables).ok().count("changed") == 0


@pytest.fixture
def run(tmp_path):
    """run(packages, *arguments): the role on this machine."""
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"n1": host}}}))

    def run_role(packages, *arguments):
        role = {"role": "inference.fleet.cpu", "cpu_packages": packages}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": [role]}]))
        return play(str(tmp_path / "play.yml"), tmp_path / "hosts.yml", *arguments)

    return run_role


def test_what_is_there_is_not_installed(run):
    result = run({"libc.so.6": {"debian": "libc6"}}).ok()
    assert (result.count("changed"), result.count("skipped")) == (0, 1)


def test_what_is_missing_is_a_change_in_check_mode(run):
    result = run({"libc.so.6": {}, "libnone.so.9": {"debian": "libnone9"}}, "--check").ok()
    assert (result.count("changed"), result.count("skipped")) == (1, 1)


def test_a_library_of_an_unknown_package(run):
    run({"libnone.so.9": {"abacus": "libnone9"}}).failed("No package is known for libnone.so.9 on ")
