# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""export.yml: the planned servers as a script, a Compose project and a unit of Podman."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import ansible_playbook

NASTY = "a b$c \"d\" 'e' \\f %g"
B200 = {
    "fleet_recipe": "b200-low-latency",
    "fleet_hardware": {"accelerator": "b200", "count": 8},
    "fleet_override": {
        "environment": {"NASTY": NASTY, "PYTHONPATH": "/opt/own", "HF_TOKEN": None},
        "secrets": {"HF_TOKEN": "fleet_hf_token"},
    },
    "fleet_hf_token": "hf_NotToBeSeen",
}
CPU = {"fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}}
COMMAND = ["trtllm-serve", "/var/lib/inference-fleet/models/gpt-oss-120b", "--host", "127.0.0.1", "--port", "8000"]
IMAGE = (
    "nvcr.io/nvidia/tensorrt-llm/release:1.2.1@sha256:33cd085b772947bd22b7273886539331420404e5d2a4a039945241945ff927b9"
)


def export(tmp_path, variables, kind):
    """(exit status, output, the folder of the host)."""
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"n1": {}}, "vars": variables}}))
    run = ansible_playbook(["playbooks/export.yml", "-i", str(inventory), "-e", "format=" + kind,
                            "-e", "fleet_export_dir=%s" % (tmp_path / "out")])  # fmt: skip
    text = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "NotToBeSeen" not in run.output + text
    return run.status, run.output, tmp_path / "out" / "n1"


def argv_of(script, tmp_path, **environment):
    """The words with which a script runs docker."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    shows = 'python3 -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"'
    for name, body in (("docker", shows), ("install", ":"), ("mkdir", ":")):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n%s\n" % body)
        (tmp_path / "bin" / name).chmod(0o755)
    path = "%s:%s" % (tmp_path / "bin", os.environ["PATH"])
    return subprocess.run([str(script)], env={"PATH": path, **environment}, capture_output=True, text=True, check=False)


def test_a_script(tmp_path):
    status, output, folder = export(tmp_path, B200, "run")
    assert status == 0, output
    done = argv_of(folder / "server-0.sh", tmp_path)  # it asks for its keys
    assert done.returncode != 0 and done.stdout == ""
    assert "engine/*.py" not in (folder / "server-0.sh").read_text()  # it loads none of our modules
    done = argv_of(folder / "server-0.sh", tmp_path, HF_TOKEN="x")
    argv = json.loads(done.stdout)
    assert argv[:3] == ["run", "--name=server-0", "--env=HF_TOKEN"]
    assert {"--env=NASTY=" + NASTY, "--device=nvidia.com/gpu=7", "--network=host", "--rm"} <= set(argv)
    assert argv[argv.index(IMAGE.replace(":1.2.1", "")) + 1 :][:6] == COMMAND
    assert not [word for word in argv if "INFERENCE_FLEET" in word or word.startswith(("--label", "--pull"))]
    assert yaml.safe_load((folder / "config" / "server-0.yml").read_text())["moe_config"] == {"backend": "TRTLLM"}


def test_a_project_of_compose(tmp_path):
    status, output, folder = export(tmp_path, B200, "compose")
    assert status == 0, output
    server = yaml.safe_load((folder / "compose.yml").read_text())["services"]["server-0"]
    assert (server["image"], server["command"][:6], server["network_mode"], server["ipc"]) == (
        IMAGE,
        COMMAND,
        "host",
        "host",
    )
    assert server["environment"]["NASTY"].replace("$$", "$") == NASTY
    assert server["environment"]["HF_TOKEN"].startswith("${HF_TOKEN:?")
    assert (server["ulimits"], server["devices"][-1]) == ({"memlock": -1, "stack": 67108864}, "nvidia.com/gpu=7")
    assert "x-not-translated" not in server
    assert {one["source"] for one in server["volumes"]} >= {"/etc/inference-fleet/config/server-0.yml"}


def test_a_unit_of_podman(tmp_path):
    status, output, folder = export(tmp_path, B200, "quadlet")
    assert status == 0, output
    lines = (folder / "server-0.container").read_text().splitlines()
    (command,) = [line.partition("=")[2] for line in lines if line.startswith("Exec=")]
    assert shlex.split(command)[:6] == COMMAND
    variables = [line.partition("=")[2].replace("%%", "%").replace("$$", "$") for line in lines if "NASTY" in line]
    assert [shlex.split(one) for one in variables] == [["NASTY=" + NASTY]]
    assert {"Image=" + IMAGE, "AddDevice=nvidia.com/gpu=7", "PodmanArgs=--ipc=host", "Secret=HF_TOKEN,type=env"} <= set(
        lines
    )


@pytest.mark.parametrize(("kind", "words"), [("compose", "server-0, server-1"), ("helm", "run, compose, quadlet")])
def test_what_cannot_be_exported(tmp_path, kind, words):
    status, output, _folder = export(tmp_path, CPU, kind)
    assert status == 2 and words in output


def test_processes_are_scripts_only(tmp_path):
    status, output, folder = export(tmp_path, CPU, "run")
    assert status == 0, output
    assert sorted(path.name for path in folder.glob("*.sh")) == ["server-0.sh", "server-1.sh"]
    assert {path.name for path in (folder / "engine").iterdir()} >= {
        "inference_fleet_drains.py",
        "inference_fleet_api_keys.py",
    }
    assert '/lib/inference-fleet/lib/engine "$(dirname "$0")"/engine/*.py' in (folder / "server-0.sh").read_text()
    assert "-m vllm.entrypoints" in (folder / "server-1.sh").read_text().replace(" \\\n ", "")
