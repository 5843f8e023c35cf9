# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody changed of a container while it runs."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import Container
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import running_container
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine, image

IMAGE = "registry.example/team/app:1"
RUNS = [Container("c1", "inference-fleet-server-0", True, "server-0", "/", "h")]


def entry(*flags):
    return {
        "container": {"engine": "docker", "address": None, "image": IMAGE, "digest": None},
        "launch": ["docker", "run", "--rm", *flags, IMAGE, "serve", "--memory=9"],
        "command": ["serve", "--memory=9"],
    }


@pytest.fixture
def engine(tmp_path, monkeypatch):
    engine = ScriptedEngine(tmp_path, monkeypatch)
    engine.write(images={IMAGE: image("1", tags=[IMAGE]), "old": image("2")})
    return engine


def look(engine, planned, image_id="1", **limits):
    """Sentences on a container that runs this image with these limits."""
    host = {**dict.fromkeys(running_container.LIMITS, 0), "CpusetCpus": "", "CpusetMems": "", **limits}
    engine.write(containers=[{"id": "c1", "name": "c1", "labels": {}, "state": "running",
                              "image": "sha256:" + image_id * 64, "host": host}])  # fmt: skip
    return running_container.differences(planned, running_container.look_at(planned, RUNS))


@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        ((), {}),
        ((), {"Memory": None, "CpusetCpus": None}),
        (("--memory=1g",), {"Memory": 1 << 30}),
        (("-m", "512MB"), {"Memory": 512 << 20}),
        (("--cpus=1.5",), {"NanoCpus": 1500000000}),
        (("--cpuset-cpus=0-3,8",), {"CpusetCpus": "0,1,2,3,8"}),
        (("--memory=${odd}",), {"Memory": 7}),  # not understood, so not compared
    ],
)
def test_a_container_as_its_entry_has_it(engine, flags, limits):
    assert look(engine, entry(*flags), **limits) == []


@pytest.mark.parametrize(
    ("flags", "limits", "words"),
    [
        ((), {"Memory": 512 << 20}, "Memory of its container is 536870912 instead of unlimited"),
        (("--memory=1g",), {"Memory": 2 << 30}, "Memory of its container is 2147483648 instead of 1073741824"),
        (("--memory=1g",), {}, "Memory of its container is unlimited instead of 1073741824"),
        ((), {"MemoryReservation": 5}, "MemoryReservation of its container is 5 instead of unlimited"),
        ((), {"NanoCpus": 5}, "NanoCpus of its container is 5 instead of unlimited"),
        ((), {"CpuShares": 5}, "CpuShares of its container is 5 instead of unlimited"),
        (("--cpuset-cpus=0-3",), {"CpusetCpus": "0-1"}, "CpusetCpus of its container is 0,1 instead of 0,1,2,3"),
        ((), {"CpusetMems": "0"}, "CpusetMems of its container is 0 instead of unlimited"),
    ],
)
def test_a_limit_that_was_changed(engine, flags, limits, words):
    assert look(engine, entry(*flags), **limits) == [words]


def test_a_tag_that_leads_to_another_image_by_now(engine):
    words = "%s is another image by now (111111111111) than its container runs (222222222222)" % IMAGE
    assert look(engine, entry(), image_id="2") == [words]
    assert look(engine, entry(), image_id="9") == []  # one that the engine does not know any more tells nothing
    engine.write(images={"old": image("2")})
    assert look(engine, entry(), image_id="2") == []  # neither does a tag that is gone: another step brings it


def test_nothing_is_known_without_an_answer(engine):
    engine.write(errors={"*": "down"})
    assert running_container.look_at(entry(), RUNS) is None
    assert running_container.look_at(entry(), []) is None
    assert running_container.look_at({"container": None}, RUNS) is None
