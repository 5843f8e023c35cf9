# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models of different families on one machine, each verified by its own probes. The tests build on each other."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.inference.fleet.tests.e2e.conftest import FIRST_PORT, Deployment
from ansible_collections.inference.fleet.tests.runs import CLONE
from ansible_collections.inference.fleet.tools import engine_venv


class Families(Deployment):
    """The recipe cpu-families."""

    def __init__(self, folder, venv, first_port=FIRST_PORT + 90):
        super().__init__(folder, venv, first_port)
        self.layers["servers"] = {"server": {"port": first_port}, "chat": {"port": first_port + 1}}

    def play(self, playbook, *arguments, **options):
        return super().play(playbook, "-e", "fleet_recipe=cpu-families", *arguments, **options)


@pytest.fixture(scope="module")
def families():
    """A server of each family, taken down at the end whatever happens."""
    folder = CLONE / ".cache" / "e2e-families" / "f"
    one = Families(folder, {"path": str(engine_venv.ensure()), "create": not engine_venv.borrowed()})
    if folder.exists():
        one.play("playbooks/stop.yml")
        shutil.rmtree(folder)
    yield one
    one.play("playbooks/stop.yml")


def test_each_server_is_verified_by_the_probes_of_its_family(families):
    families.site().ok()
    verdicts = families.verdicts()
    assert sorted(verdicts) == ["chat-0", "server-0"]
    assert False not in [ok for probes in verdicts.values() for ok in probes.values()]
    assert verdicts["server-0"]["effort"] is verdicts["server-0"]["harmony-residue"] is True
    assert verdicts["chat-0"]["chat"] is verdicts["chat-0"]["json-schema"] is verdicts["chat-0"]["api-key"] is True
    assert "effort" not in verdicts["chat-0"]


def test_a_second_run_changes_nothing(families):
    assert families.site().ok().count("changed") == 0


def test_the_other_server_becomes_one_of_embeddings(families):
    before = families.state("server-0")["pid"]
    run = families.site("-e", "fleet_overlay=embedding").ok()
    assert run.count("changed") > 0
    assert families.verdicts()["chat-0"]["embedding"] is families.verdicts()["chat-0"]["embedding-repeat"] is True
    assert families.state("server-0")["pid"] == before
