# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""export.yml: the planned servers as a script, a Compose project and a unit of Podman; import.yml."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import yaml
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import ENGINE, free_port, wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import CPU, LOCAL, hosts_file

NASTY = "a b$c \"d\" 'e' \\f %g"
B200 = {
    "fleet_recipe": "b200-low-latency",
    "fleet_hardware": {"accelerator": "b200", "count": 8},
    "fleet_override": {
        "environment": {"NASTY": NASTY, "PYTHONPATH": "/opt/own", "HF_TOKEN": None},
        "secrets": {"HF_TOKEN": "fleet_hf_token"},
        "container": {"entrypoint": "", "address": "unix:///run/other.sock"},  # not that of the image
    },
    "fleet_hf_token": "hf_NotToBeSeen",
}
COMMAND = ["trtllm-serve", "/var/lib/inference-fleet/models/gpt-oss-120b", "--host", "127.0.0.1", "--port", "8000"]
IMAGE = (
    "nvcr.io/nvidia/tensorrt-llm/release:1.2.1@sha256:33cd085b772947bd22b7273886539331420404e5d2a4a039945241945ff927b9"
)


def export(tmp_path, variables, kind, *failed):
    """The folder of the host; failed: words of an error."""
    given = {"format": kind, "fleet_export_dir": str(tmp_path / "out")}
    run = play("playbooks/export.yml", hosts_file(tmp_path, {"n1": variables}), variables=given)
    text = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "NotToBeSeen" not in run.output + text
    assert (run.failed(*failed) if failed else run.ok()).status in (0, 2)
    return tmp_path / "out" / "n1"


def test_a_script(tmp_path):
    folder = export(tmp_path, B200, "run")
    (tmp_path / "bin").mkdir()
    shows = 'python3 -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"'
    for name, body in (("docker", shows), ("install", ":"), ("mkdir", ":")):
        script(tmp_path / "bin" / name, body + "\n")
    environment = {"PATH": "%s:%s" % (tmp_path / "bin", os.environ["PATH"])}

    def run(**more):
        program = [str(folder / "server-0.sh")]
        return subprocess.run(program, env={**environment, **more}, capture_output=True, text=True, check=False)

    done = run()  # it asks for its keys
    assert done.returncode != 0 and done.stdout == ""
    assert "engine/*.py" not in (folder / "server-0.sh").read_text()  # it loads none of our modules
    argv = json.loads(run(HF_TOKEN="x").stdout)
    assert argv[:5] == ["--host", "unix:///run/other.sock", "run", "--name=server-0", "--env=HF_TOKEN"]
    assert {"--entrypoint=", "--env=NASTY=" + NASTY, "--device=nvidia.com/gpu=7", "--network=host", "--rm"} <= set(argv)
    assert argv[argv.index(IMAGE.replace(":1.2.1", "")) + 1 :][:6] == COMMAND
    assert not [word for word in argv if "INFERENCE_FLEET" in word or word.startswith(("--label", "--pull"))]
    assert yaml.safe_load((folder / "config" / "server-0.yml").read_text())["moe_config"] == {"backend": "TRTLLM"}


def test_a_project_of_compose(tmp_path):
    folder = export(tmp_path, B200, "compose")
    server = yaml.safe_load((folder / "compose.yml").read_text())["services"]["server-0"]
    assert (server["image"], server["command"][:6]) == (IMAGE, COMMAND)
    assert server["network_mode"] == server["ipc"] == "host"
    assert server["entrypoint"] == ""
    assert server["environment"]["NASTY"].replace("$$", "$") == NASTY
    assert server["environment"]["HF_TOKEN"].startswith("${HF_TOKEN:?")
    assert (server["ulimits"], server["devices"][-1]) == ({"memlock": -1, "stack": 67108864}, "nvidia.com/gpu=7")
    assert "x-not-translated" not in server
    assert {one["source"] for one in server["volumes"]} >= {"/etc/inference-fleet/config/server-0.yml"}


def test_a_unit_of_podman(tmp_path):
    export(tmp_path, B200, "quadlet", "fleet_container_engine=podman")
    folder = export(tmp_path, {**B200, "fleet_container_engine": "podman"}, "quadlet")
    lines = (folder / "server-0.container").read_text().splitlines()
    (command,) = [line.partition("=")[2] for line in lines if line.startswith("Exec=")]
    assert shlex.split(command)[:6] == COMMAND
    variables = [line.partition("=")[2].replace("%%", "%").replace("$$", "$") for line in lines if "NASTY" in line]
    assert [shlex.split(one) for one in variables] == [["NASTY=" + NASTY]]
    expected = {"Image=" + IMAGE, "AddDevice=nvidia.com/gpu=7", "PodmanArgs=--ipc=host", "Secret=HF_TOKEN,type=env"}
    assert {*expected, "PodmanArgs=--entrypoint=", "PodmanArgs=--pids-limit=-1"} <= set(lines)


def test_processes_are_scripts_only(tmp_path):
    export(tmp_path, CPU, "compose", "server-0, server-1")
    folder = export(tmp_path, CPU, "run")
    assert sorted(path.name for path in folder.glob("*.sh")) == ["server-0.sh", "server-1.sh"]
    engine = {path.name for path in (folder / "engine").iterdir()}
    assert engine >= {"inference_fleet_drains.py", "inference_fleet_api_keys.py"}
    assert '/lib/inference-fleet/lib/engine "$(dirname "$0")"/engine/*.py' in (folder / "server-0.sh").read_text()
    assert " vllm.entrypoints" in (folder / "server-1.sh").read_text().replace(" \\\n ", "")


# -- import.yml --------------------------------------------------------------------------------------------------------

KEY = "key-not-to-be-seen"


def test_a_server_that_was_started_by_hand_is_imported(tmp_path):
    (tmp_path / "vllm").symlink_to(ENGINE)
    port, reports = free_port(), tmp_path / "reports"
    host = {
        **LOCAL, **CPU, "ansible_become": False, "fleet_root": str(tmp_path / "root"),
        "fleet_reports_dir": str(reports),
        "fleet_override": {"servers": {"server": {"count": 1, "port": port}}},
    }  # fmt: skip
    inventory = hosts_file(tmp_path, {"n1": host})
    play("playbooks/import.yml", inventory).failed("no server of a known engine")
    argv = [sys.executable, "-S", str(tmp_path / "vllm"), "serve", "org/gpt-oss-tiny-standin", "--port", str(port)]
    argv += ["--max-num-seqs", "16", "--max-model-len", "4096", "--api-key", KEY]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as engine:
        try:
            wait_until(lambda: "listening" in engine.stdout.readline())
            run = play("playbooks/import.yml", inventory).ok()
        finally:
            engine.kill()
    text = (reports / "import" / "n1-server-0.yml").read_text()
    recipe = yaml.safe_load(text)
    assert (recipe["extends"], recipe["model"]) == ("cpu-tiny", {"id": "org/gpt-oss-tiny-standin"})
    assert (recipe["arguments"]["max-num-seqs"], "max-model-len" in recipe["arguments"]) == (16, False)
    assert KEY not in text + run.output and "fleet_api_key" in text
