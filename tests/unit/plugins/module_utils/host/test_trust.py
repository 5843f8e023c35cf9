# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where root writes and what it executes must be root's alone."""

from __future__ import annotations

import os

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import trust
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.tests.unit.engines.plans import error

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="gives folders away")
OTHER = 4_000_000
MODELS = "root/var/lib/inference-fleet/models"


def planted(path, target, owner=OTHER):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, path)
    os.lchown(path, owner, owner)


def made(path, mode=0o755, owner=0):
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    os.chown(path, owner, owner)


BAD = {
    "a root for everybody": lambda at: made(at / "root", 0o777),
    "a root for everybody to add to": lambda at: made(at / "root", 0o1777),
    "a root of a group": lambda at: made(at / "root", 0o775),
    "somebody's root": lambda at: made(at / "root", 0o755, OTHER),
    "a folder above for everybody": lambda at: made(at, 0o777),
    "somebody's folder above": lambda at: made(at, 0o755, OTHER),
    "somebody's link above": lambda at: planted(at / "root", "/srv"),
    "root's link into somebody's folder": lambda at: (made(at / "x", 0o755, OTHER), planted(at / "root", at / "x", 0)),
    "links in a circle": lambda at: planted(at / "root", at / "root", 0),
    "somebody's etc": lambda at: made(at / "root/etc", 0o755, OTHER),
    "a var/lib for everybody": lambda at: made(at / "root/var/lib", 0o777),
    "a link for etc": lambda at: planted(at / "root/etc/inference-fleet", at, 0),
    "a link for secrets": lambda at: planted(at / "root/etc/inference-fleet/secrets", at, 0),
    "a link for records": lambda at: planted(at / "root/run/inference-fleet/servers", at, 0),
    "a dangling link for run": lambda at: planted(at / "root/run/inference-fleet", at / "gone", 0),
    "a link for programs": lambda at: planted(at / "root/var/lib/inference-fleet/lib", at, 0),
    "somebody's link for servers": lambda at: planted(at / "root/var/lib/inference-fleet/servers", at),
    "somebody's link for weights": lambda at: planted(at / MODELS, at),
    "a link for weights to everybody's": lambda at: (made(at / "x", 0o777), planted(at / MODELS, at / "x", 0)),
}
SOUND = {
    "nothing yet": lambda at: None,
    "a root": lambda at: made(at / "root"),
    "below a folder as /tmp": lambda at: made(at, 0o1777),
    "root's link": lambda at: (made(at / "x"), planted(at / "root", "x", 0)),
    "weights on another disk": lambda at: (made(at / "x"), planted(at / MODELS, at / "x", 0)),
    "folders of servers": lambda at: made(at / "root/run/inference-fleet/servers", 0o755, OTHER),
}


@pytest.mark.parametrize("name", BAD)
def test_a_root_that_others_can_change_is_refused(tmp_path, name):
    BAD[name](tmp_path / "at")
    before = sorted(tmp_path.rglob("*"))
    caught = error(NodePaths.of_parameter, str(tmp_path / "at/root"))
    assert (caught.code, caught.values[0]) == ("node.root-not-safe", "fleet_root %s/at/root" % tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", SOUND)
def test_a_root_of_roots_own_is_taken(tmp_path, name):
    SOUND[name](tmp_path / "at")
    assert NodePaths.of_parameter(str(tmp_path / "at/root")).root == str(tmp_path / "at/root")


def test_whoever_is_not_root_has_no_more_to_lose(tmp_path, monkeypatch):
    made(tmp_path / "root", 0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    trust.check_root(NodePaths(str(tmp_path / "root")))


@pytest.mark.parametrize(("mode", "owner", "words"), [
    (0o644, 0, None), (0, 0, "has mode 0000 instead of 0644"), (0o666, 0, "has mode 0666 instead of 0644"),
    (0o644, OTHER, "belongs to the deleted account %d" % OTHER),
])  # fmt: skip
def test_a_file_that_root_executes(tmp_path, mode, owner, words):
    path = tmp_path / "guard.py"
    path.write_text("")
    path.chmod(mode)
    os.chown(path, owner, owner)
    assert trust.misplaced(str(path)) == words
    path.unlink()
    assert trust.misplaced(str(path)) == "is missing"
    path.symlink_to("/etc/passwd")
    assert trust.misplaced(str(path)) == "is no plain file"
