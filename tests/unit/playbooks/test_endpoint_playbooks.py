# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""endpoints.yml for each gateway, and endpoint.yml without a host to deploy to."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.engines.certificates import made
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import CPU, LOCAL, flat, hosts_file

MODEL, CLUSTER = "gpt-oss-tiny-standin", "model.gpt-oss-tiny-standin"
PLACES = ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001"]


@pytest.fixture
def inventory(tmp_path):
    shared = {**CPU, "fleet_bind_address": "0.0.0.0", "fleet_api_key": "k"}
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2", "fleet_maintenance": True}}
    return hosts_file(tmp_path, {name: {**shared, **one} for name, one in hosts.items()}, ["cpu"],
                      endpoint={"hosts": {"proxy": {"ansible_host": "10.0.0.9"}}})  # fmt: skip


def accepted(*command):
    """Whether the program of a gateway accepts the file, where this machine has it."""
    if not shutil.which(command[0]):
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_prometheus(path):
    jobs = yaml.safe_load(path.read_text())["scrape_configs"]
    assert [one["targets"] for one in jobs[0]["static_configs"]] == [[place] for place in PLACES]
    accepted("promtool", "check", "config", str(path))


def check_nginx(path):
    assert [line.split()[1].rstrip(";") for line in path.read_text().splitlines() if " server " in line] == PLACES
    assert path.read_text().count(" down;") == 2
    outer = path.with_suffix(".conf")
    outer.write_text(
        "pid %s/pid; error_log stderr; events {} http { access_log off; include %s; }" % (path.parent, path)
    )
    accepted("nginx", "-t", "-q", "-c", str(outer))


def check_envoy(path):
    (cluster,) = yaml.safe_load(path.read_text())["static_resources"]["clusters"]
    assert cluster["name"] == cluster["load_assignment"]["cluster_name"] == CLUSTER
    found = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    addresses = [one["endpoint"]["address"]["socket_address"] for one in found]
    assert ["%(address)s:%(port_value)d" % one for one in addresses] == PLACES
    assert [one["health_status"] for one in found] == ["UNKNOWN", "UNKNOWN", "DRAINING", "DRAINING"]


def check_litellm(path):
    found = yaml.safe_load(path.read_text())["model_list"]
    assert [one["litellm_params"]["api_base"] for one in found] == ["http://%s/v1" % place for place in PLACES[:2]]
    assert {one["model_name"] for one in found} == {MODEL}
    assert {one["litellm_params"]["api_key"] for one in found} == {"os.environ/FLEET_API_KEY"}


def check_llm_d(path):
    found = yaml.safe_load(path.read_text())["endpoints"]
    assert ["%(address)s:%(port)s" % one for one in found] == PLACES[:2]
    assert all(isinstance(one["port"], str) and one["labels"] == {"model": MODEL} for one in found)


def check_json(path):
    (group,) = json.loads(path.read_text())
    assert (group["model"], [one["netloc"] for one in group["servers"]]) == (MODEL, PLACES)


CHECKS = {"prometheus": check_prometheus, "nginx": check_nginx, "envoy": check_envoy, "litellm": check_litellm,
          "llm-d": check_llm_d, "json": check_json}  # fmt: skip


def test_endpoints_for_each_gateway(tmp_path, inventory):
    paths = {name: Path(tmp_path, "written", name, name) for name in CHECKS}
    paths["json"].parent.mkdir(parents=True)  # a folder that exists, such as /tmp, keeps its mode
    paths["json"].parent.chmod(0o1777)
    playbook = str(CLONE / "playbooks/endpoints.yml")
    plays = [
        {"ansible.builtin.import_playbook": playbook, "vars": {"format": name, "fleet_endpoints_file": str(path)}}
        for name, path in paths.items()
    ]
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    play(str(tmp_path / "play.yml"), inventory).ok()
    for name, check in CHECKS.items():
        assert stat.S_IMODE(paths[name].parent.stat().st_mode) == (0o1777 if name == "json" else 0o755)
        check(paths[name])


@pytest.mark.parametrize(
    ("playbook", "arguments", "variables", "words"),
    [
        ("endpoints", [], {"format": "traefik"}, "prometheus, nginx"),
        ("endpoint", ["--limit", "n1"], {}, "no host of the group endpoint, which has: proxy"),
        *((name, [], {"endpoint_certificate": "chain", "endpoint_certificate_key": "key", "endpoint_keys": {"a": "k"}},
           "are valid from") for name in ("endpoint", "site")),
    ],
)  # fmt: skip
def test_mistakes_are_reported_before_a_host_is_contacted(tmp_path, inventory, playbook, arguments, variables, words):
    for name, text in zip(("chain", "key"), made(-1), strict=True):
        (tmp_path / name).write_text(text)
    place = os.path.relpath(tmp_path, CLONE)  # from where ansible-playbook starts
    variables = {name: place + "/" + one if one in ("chain", "key") else one for name, one in variables.items()}
    run = play("playbooks/%s.yml" % playbook, inventory, *arguments, variables=variables)
    assert run.status == 2 and words in flat(run.output)
    assert "UNREACHABLE" not in run.output and "Detect changes" not in run.output


def test_an_endpoint_that_is_down_does_not_end_the_run(tmp_path):
    down = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = hosts_file(tmp_path, {"down": down, "up": LOCAL}, ["endpoint"])
    after = {"hosts": "up", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": "after it"}}]}
    step = str(CLONE / "playbooks/steps/endpoint.yml")
    (tmp_path / "play.yml").write_text(json.dumps([{"ansible.builtin.import_playbook": step}, after]))
    variables = {
        "ansible_become": False, "endpoint_address": "127.0.0.1", "endpoint_key_names": {}, "endpoint_server_keys": {},
        "endpoint_pem": "", "endpoint_backends": [{"name": "a", "model": "a"}], "endpoint_secrets": {},
        "endpoint_configuration_content": "", "endpoint_found": {"changed": False, "stdout_lines": []},
    }  # fmt: skip
    run = play(str(tmp_path / "play.yml"), hosts, variables=variables)
    assert run.status and run.count("unreachable") == 1 and "after it" in run.output
