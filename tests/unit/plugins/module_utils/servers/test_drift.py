# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each difference between a server and its plan has its line; what is as planned has none."""

from __future__ import annotations

import os
import pwd
import resource
import subprocess
import sys
import tempfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import OTHER_API_KEYS
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import processes as node_processes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import drift, running_process
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.decide import decide
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers.model import Desired, Observed
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.base import Status, Unit
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import run
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries
from hypothesis import given
from hypothesis import strategies as st

UNIT = "inference-fleet-server-0.service"
PATH = "/etc/systemd/system/" + UNIT
COMMAND = [sys.executable, "-m", "engine", "--port", "8000"]
NOFILE = {"NOFILE": (1048576, 1048576), "MEMLOCK": (-1, -1)}
ME = pwd.getpwuid(os.getuid()).pw_name


def entry(**changes):
    return plan_entries.plan_entry(8000, **{"command": COMMAND, "launch": COMMAND, "environment": {"A": "1"},
                                            "secrets": {"TOKEN": "v"}, "secret_versions": {"TOKEN": "1"},
                                            "cpus": "0-3", **changes})  # fmt: skip


def running(**changes):
    environment = {**run.engine_environment(entry(), {}, ""), "TOKEN": "t0p"}
    values = {"argv": COMMAND, "environment": environment, "limits": NOFILE, "cpus": {0, 1, 2, 3}, "uid": os.getuid(),
              "unit": UNIT, "group": {"memory.max": "max", "cpu.max": "max 100000", "pids.max": "max"},
              "parent": NOFILE, "age": 1000.0, "command": " ".join(COMMAND)}  # fmt: skip
    return running_process.Running(7, **{**values, **changes})


def environment(**changes):
    found = {**running().environment, **changes}
    return {name: value for name, value in found.items() if value is not None}


def unit(**changes):
    values = {"name": UNIT, "path": PATH, "limits": {"NOFILE": 1048576, "MEMLOCK": -1}}
    return Unit(**{**values, **changes})


MODES = {"/e": (0o644, 0, 0), "/s": (0o600, 0, 0)}
FILES = [("/e", 0o644, 0, 0), ("/s", 0o600, 0, None)]


def both(one=None, process=None, manager=None, **changes):
    """(Desired, Observed) of a server that runs as planned, but for the changes."""
    one = one or entry()
    desired = Desired(one, {"TOKEN": "t0p"}, ME, "d", None, FILES, secret_path="/s")
    values = {"entry": one, "secrets": {"TOKEN": "t0p"}, "definition": "d", "fresh": True, "modes": MODES,
              "state": {"phase": "running", "hash": one["hash"], "user": ME}, "service": Status("up", 7), "pids": [7],
              "unit": manager or unit(), "running": process or running(), "files": ["/e"]}  # fmt: skip
    return desired, Observed("server-0", **{**values, **changes})


def lines(desired, observed):
    return [(one.kind, one.text, one.heals) for one in drift.differences(desired, observed)]


def test_what_runs_as_planned_does_not_differ():
    desired, observed = both()
    assert lines(desired, observed) == []
    assert decide({"server-0": desired}, {"server-0": observed}, "started").actions == []


BROKEN = tempfile.mkdtemp() + "/python3"
os.symlink("/bin/false", BROKEN)
EDITED = "/run/systemd/system/%s.d/a.conf" % UNIT
CASES = {
    "another command": (
        {"process": running(argv=[*COMMAND, "--more"])},
        ("command", "its process runs another command than its entry", "restart"),
    ),
    "a word less": (
        {"process": running(argv=COMMAND[:-1])},
        ("command", "its process runs another command than its entry", "restart"),
    ),
    "another program": (
        {"process": running(argv=[COMMAND[0], "-m", "other", "--port", "9"])},
        ("command", "its process runs another command than its entry", "restart"),
    ),
    "a variable less": (
        {"process": running(environment=environment(A=None))},
        ("environment", "its process's environment lacks A", "restart"),
    ),
    "another value": (
        {"process": running(environment=environment(A="2"))},
        ("environment", "its process's environment has another value of A", "restart"),
    ),
    "another secret": (
        {"process": running(environment=environment(TOKEN="old"))},
        ("environment", "its process's environment has another value of TOKEN", "restart"),
    ),
    "no secret in the environment": (
        {"process": running(environment=environment(TOKEN=None))},
        ("environment", "its process's environment lacks TOKEN", "restart"),
    ),
    "more variables": (
        {"process": running(environment=environment(LD_PRELOAD="/x", Z="1"))},
        ("environment", "its process's environment also has LD_PRELOAD, Z", "restart"),
    ),
    "another user": ({"process": running(uid=4_000_000)}, ("user", "it runs as 4000000 instead of " + ME, "restart")),
    "fewer open files": (
        {"process": running(limits={**NOFILE, "NOFILE": (1024, 1024)})},
        ("limits", "its limit NOFILE is 1024 instead of 1048576", "restart"),
    ),
    "a lower soft limit": (
        {"process": running(limits={**NOFILE, "NOFILE": (1024, 1048576)})},
        ("limits", "its limit NOFILE is 1024 (hard 1048576) instead of 1048576", "restart"),
    ),
    "more open files": (
        {"process": running(limits={**NOFILE, "NOFILE": (2000000, 2000000)})},
        ("limits", "its limit NOFILE is 2000000 instead of 1048576", "restart"),
    ),
    "less locked memory": (
        {"process": running(limits={**NOFILE, "MEMLOCK": (65536, 65536)})},
        ("limits", "its limit MEMLOCK is 65536 instead of unlimited", "restart"),
    ),
    "less memory": (
        {"process": running(group={"memory.max": "1048576"})},
        ("limits", "MemoryMax of its unit's cgroup is 1048576 instead of max", "restart"),
    ),
    "less CPU": (
        {"process": running(group={"cpu.max": "50000 100000"})},
        ("limits", "CPUQuota of its unit's cgroup is 50000 100000 instead of max", "restart"),
    ),
    "fewer processes": (
        {"process": running(group={"pids.max": "100"})},
        ("limits", "TasksMax of its unit's cgroup is 100 instead of max", "restart"),
    ),
    "other CPUs": ({"process": running(cpus={0, 5})}, ("cpus", "it runs on the CPUs 0,5 instead of 0-3", "restart")),
    "another unit": (
        {"process": running(unit="cron.service")},
        ("unit", "its process 7 runs in cron.service instead of " + UNIT, "restart"),
    ),
    "no unit": (
        {"process": running(unit=None)},
        ("unit", "its process 7 runs in no unit instead of " + UNIT, "restart"),
    ),
    "a process outside": (
        {"outside": [2_000_000_000]},
        ("unit", "its process 2000000000 runs outside of its unit (gone)", "restart"),
    ),
    "a stranger in the unit": (
        {
            "fresh": False,
            "process": running(argv=["/bin/other"], environment={"B": "1"}, command="/bin/other --token x"),
        },
        ("process", "its unit's process 7 is no server of ours (/bin/other --token ********)", "restart"),
    ),
    "an edited unit": (
        {"definition": "d # edited"},
        ("definition", "its service definition differs (%s)" % PATH, "rewrite"),
    ),
    "a drop-in, which a run does not remove": (
        {"manager": unit(drop_ins=[EDITED])},
        ("drop-in", "the drop-in %s changes its unit" % EDITED, None),
    ),
    "a unit of a higher place": (
        {"manager": unit(overrides=["/run/systemd/transient/" + UNIT])},
        ("definition", "/run/systemd/transient/%s takes the place of its unit" % UNIT, None),
    ),
    "an older unit in memory": (
        {"manager": unit(stale=True)},
        ("reload", "systemd holds another version of its unit than the files", "rewrite"),
    ),
    "an interpreter that is gone": (
        {"manager": unit(programs=[("/nowhere/python", False)])},
        (
            "interpreter",
            "/nowhere/python, which its service definition executes, is broken: it is not there; it would "
            "not start again",
            None,
        ),
    ),
    "one that ends badly": (
        {"manager": unit(programs=[(BROKEN, True)])},
        (
            "interpreter",
            BROKEN + ", which its service definition executes, is broken: it ends with exit status 1; it "
            "would not start again",
            "rewrite",
        ),
    ),
    "secrets for everybody": (
        {"modes": {**MODES, "/s": (0o644, 0, 0)}},
        ("file mode", "/s has mode 0644 instead of 0600", "rewrite"),
    ),
    "an entry for nobody": (
        {"modes": {**MODES, "/e": (0o600, 0, 0)}},
        ("file mode", "/e has mode 0600 instead of 0644", "rewrite"),
    ),
    "somebody's entry": (
        {"modes": {**MODES, "/e": (0o644, 4_000_000, 0)}},
        ("file owner", "/e belongs to 4000000 instead of root", "rewrite"),
    ),
    "a secret less in the file": ({"secrets": {}}, ("secrets", "its file of secrets lacks TOKEN", "restart")),
    "a secret more in the file": (
        {"secrets": {"TOKEN": "t0p", "X": "y"}},
        ("secrets", "its file of secrets also has X", "restart"),
    ),
    "no file of secrets": (
        {"modes": {"/e": (0o644, 0, 0)}, "secrets": {}},
        ("secrets", "its file of secrets is missing", "restart"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_difference_has_its_line(case):
    changes, expected = CASES[case]
    desired, observed = both(**changes)
    assert lines(desired, observed) == [expected]
    assert "t0p" not in repr(lines(desired, observed))


@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_repaired_with_or_without_a_restart(case):
    changes, (_kind, _text, heals) = CASES[case]
    desired, observed = both(**changes)
    actions = decide({"server-0": desired}, {"server-0": observed}, "started").actions
    kinds = [action.kind for action in actions]
    if case.startswith(("a secret", "no file")):
        assert kinds == ["change"]  # the values are known here
    else:
        assert kinds == {"restart": ["restart"], "rewrite": ["redefine"], None: []}[heals]


NOTHING = {
    "a title that the engine gave itself": {"process": running(argv=["engine: serving"])},
    "no words, as in the middle of execve": {"process": running(argv=[])},
    "a script behind its interpreter": {
        "one": entry(command=["/venv/bin/vllm", "serve"], launch=["/venv/bin/vllm", "serve"]),
        "process": running(argv=["/venv/bin/python", "/venv/bin/vllm", "serve"])},
    "an environment that is not ours to read": {"process": running(environment=None)},
    "an environment that the engine overwrote": {"process": running(environment={"X": "1"})},
    "a wrapper that sets variables": {
        "one": entry(command=["/bin/sh", "start.sh"], launch=["/bin/sh", "start.sh"]),
        "process": running(argv=["python", "-m", "other"], environment=environment(MORE="1"))},
    "a manager that has no more to give": {
        "process": running(limits={"NOFILE": (4096, 4096)}, parent={"NOFILE": (1024, 4096)})},
    "limits of a drop-in": {
        "manager": unit(node_wide=["/etc/systemd/system/service.d/a.conf"], loaded_limits={"NOFILE": 4096}),
        "process": running(limits={"NOFILE": (4096, 4096)}, group={"memory.max": "1"})},
    "a program of a unit that is no Python, which is not executed": {"manager": unit(programs=[("/bin/false", True)])},
    "a guard that is about to become the engine": {
        "process": running(argv=["/usr/bin/python3", "-I", "/l/program/current", "run"])},
    "a client of a container": {
        "one": entry(launcher="container", command=["serve"], launch=["docker", "run"]),
        "process": running(argv=["docker", "run", "--label=x"], environment={"A": "2"}, unit="podman.scope")},
    "a reload that would harm others": {"manager": unit(stale=True, may_reload=False)},
    "a program that has executed another": {"process": running(argv=["/opt/other", "serve"])},
    "no CPUs in the plan": {"one": entry(cpus=None), "process": running(cpus={0})},
    "a stranger who may become the guard": {
        "fresh": False, "process": running(argv=["/bin/other"], environment={"B": "1"}, age=1.0)},
    "an entry that runs in an older version, which is said elsewhere": {
        "state": {"phase": "running", "hash": "0" * 64}, "process": running(argv=["x", "y"])},
}  # fmt: skip


@pytest.mark.parametrize("case", NOTHING)
def test_what_is_no_difference(case):
    assert lines(*both(**NOTHING[case])) == []


def test_notes_are_no_differences():
    manager = unit(node_wide=["/run/systemd/system/service.d/a.conf"], stale=True, may_reload=False)
    assert drift.unit_notes(manager) == [
        "the drop-in /run/systemd/system/service.d/a.conf changes its unit",
        "systemd takes the new version of its unit at its next start",
    ]


def test_a_secret_that_is_not_known_is_compared_by_name():
    desired, observed = both(secrets={}, secrets_read=False)
    desired.secrets = {}
    observed.running = running(environment=environment(TOKEN="whatever"))
    assert lines(desired, observed) == []


def test_a_server_of_one_api_key_lacks_no_others_and_one_of_several_does():
    one = entry(secrets={"TOKEN": "v", OTHER_API_KEYS[0]: "fleet_api_key"})
    desired, observed = both(one)
    assert lines(desired, observed) == []
    desired.secrets[OTHER_API_KEYS[0]] = "second"
    assert [text for _kind, text, _heals in lines(desired, observed)] == [
        "its file of secrets lacks %s" % OTHER_API_KEYS[0], "its process's environment lacks %s" % OTHER_API_KEYS[0]
    ]  # fmt: skip


@given(st.dictionaries(st.sampled_from(["A", "TOKEN", "B", "C"]), st.text(st.characters(min_codepoint=33), min_size=4)))
def test_no_value_of_a_variable_is_in_a_message(values):
    desired, observed = both(process=running(environment=environment(**values)))
    text = repr(lines(desired, observed))
    assert not any(value in text.replace("environment", "").replace("another value", "") for value in values.values()
                   if not value.isalnum() and len(value) > 6)  # fmt: skip


def test_a_process_as_it_is():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"A": "1"})
    try:
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (100, limit[1]))
        found = running_process.look_at(child.pid)
        assert found.argv == [sys.executable, "-c", "input()"]
        assert found.environment == {"A": "1"}
        assert found.limits["NOFILE"] == (100, limit[1])
        assert found.parent["NOFILE"][1] == found.limits["NOFILE"][1]
        assert (found.uid, found.cpus) == (os.getuid(), os.sched_getaffinity(0))
    finally:
        child.communicate(b"\n")
    assert running_process.look_at(child.pid) is None


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


# ---- one at a time


def named(name, **changes):
    """As both(), of a server of this name."""
    command = [*COMMAND[:-1], name]
    one = entry(name=name, command=command, launch=command)
    desired, observed = both(
        one, running(argv=command, environment=environment(INFERENCE_FLEET_SERVER=name), **changes)
    )
    observed.name = name
    return desired, observed


def kinds(found, **options):
    wanted = {name: desired for name, (desired, _seen) in found.items()}
    observed = {name: one for name, (_want, one) in found.items()}
    return {action.name: action.kind for action in decide(wanted, observed, "started", **options).actions}


def test_of_several_that_differ_one_is_restarted_at_a_time():
    few = {"NOFILE": (64, 64)}
    found = {name: named(name, limits=few) for name in ("a", "b")}
    found["c"] = named("c")
    assert kinds(found) == {"a": "restart"}
    assert kinds(found, check=True) == {"a": "restart", "b": "restart"}
    assert kinds(found, only=["b"]) == {"b": "restart"}


def test_directories_that_are_gone_or_somebody_elses():
    modes = {"/w": (0, 0, 0), "/c": (0o755, 1234, 0)}
    expected = [("/a", (0, 0), False), ("/c", (0, 0), False), ("/d", None, True), ("/w", (0, 0), True)]
    found = drift.folder_differences(modes, expected)
    assert [(one.text, one.heals) for one in found] == [
        ("its directory /c belongs to 1234 instead of root", "rewrite"),
        ("its directory /d is missing", "rewrite"),
        ("its directory /w has mode 0000, which its account cannot use", "rewrite"),
    ]
