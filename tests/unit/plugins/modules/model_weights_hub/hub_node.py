# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that brings weights from a simulated hub ."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import jobs
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import wanted as hub_package
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.transfer import RANGES, bytes_of
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import four_steps, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

module = Operation("model_weights")

REPO = "made-up/gpt-oss-small"
DRAFT = "made-up/gpt-oss-small-eagle3"
SHARD = "model-00003-of-00014.safetensors"
TOKEN = "hf_Zq7NotToBeSeenAnywhere"
BRANCHES = {"huggingface": "main", "modelscope": "master"}
both = pytest.mark.parametrize("source", ["huggingface", "modelscope"])


class Node:
    """Runs of the module with the same arguments against a hub."""

    def __init__(self, capsys, folder, hub, source="huggingface"):
        self.capsys = capsys
        self.hub = hub
        self.source = source
        self.models = folder / "models"
        self.destination = self.models / "small"
        self.root = folder / "root"
        self.name = "%s at revision %s" % (REPO, BRANCHES[source])
        self.called = "%s (%s)" % (hub_package.HUBS[source], hub.endpoint)
        self.arguments = {
            "source": source,
            "repo": REPO,
            "revision": BRANCHES[source],
            "destination": str(self.destination),
            "format": "mxfp4",
            "endpoint": hub.endpoint,
            "root": str(self.root),
            "environment": {"no_proxy": "*"},
            "wait_s": 300,
            "timeout_s": 120,
            "retries": 0,
        }

    def run(self, check_mode=False, **changes):
        return run_module(self.capsys, module, check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps(self.capsys, module, **{**self.arguments, **changes})

    def incomplete_sizes(self):
        """Bytes that have come of each file that still grows; one that is done meanwhile is left out."""
        sizes = []
        for record in self.models.rglob("*" + RANGES):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(bytes_of(str(record)[: -len(RANGES)], 1 << 60))
        return sizes

    def finish(self, **changes):
        """Poll until the end, as the role does; what the hub holds goes on."""
        for fault in self.hub.faults:
            fault.release()

        def ended():
            result = self.run(wait_s=0, **changes)
            return result if result.get("failed") or result["finished"] else None

        return wait_until(ended, 300, "the end")

    def refused(self, code, *said, check_too=True, **changes):
        """Both modes end with this error, whose message contains `said`, and nothing is changed."""
        before = self.state()
        for check_mode in (True, False) if check_too else (False,):
            result = self.run(check_mode, **changes)
            assert result.get("failed") and result["code"] == code, result
            assert all(text in result["msg"] for text in said), result["msg"]
            assert self.state() == before
        return result

    def wanted(self):
        files = self.hub.repositories[REPO].files
        return {path: files[path].bytes() for path in files if not path.startswith(("original/", "metal/"))}

    def found(self):
        return {
            str(path.relative_to(self.destination)): path.read_bytes()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != weight_manifest.MANIFEST
        }

    def state(self):
        """What a server could see."""
        return self.found() if self.destination.exists() else None

    def manifest(self):
        return json.loads((self.destination / weight_manifest.MANIFEST).read_text())

    def job(self):
        return next((self.root / "var/lib/inference-fleet/jobs").glob("weights-*/"))

    def phase(self):
        """What the worker is at, None before it says so."""
        state = self.job() / "state.json"
        return json.loads(state.read_text())["progress"]["phase"] if state.exists() else None

    def pid(self):
        return int((self.job() / "pid").read_text())

    def kill(self):
        """kill -9 of the worker; the hub lets go of what it holds."""
        os.kill(self.pid(), signal.SIGKILL)
        wait_until(lambda: not jobs.Job(str(self.job().parent), str(self.destination)).alive())
        self.hub.mend()

    def kept_state(self):
        """What the job says of itself, None where it says nothing."""
        state = self.job() / "state.json"
        return json.loads(state.read_text()) if state.exists() else None

    def left_behind(self, **changes):
        """A job that a play starts and that ends while nobody looks; what it says of itself."""
        first = self.run(wait_s=0, **changes)
        assert not first.get("failed") and not first["finished"], first
        wait_until(lambda: (self.kept_state() or {}).get("state") in jobs.ENDED)
        return self.kept_state()
