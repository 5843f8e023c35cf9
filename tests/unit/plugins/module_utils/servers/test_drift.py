# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each difference between a server and its plan has its line; a server as planned has none."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import Container
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import OTHER_API_KEYS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes as node_processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import drift
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.decide import decide
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import (
    DesiredServer,
    Fault,
    Observed,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status, Unit
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine, image

UNIT = "inference-fleet-server-0.service"
PATH = "/etc/systemd/system/" + UNIT
ME = pwd.getpwuid(os.getuid()).pw_name
MODES = {"/e": (0o644, 0, 0), "/s": (0o600, 0, 0)}
FILES = [("/e", 0o644, 0, 0), ("/s", 0o600, 0, None)]
BROKEN = tempfile.mkdtemp() + "/python3"
os.symlink("/bin/false", BROKEN)
INTERPRETER = "%s, which its service definition executes, is broken: %s; it would not start again"
MOVED = "x:1 is another image by now (1) than its container runs (2)"


def entry(**changes):
    return plan_entries.plan_entry(8000, secrets={"TOKEN": "v"}, secret_versions={"TOKEN": "1"}, **changes)


def both(one=None, manager=None, **changes):
    """(DesiredServer, Observed) of a server that runs as planned, except for the changes."""
    one = one or entry()
    desired = DesiredServer(one, {"TOKEN": "t0p"}, ME, "d", None, FILES, secret_path="/s")
    values = {"entry": one, "secrets": {"TOKEN": "t0p"}, "definition": "d", "fresh": True, "modes": MODES,
              "state": {"phase": "running", "hash": one["hash"], "user": ME}, "service": Status("up", 7), "pids": [7],
              "unit": manager or Unit(PATH), "files": ["/e"]}  # fmt: skip
    return desired, Observed(one["name"], **{**values, **changes})


def lines(desired, observed):
    return [(one.kind, one.text, one.heals) for one in drift.differences(desired, observed)]


CASES = {
    "a stranger in the unit": ({"strange": "it is vi"}, ("process", "it is vi", "restart")),
    "a stranger in a unit with a drop-in": (
        {"strange": "it is vi", "manager": Unit(PATH, drop_ins=["/x.conf"])}, ("process", "it is vi", None)),
    "an image that was moved": ({"moved_image": MOVED}, ("container", MOVED, "restart")),
    "an edited unit": (
        {"definition": "d # edited"}, ("definition", "its service definition differs (%s)" % PATH, "rewrite")),
    "an older unit in memory": (
        {"manager": Unit(stale=True)},
        ("reload", "systemd holds another version of its unit than the files", "rewrite")),
    "an interpreter that is gone": (
        {"manager": Unit(programs=[("/nowhere/python", False)])},
        ("interpreter", INTERPRETER % ("/nowhere/python", "it is not there"), None)),
    "an interpreter that ends badly": (
        {"manager": Unit(programs=[(BROKEN, True)])},
        ("interpreter", INTERPRETER % (BROKEN, "it ends with exit status 1"), "rewrite")),
    "secrets for everybody": (
        {"modes": {**MODES, "/s": (0o644, 0, 0)}}, ("file mode", "/s has mode 0644 instead of 0600", "rewrite")),
    "an entry for nobody": (
        {"modes": {**MODES, "/e": (0o600, 0, 0)}}, ("file mode", "/e has mode 0600 instead of 0644", "rewrite")),
    "somebody's entry": (
        {"modes": {**MODES, "/e": (0o644, 4_000_000, 0)}},
        ("file owner", "/e belongs to 4000000 instead of root", "rewrite")),
    "a secret less in the file": ({"secrets": {}}, ("secrets", "its file of secrets lacks TOKEN", "restart")),
    "a secret more in the file": (
        {"secrets": {"TOKEN": "t0p", "X": "y"}}, ("secrets", "its file of secrets also has X", "restart")),
    "no file of secrets": (
        {"modes": {"/e": (0o644, 0, 0)}, "secrets": {}}, ("secrets", "its file of secrets is missing", "restart")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_difference_has_its_line_and_is_repaired_with_or_without_a_restart(case):
    changes, expected = CASES[case]
    desired, observed = both(**changes)
    assert lines(desired, observed) == [expected]
    assert "t0p" not in repr(lines(desired, observed))
    actions = decide({"server-0": desired}, {"server-0": observed}, "started").actions
    kinds = {"restart": ["restart"], "rewrite": ["redefine"], None: []}[expected[2]]
    if expected[0] == "secrets":
        kinds = ["change"]  # the values are known here
    assert [action.kind for action in actions] == kinds


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"manager": Unit(programs=[("/bin/false", True)])},  # no Python, so it is not executed
        {"manager": Unit(stale=True, may_reload=False)},
        {"manager": Unit(drop_ins=["/run/systemd/system/service.d/a.conf"])},
        {"moved_image": MOVED, "state": {"phase": "running", "hash": "0" * 64, "user": ME}},  # said elsewhere
    ],
)
def test_conditions_that_are_no_difference(changes):
    assert lines(*both(**changes)) == []


def test_notes_are_no_differences():
    manager = Unit(drop_ins=["/run/systemd/system/service.d/a.conf"], stale=True, may_reload=False)
    assert drift.unit_notes(manager) == [
        "the drop-in /run/systemd/system/service.d/a.conf changes its unit",
        "systemd takes the new version of its unit at its next start",
    ]


def test_a_server_of_one_api_key_lacks_no_others_and_one_of_several_does():
    one = entry()
    one["secrets"][OTHER_API_KEYS[0]] = "fleet_api_key"
    desired, observed = both(one)
    assert lines(desired, observed) == []
    desired.secrets[OTHER_API_KEYS[0]] = "second"
    assert lines(desired, observed) == [
        ("secrets", "its file of secrets lacks %s" % OTHER_API_KEYS[0], "restart"),
    ]


def test_directories_that_are_gone_or_somebody_elses():
    modes = {"/w": (0, 0, 0), "/c": (0o755, 1234, 0)}
    expected = [("/a", (0, 0), False), ("/c", (0, 0), False), ("/d", None, True), ("/w", (0, 0), True)]
    found = drift.folder_differences(modes, expected)
    assert [(one.text, one.heals) for one in found] == [
        ("its directory /c belongs to 1234 instead of root", "rewrite"),
        ("its directory /d is missing", "rewrite"),
        ("its directory /w has mode 0000, which its account cannot use", "rewrite"),
    ]


def test_of_several_that_differ_one_is_restarted_at_a_time():
    found = {name: both(entry(name=name), fault=Fault("it hangs")) for name in ("a", "b")}
    found["c"] = both(entry(name="c"))

    def kinds(**options):
        wanted = {name: desired for name, (desired, _seen) in found.items()}
        observed = {name: one for name, (_want, one) in found.items()}
        return {action.name: action.kind for action in decide(wanted, observed, "started", **options).actions}

    assert kinds() == {"a": "restart"}
    assert kinds(check=True) == {"a": "restart", "b": "restart"}
    assert kinds(only=["b"]) == {"b": "restart"}


# ---- the process of a unit


@pytest.mark.parametrize(
    ("variables", "arguments", "age", "strange"),
    [
        ({"A": "1"}, [], 1000, True),
        ({"A": "1"}, [], 1, False),  # it may become the guard
        ({"INFERENCE_FLEET_SERVER": "server-0", "INFERENCE_FLEET_ROOT": "/"}, [], 1000, False),
        ({"INFERENCE_FLEET_SERVER": "server-0", "INFERENCE_FLEET_ROOT": "/other"}, [], 1000, True),
        ({"A": "1"}, ["/l/program/current"], 1000, False),  # the guard
        ({}, [], 1000, False),  # not this account's to read
    ],
)
def test_a_process_that_no_guard_started_is_strange(monkeypatch, variables, arguments, age, strange):
    monkeypatch.setattr(drift.time, "time", lambda now=time.time: now() + age)
    command = [sys.executable, "-c", "input()", *arguments, "--token=t0p"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables)
    try:
        words = drift.strange_process(child.pid, "")
        assert (words is not None) == strange
        assert not strange or "--token=********" in words
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("vllm serve --api-key sk-1234 --port 1", "vllm serve --api-key ******** --port 1"),
        ("x --hf-token=hf_abcdef y", "x --hf-token=******** y"),
        ("curl -H 'Authorization: Bearer abcdefgh'", "curl -H 'Authorization: ********'"),
        ("proxy http://me:pass@host/", "proxy http://********host/"),
        ("nc -l 8000", "nc -l 8000"),
    ],
)
def test_a_strangers_command_is_shown_without_its_secrets(command, shown):
    assert node_processes.masked(command) == shown


# ---- the image of a container


def test_a_tag_that_leads_to_another_image_by_now(tmp_path, monkeypatch):
    name = "registry.example/team/app:1"
    planned = {"container": {"engine": "docker", "address": None, "image": name, "digest": None}}
    runs = [Container("c1", "inference-fleet-server-0", True, "server-0", "/", "h")]
    engine = ScriptedEngine(tmp_path, monkeypatch)
    engine.write(images={name: image("1", tags=[name]), "old": image("2")})

    def moved(image_id):
        engine.write(containers=[{"id": "c1", "name": "c1", "labels": {}, "state": "running",
                                  "image": "sha256:" + image_id * 64, "host": {}}])  # fmt: skip
        return drift.moved_image(planned, runs)

    assert moved("1") is None
    assert moved("2") == "%s is another image by now (111111111111) than its container runs (222222222222)" % name
    assert moved("9") is None  # the engine does not know it any more
    engine.write(images={"old": image("2")})
    assert moved("2") is None  # the name is gone: another step restores it
    assert drift.moved_image(planned, []) is None
    assert drift.moved_image({"container": None}, runs) is None
    engine.write(errors={"*": "down"})
    assert drift.moved_image(planned, runs) is None
