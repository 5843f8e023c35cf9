# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml on a node that is as planned, and after something of it was broken: which steps run, and what is said.

One deployment below a temporary root for all: environments made by uv of wheels that are built here, a copied
checkpoint, supervisord, and a scripted engine in place of the real one.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import play
from ansible_collections.inference.fleet.tests.unit.engines.small_node import (
    NEEDS,
    SUPERVISED,
    SmallNode,
    copy_engine,
    free_port,
    host_variables,
    watched,
)
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    build_checkpoint,
    build_index,
    build_wheel,
    uv_wheel,
)
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import hosts_file

UV = Path(sys.executable).parent / "uv"
STEPS = ("Preflight", "Prepare", "Weights", "Serve")
KEY, TOKEN = "sk-NotToBeSeenAnywhere", "hf_NotToBeSeenEither"


class Site:
    """One host, n1, and runs of site.yml for it."""

    def __init__(self, folder):
        self.folder = folder
        root, wheels, engine = folder / "root", folder / "wheels", folder / "engine"
        self.node = SmallNode(root)
        self.lib = root / "var" / "lib" / "inference-fleet"
        self.model = root / "models" / "small"
        engine.mkdir()
        for name in ("fleet-demo", "supervisor"):
            build_wheel(wheels, name, "4.4")
        uv_wheel(wheels, "0.13.0", UV)
        build_checkpoint(folder / "checkpoint")
        self.host = {
            **host_variables(root),
            **SUPERVISED,
            "fleet_api_key": KEY,
            "fleet_hf_token": TOKEN,
            "fleet_pip_index_url": build_index(folder / "no-index"),
            "fleet_proxy_env": {"UV_CACHE_DIR": str(folder / "cache"), "PIP_CONFIG_FILE": os.devnull,
                                "UV_NO_CONFIG": "1", "UV_COMPILE_BYTECODE": "0"},
            "fleet_reports_dir": str(folder / "reports"),
            "fleet_override": {
                "servers": {"server": {"count": 2, "port": free_port()}},
                "needs": NEEDS,
                "command": ["${venv}/bin/python", copy_engine(engine)],
                "venv": {"path": str(self.lib / "venvs" / "demo"), "create": True, "packages": ["fleet-demo==4.4"]},
                "model": {"source": "path", "format": "mxfp4", "path": str(self.model),
                          "source_path": str(folder / "checkpoint")},
                "secrets": {"HF_TOKEN": "fleet_hf_token"},
            },
            "cpu_packages": {},
            "toolkit_packages": ["supervisor", "uv"],
            "toolkit_find_links": [str(wheels)],
            "vllm_find_links": [str(wheels)],
            "tiktoken_encodings_names": [],  # the published bytes are not here
        }  # fmt: skip

    def entries(self):
        return [json.loads(Path(self.node.paths.entry(name)).read_text()) for name in ("server-0", "server-1")]

    def run(self, *arguments, **others):
        """others: further hosts, {variable: value} of each beside n1's."""
        hosts = {"n1": self.host, **{name: {**self.host, **one} for name, one in others.items()}}
        return play("playbooks/site.yml", hosts_file(self.folder, hosts, ["all"]), *arguments, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    with watched(folder):
        one = Site(folder)
        try:
            one.run().ok()
            yield one
        finally:
            one.node.end()


def ran(run):
    """The steps that had a play."""
    return [step for step in STEPS if "PLAY [%s]" % step in run.output]


def said(run):
    """What the looks said: [(host, step, reason)]."""
    return re.findall(r"^(n\d): (preflight|prepare|weights|serve): (.+)$", run.output, re.MULTILINE)


def test_a_converged_run_is_one_call_and_shows_no_secret(site):
    run = site.run("-vvv", "--diff").ok()
    assert (ran(run), said(run), run.count("changed")) == ([], [], 0), run.output
    assert re.findall(r"^Using module file .*/(\w+)\.py$", run.output, re.MULTILINE) == ["node"]
    assert run.output.count("TASK [") == 4
    assert KEY not in run.output
    assert TOKEN not in run.output


BREAKS = [
    ("Weights", "would ", lambda site: next(site.model.glob("*.safetensors")).unlink()),
    ("Serve", "server-1: ", lambda site: site.node.servers(site.entries(), state="stopped", only=["server-1"])),
    ("Serve", "the plan is not kept yet", lambda site: (site.lib / "plans.json").unlink()),
]


@pytest.mark.parametrize(("step", "reason", "damage"), BREAKS)
def test_a_run_begins_at_the_step_that_differs(site, step, reason, damage):
    """All else is converged, after the fault before it as well."""
    damage(site)
    run = site.run().ok()
    ((host, first, why),) = said(run)
    assert (host, first) == ("n1", step.lower())
    assert reason in why
    assert ran(run) == list(STEPS[STEPS.index(step) :])
    assert run.count("changed") >= 1


def test_without_the_look_every_step_is_run(site):
    run = site.run("-e", "fleet_look=false").ok()
    assert (ran(run), said(run), run.count("changed")) == (list(STEPS), [], 0)


def test_check_limit_and_tags(site):
    nowhere = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_retries": 0}
    lost = Path(site.node.paths.entry("server-0"))
    lost.unlink()
    check = site.run("--limit", "n1", "--check", n2=nowhere).ok()
    ((host, step, why),) = said(check)
    assert (host, step, why.partition(" ")[0]) == ("n1", "serve", "server-0:")
    assert (ran(check), lost.exists()) == (["Serve"], False)
    tagged = site.run("--limit", "n1", "--tags", "serve", n2=nowhere).ok()
    assert (said(tagged), ran(tagged), lost.exists()) == (said(check), ["Serve"], True)
    assert tagged.output.count("TASK [inference.fleet.verify : Send probes") == 1
