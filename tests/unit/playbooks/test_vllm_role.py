# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role vllm for real against two package indexes: the pinned list of docs/using/trainium.md, in stand-ins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
