# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""endpoints.yml for each gateway, and endpoint.yml without a host to deploy to."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import ansible_playbook
from ansible_collections.inference.fleet.tests.unit.engines.certificates import made

CPU = {"fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}}
MODEL, CLUSTER = "gpt-oss-tiny-standin", "model.gpt-oss-tiny-standin"
PLACES = ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001"]


@pytest.fixture
def inventory(tmp_path):
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2", "fleet_maintenance": True}}
    shared = {**CPU, "fleet_bind_address": "0.0.0.0", "fleet_api_key": "k"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({
        "cpu": {"hosts": hosts, "vars": shared}, "endpoint": {"hosts": {"proxy": {"ansible_host": "10.0.0.9"}}},
    }))  # fmt: skip
    return path


def play(playbook, inventory, *arguments):
    run = ansible_playbook(["playbooks/%s.yml" % playbook, "-i", str(inventory), *arguments])
    return run.status, run.output


def accepted(*command):
    """Whether the program of a gateway accepts the file; skipped without the program."""
    if not shutil.which(command[0]):
        pytest.skip("No %s on this machine." % command[0])
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


@pytest.mark.parametrize("name", ["prometheus", "nginx", "envoy", "litellm", "llm-d", "json"])
def test_endpoints_for_a_gateway(tmp_path, inventory, name):
    path = Path(tmp_path, "written", name)
    status, output = play("endpoints", inventory, "-e", "format=" + name, "-e", "fleet_endpoints_file=%s" % path)
    assert status == 0, output
    globals()["check_" + name.replace("-", "_")](path)


def test_a_format_that_is_not_known(inventory):
    status, output = play("endpoints", inventory, "-e", "format=traefik")
    assert status == 2 and "prometheus, nginx" in output


def test_a_limit_without_a_host_of_the_endpoint(inventory):
    status, output = play("endpoint", inventory, "--limit", "n1")
    assert status == 2 and "no host of the group endpoint, which has: proxy" in output


def test_mistakes_are_reported_before_the_host_is_contacted(inventory):
    status, output = play("endpoint", inventory, "-e", json.dumps({"endpoint_keys": {"a": "same", "b": "same"}}))
    assert status == 2 and "endpoint_keys.a and endpoint_keys.b have the same key" in output
    assert "UNREACHABLE" not in output


@pytest.mark.parametrize("playbook", ["endpoint", "site"])
def test_certificates_are_refused_before_a_host_is_contacted(tmp_path, inventory, playbook):
    given = {"endpoint_certificate": str(tmp_path / "chain"), "endpoint_keys": {"a": "k"}}
    given["endpoint_certificate_key"] = str(tmp_path / "key")
    for name, text in zip(("chain", "key"), made(-1), strict=True):
        (tmp_path / name).write_text(text)
    status, output = play(playbook, inventory, "-e", json.dumps(given))
    assert status == 2 and "expired at" in " ".join(output.split())
    assert "UNREACHABLE" not in output and "Detect changes" not in output
