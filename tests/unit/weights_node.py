# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of model_weights on this machine, and the files that they leave."""

from __future__ import annotations

import json
import os
import signal

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import read_json
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import ENDED, DetachedJob
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.manifest import MANIFEST
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.transfer import bytes_of, part_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import DEFAULT_BRANCHES
from ansible_collections.inference.fleet.tests.hubs.repositories import is_lfs
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.operating import operate, repeated

REPO = "made-up/gpt-oss-small"
SHARD = "model-00003-of-00014.safetensors"
TOKEN = "hf_Zq7NotToBeSeenAnywhere"
both = pytest.mark.parametrize("source", ["huggingface", "modelscope"])


class Weights:
    """Runs with the same arguments."""

    def __init__(self, destination, root, **arguments):
        self.destination, self.root = destination, root
        self.arguments = {"destination": str(destination), "root": str(root), **arguments}

    def run(self, check_mode=False, **changes):
        return operate("model_weights", check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        """Check and apply, twice: the results of the first two; the last two must change nothing."""
        return repeated(lambda check: self.run(check, **changes))

    def refused(self, code, *said, check_too=True, **changes):
        """Both modes end with this error, whose message contains `said`, and nothing is changed."""
        before = self.state()
        for check_mode in (True, False) if check_too else (False,):
            result = self.run(check_mode, **changes)
            assert result.get("failed") and result["code"] == code, result
            assert all(text in result["msg"] for text in said), result["msg"]
            assert self.state() == before
        return result

    def found(self):
        """{path: bytes} of the files at the destination, except the manifest."""
        return {
            str(path.relative_to(self.destination)): path.read_bytes()
            for path in self.destination.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }

    def state(self):
        """All that a server could read, and the manifest; None without a destination."""
        if not self.destination.exists():
            return None
        path = self.destination / MANIFEST
        return self.found(), path.read_text() if path.is_file() else None

    def manifest(self):
        return json.loads((self.destination / MANIFEST).read_text())


class HubWeights(Weights):
    """Runs against a simulated hub."""

    def __init__(self, folder, hub, source="huggingface", repo=REPO, root="root", **arguments):
        self.hub, self.source, self.repo, self.models = hub, source, repo, folder / "models"
        self.staging = self.models / ".small.inference-fleet-new"
        super().__init__(
            self.models / "small", folder / root, source=source, repo=repo, revision=DEFAULT_BRANCHES[source],
            format="mxfp4", endpoint=hub.endpoint, environment={"no_proxy": "*"}, wait_s=300, timeout_s=120,
            **{"retries": 0, **arguments},
        )  # fmt: skip

    @property
    def repository(self):
        return self.hub.repositories[self.repo]

    def contents(self):
        """{path: Content} of the wanted files."""
        files = self.repository.files
        return {path: one for path, one in files.items() if not path.startswith(("original/", "metal/"))}

    def wanted(self):
        return {path: content.bytes() for path, content in self.contents().items()}

    def size(self, path=SHARD):
        return self.repository.files[path].size

    def kept(self, path):
        """Bytes of a wanted file in the staging folder, with which the next run continues."""
        content = self.repository.files[path]
        by_git = self.source == "huggingface" and not is_lfs(path, content)
        sums = {"sha256": None, "oid": content.git_sha1} if by_git else {"sha256": content.sha256}
        return bytes_of(part_of(str(self.staging), path, {"size": content.size, **sums}))

    def job(self):
        return next((self.root / "var/lib/inference-fleet/jobs").glob("weights-*/"))

    def job_state(self):
        return read_json(self.job() / "state.json") or {}

    def pid(self):
        return int((self.job() / "pid").read_text())

    def kill(self):
        """kill -9 of the worker, whose threads may hold its lock a moment longer; the hub has no faults any more."""
        os.kill(self.pid(), signal.SIGKILL)
        wait_until(lambda: not DetachedJob(str(self.job())).alive() and self.hub.quiet())
        self.hub.mend()
        assert not self.destination.exists()  # nothing half-written that a server could load

    def begin(self, **changes):
        """Start a job without waiting for its end."""
        result = self.run(wait_s=0, **changes)
        assert not result.get("failed") and not result["finished"], result
        return result

    def left_behind(self, **changes):
        """The state of a job that a play starts and that ends while nobody looks."""
        self.begin(**changes)
        wait_until(lambda: self.job_state().get("state") in ENDED)
        return self.job_state()

    def finish(self, **changes):
        """Poll until the end, as the role does; what the hub holds goes on."""
        for fault in self.hub.faults:
            fault.release()

        def ended():
            result = self.run(wait_s=0, **changes)
            return result if result.get("failed") or result["finished"] else None

        return wait_until(ended, 300, "the end")
