# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""import.yml for a server that was started by hand."""

from __future__ import annotations

import subprocess
import sys

import yaml
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import ENGINE, free_port, wait_until

KEY = "key-not-to-be-seen"


def test_a_recipe_is_written(tmp_path):
    (tmp_path / "vllm").symlink_to(ENGINE)
    port, reports = free_port(), tmp_path / "reports"
    host = {
        "ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable,
        "fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
        "fleet_root": str(tmp_path / "root"), "fleet_reports_dir": str(reports),
        "fleet_override": {"servers": {"server": {"count": 1, "port": port}}},
    }  # fmt: skip
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"cpu": {"hosts": {"n1": host}}}))
    play("playbooks/import.yml", tmp_path / "hosts.yml").failed("no server of a known engine")
    argv = [sys.executable, "-S", str(tmp_path / "vllm"), "serve", "org/gpt-oss-tiny-standin", "--port", str(port)]
    argv += ["--max-num-seqs", "16", "--max-model-len", "4096", "--api-key", KEY]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as engine:
        try:
            wait_until(lambda: "listening" in engine.stdout.readline())
            run = play("playbooks/import.yml", tmp_path / "hosts.yml").ok()
        finally:
            engine.kill()
    text = (reports / "import" / "n1-server-0.yml").read_text()
    recipe = yaml.safe_load(text)
    assert (recipe["extends"], recipe["model"]) == ("cpu-tiny", {"id": "org/gpt-oss-tiny-standin"})
    assert (recipe["arguments"]["max-num-seqs"], "max-model-len" in recipe["arguments"]) == (16, False)
    assert KEY not in text + run.output and "fleet_api_key" in text
