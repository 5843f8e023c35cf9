# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units as systemd reads them, and systemd's words as we read them. tests/nodes does the same with a real one."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import services
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import units
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import systemd
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import compile_cache, container, plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.node_helpers import script


@pytest.mark.parametrize(("text", "word"), [
    ("", '""'), ("a;b # {}", '"a;b # {}"'), ('"\\', r'"\"\\"'), ("%n", '"%%n"'), ("${A}", '"$${A}"'),
    ("\t\n\x7f", r'"\x09\x0a\x7f"'), ("é\udcff", r'"é\xff"'), ("a\0b", None),
])  # fmt: skip
def test_a_word_of_a_unit_is_quoted_or_refused(text, word):
    """tests/nodes has systemd read such words."""
    if word is None:
        caught = error(systemd.unit_word, text)
        assert (caught.code, caught.values[0]) == ("services.text-invalid", text)
    else:
        assert systemd.unit_word(text) == word


def entry(name="server-0", **changes):
    return plan_entry(8000, name, **{"command": ["/opt/venv/bin/engine"], **changes})


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A Systemd of a folder of units, with `calls` and `answers` in place of the programs."""
    monkeypatch.setattr(systemd, "SYSTEMD_RUNS", str(tmp_path))
    monkeypatch.setattr(units, "LOADED", str(tmp_path / "loaded"))
    made = systemd.Systemd(NodePaths(""), units=str(tmp_path))
    made.python = made.interpreter = "/usr/bin/python3"
    made.calls, made.answers = [], {}

    def call(program, *arguments, more_s=0):
        made.calls.append(" ".join([program, *arguments]))
        return made.answers.get(arguments[0], "") if program == "systemctl" else made.answers[program]

    monkeypatch.setattr(made, "_call", call)
    return made


def define(manager, *names, **changes):
    for name in names:
        with open(manager.definition_path(name), "w", encoding="utf-8") as stream:
            stream.write(manager.definition(entry(name, **changes), "inference-fleet"))


def acts(manager):
    """The calls that change something."""
    return [call for call in manager.calls if " show " not in call]


def link(manager, name, wanting="multi-user.target"):
    """What `systemctl enable` makes."""
    folder = "%s/%s.wants" % (manager.units, wanting)
    os.makedirs(folder, exist_ok=True)
    os.symlink(manager.definition_path(name), "%s/%s" % (folder, systemd.unit_of(name)))


def shown(name="server-0", **changes):
    block = {
        "Id": "inference-fleet-%s.service" % name, "Description": "inference.fleet server " + name,
        "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "MainPID": "42",
        "NeedDaemonReload": "no",
    }  # fmt: skip
    return "".join("%s=%s\n" % item for item in (block | changes).items())


CONTAINER = container()
END = '"/usr/bin/python3" "-I" "/var/lib/inference-fleet/program/current" "end" '
END += '"/etc/inference-fleet/servers/server-0.json"'
STOP = "ExecStop=-" + END + ' "--root" "" "--state" "/run/inference-fleet/servers/server-0.json"'


def test_the_unit_of_a_process(manager):
    with open(os.path.join(os.path.dirname(systemd.__file__), "server.service"), encoding="utf-8") as stream:
        constant = stream.read().splitlines()
    text = manager.definition(entry(cpus="0-3,8", start={"after": ["leader", "etcd"]}), "inference-fleet")
    assert [line for line in text.splitlines() if line not in constant and not line.startswith("#")] == [
        "Description=inference.fleet server server-0",
        "ConditionPathExists=%s/inference-fleet-server-0.service" % manager.units,
        "Wants=network-online.target inference-fleet-leader.service inference-fleet-etcd.service",
        "After=network-online.target inference-fleet-leader.service inference-fleet-etcd.service",
        *('RequiresMountsFor="%s"' % path for path in ("/opt/venv/bin", "/usr/bin", "/var/lib/inference-fleet")),
        "ExecStart=" + END.replace("end", "run") + ' "--state" "/run/inference-fleet/servers/server-0.json" '
        '"--secrets" "/etc/inference-fleet/secrets/server-0.json" "--root" ""',
        STOP, "RestartPreventExitStatus=194", "TimeoutStopSec=15",
        "SyslogIdentifier=inference-fleet-server-0", "User=inference-fleet",
        "RuntimeDirectory=inference-fleet/servers", "RuntimeDirectoryPreserve=yes",
        "ProtectSystem=full", "ProtectControlGroups=yes", "NoNewPrivileges=yes", "RestrictSUIDSGID=yes",
        "ProtectKernelTunables=yes", "WantedBy=multi-user.target",
    ]  # fmt: skip
    # one that only compiles for this server is neither started with it nor waited for
    compiled = {"after": ["server-7", "leader", "etcd"]}
    hooks = compile_cache("f1", ["server-7"])
    assert manager.definition(entry(cpus="0-3,8", start=compiled, hooks=hooks), "inference-fleet") == text
    plain = manager.definition(entry(platform="nvidia"), None)
    assert "User=" not in plain and "RuntimeDirectory=" not in plain
    assert "NoNewPrivileges=" not in plain  # nvidia-modprobe is setuid


def test_the_unit_of_a_container_ends_what_is_not_in_its_cgroup(manager):
    text = manager.definition(entry(container=CONTAINER, start={"after": ["lead"], "restart_with_leader": True}), None)
    plain = manager.definition(entry(start={"after": ["lead"]}), None)
    more = [line for line in text.splitlines() if line not in plain.splitlines()]
    assert more == [
        "After=network-online.target docker.service inference-fleet-lead.service",
        "Requires=docker.service", "PartOf=inference-fleet-lead.service",
        "ExecStartPre=-" + END + ' "--root" "" "--remove"', "ExecStopPost=-" + END + ' "--root" "" "--remove"',
        "TimeoutStopSec=30", "WantedBy=multi-user.target docker.service",
    ]  # fmt: skip
    assert STOP in text.splitlines() and STOP in plain.splitlines()


def test_an_engine_elsewhere_or_without_a_daemon_is_no_other_unit(manager):
    for changes in ({"address": "unix:///run/other.sock"}, {"engine": "podman"}):
        text = manager.definition(entry(container=dict(CONTAINER, **changes)), None)
        assert "docker.service" not in text
        assert "ExecStopPost=-" + END in text
    hardened = ("ProtectSystem=", "ProtectControlGroups=", "NoNewPrivileges=", "ProtectKernelTunables=")
    assert not [word for word in hardened if word in text]  # podman makes the container itself, below the unit


def test_the_folders_of_an_artifact_are_made_by_root_before_each_start(manager):
    path = "/mnt/artifacts/k1"
    changes = {"environment": {"NEURON_COMPILED_ARTIFACTS": path}, "directories": {"artifact": path},
               "hooks": compile_cache("k1")}  # fmt: skip
    line = (
        'ExecStartPre=+"/usr/bin/python3" "-I" "/var/lib/inference-fleet/program/current" "folders" '
        '"/etc/inference-fleet/servers/server-0.json" "--user" "ubuntu"'
    )
    assert line in manager.definition(entry(**changes), "ubuntu").splitlines()
    assert "ExecStartPre" not in manager.definition(entry(**changes), None)  # whoever runs it may make them
    assert "ExecStartPre" not in manager.definition(entry(directories={"artifact": path}), "ubuntu")


DEAD = {"ActiveState": "inactive", "SubState": "dead", "MainPID": "0"}
AGAIN = {"ActiveState": "activating", "SubState": "auto-restart", "MainPID": "0", "Result": "exit-code"}
FAILED = {"ActiveState": "failed", "SubState": "failed", "MainPID": "0", "Result": "exit-code"}
EXITED, KILLED = {"ExecMainCode": "1"}, {"ExecMainCode": "2", "ExecMainStatus": "9"}
GONE = "the account was-deleted that it runs as is not on this node any more; run site.yml, or create it again"


@pytest.mark.parametrize(("changes", "state", "pid", "reason"), [
    ({}, "up", 42, None),
    ({"ActiveState": "activating", "SubState": "start-pre", "MainPID": "0"}, "up", None, None),
    (DEAD | {"Job": "711"}, "up", None, systemd.QUEUED),
    (DEAD | {"Job": ""}, "down", None, None),
    (AGAIN | EXITED | {"ExecMainStatus": "3"}, "restarting", None, "it ended with exit status 3"),
    (AGAIN | KILLED | {"Result": "signal"}, "restarting", None, "it ended with signal 9"),
    (AGAIN | KILLED | {"Result": "oom-kill"}, "restarting", None, "it ended with signal 9, out of memory"),
    (AGAIN | {"ExecMainCode": "0"}, "restarting", None, "its program was not executed (exit-code)"),
    (AGAIN | {"User": "was-deleted"}, "restarting", None, GONE),
    (FAILED | {"User": "was-deleted"}, "failed", None, GONE),
    (FAILED | EXITED | {"ExecMainStatus": "194"}, "failed", None, "start limit"),
    (FAILED | {"Result": "resources"}, "failed", None, "systemd reports resources"),
    (FAILED | EXITED | {"ExecMainStatus": "217"}, "failed", None,
     "the user of its unit is not on this node any more"),
    (DEAD | {"LoadState": "bad-setting", "LoadError": "Unit has a bad setting"}, "failed", None,
     "systemd cannot load its unit: Unit has a bad setting"),
])  # fmt: skip
def test_a_unit_is_what_systemd_says_of_it(manager, changes, state, pid, reason):
    define(manager, "server-0")
    manager.answers["show"] = shown(**changes)
    status = manager.statuses()["server-0"]
    assert (status.state, status.pid, status.reason) == (state, pid, reason)


def test_only_our_units_are_ours(manager, tmp_path):
    define(manager, "server-1", "server-0")
    (tmp_path / "inference-fleet-etcd.service").write_text("[Unit]\nDescription=etcd of the fleet\n")
    (tmp_path / "other.service").write_text(systemd.HEADER)
    assert manager.defined() == ["server-0", "server-1"]
    # one runs on though its unit file is gone, one is not forgotten yet, one is another part's
    others = [shown("stray"), shown("gone", **DEAD), shown("etcd", Description="etcd of the fleet")]
    manager.answers["show"] = "\n".join([shown("server-0"), shown("server-1", **DEAD), *others])
    states = {name: status.state for name, status in manager.statuses().items()}
    assert states == {"server-0": "up", "server-1": "down", "stray": "up"}
    assert len(manager.calls) == 1


def needed(manager, **changes):
    """Paths whose mounts the unit of this entry waits for, as systemd reads them; those that all have left out."""
    lines = manager.definition(entry(**changes), None).splitlines()
    words = [line.partition("=")[2] for line in lines if line.startswith("RequiresMountsFor=")]
    assert all(word[0] + word[-1] == '""' for word in words)
    found = [re.sub(r"\\(.)", r"\1", word[1:-1]).replace("%%", "%") for word in words]
    return [one for one in found if one not in ("/usr/bin", "/var/lib/inference-fleet")]


def test_a_unit_waits_for_the_file_systems_that_it_needs(manager, tmp_path):
    """Those of the network and with nofail are ordered before remote-fs.target alone, or before nothing."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "linked").symlink_to("disk")
    folders = {"work": "/var/lib/inference-fleet/servers/server-0/work", "artifact": '/mnt/100% "a" b\\c/$x'}
    process = {"weights": ["/models/one/", "%s/linked/two" % tmp_path, "/models/../models/one"],
               "directories": folders, "command": ["/opt/venv/bin/python", "/elsewhere"],
               "environment": {"TIKTOKEN_ENCODINGS_BASE": "/opt/encodings", "OTHER": "/other"}}  # fmt: skip
    found = ["/models/one", "%s/disk/two" % tmp_path, "%s/linked/two" % tmp_path, *folders.values()]
    assert needed(manager, **process) == sorted([*found, "/opt/venv/bin", "/opt/encodings"])
    mounts = [{"source": "/opt/encodings"}, {"source": "/opt"}, {"source": "/mnt/data"}]
    contained = {**process, "container": dict(CONTAINER, mounts=mounts)}
    assert needed(manager, **contained) == sorted([*found, "/opt/encodings", "/mnt/data"])
    unfit = ["/a\nb", "/a\x7f", "/\udcff", "relative"]  # systemd would not read the line
    assert needed(manager, weights=[*unfit, "/é 漢"], command=["engine"]) == ["/é 漢"]


@pytest.mark.parametrize("contained", [None, CONTAINER])
def test_a_unit_that_no_reboot_would_start_is_noticed(manager, contained):
    define(manager, "server-0", container=contained)
    manager.answers["show"] = shown()
    wanting = ["multi-user.target", *(["docker.service"] if contained else [])]
    for one in wanting:
        assert not manager.statuses()["server-0"].enabled
        link(manager, "server-0", one)
    assert manager.statuses()["server-0"].enabled
    manager.enable(["server-0"])
    assert "systemctl enable --quiet --no-reload -- inference-fleet-server-0.service" in manager.calls


def test_a_masked_unit_is_an_error_and_stays(manager):
    os.symlink(os.devnull, manager.definition_path("server-0"))
    caught = error(manager.definition, entry(), None)
    assert (caught.code, caught.values[0]) == ("systemd.unit-masked", "server-0")
    assert (manager.masked("server-0"), manager.masked("server-1")) == (True, False)
    manager.drop(["server-0"])
    assert manager.calls == []
    assert os.readlink(manager.definition_path("server-0")) == os.devnull


UNITS = "inference-fleet-server-0.service inference-fleet-server-1.service"


@pytest.mark.parametrize("reload", [False, True])
def test_units_are_read_again_only_where_they_changed(manager, reload):
    """A daemon-reload takes the devices away from containers that run."""
    manager.answers["show"] = shown("server-0") + "\n" + shown("server-1", NeedDaemonReload="yes" if reload else "no")
    manager.start(["server-0", "server-1"])
    assert acts(manager) == [
        "systemctl enable --quiet --no-reload -- " + UNITS,
        *(["systemctl daemon-reload"] if reload else []),
        "systemctl start --no-block -- " + UNITS,
    ]


def test_stopped_servers_are_forgotten_and_dropped_ones_are_gone(manager):
    define(manager, "server-0", "server-1")
    manager.answers["show"] = shown("server-0") + "\n" + shown("server-1", ActiveState="failed", MainPID="0")
    manager.stop(["server-0", "server-1", "unknown"])
    manager.drop(["server-0", "unknown"])
    manager.answers["show"] = ""
    manager.stop(["server-0"])
    manager.drop(["server-0"])
    forget = "systemctl reset-failed -- inference-fleet-server-1.service"
    assert acts(manager) == [
        "systemctl stop -- " + UNITS, forget,
        "systemctl disable --quiet --no-reload -- inference-fleet-server-0.service", forget,
    ]  # fmt: skip
    assert manager.defined() == ["server-1"]


@pytest.mark.parametrize(("journal", "tail"), [
    ("one\ntwo\nthree\n", ["two", "three"]), ("", []),
    ("one\x85two\u2028three\x0cfour\n", ["one\x85two\u2028three\x0cfour"]),  # none of these ends a line of a log
])  # fmt: skip
def test_the_end_of_a_log_comes_from_the_journal(manager, journal, tail):
    manager.answers["journalctl"] = journal
    assert (manager.log_tail("server-0", 2), manager.log_files("server-0")) == (tail, [])


def test_the_watchdog_is_a_unit_for_which_no_container_loses_its_devices(manager, monkeypatch):
    settings, path = {"interval": 7, "failures": 3, "timeout": 5}, manager.definition_path("watchdog")
    first = manager.ensure_watchdog(settings, check=True)
    assert first[0] == "" and first[1].startswith(path) and not os.path.exists(path)
    assert manager.ensure_watchdog(settings) == first
    unit = "inference-fleet-watchdog.service"
    enable, start = "systemctl enable --quiet --no-reload -- " + unit, "systemctl start --no-block -- " + unit
    assert acts(manager) == [enable, start]
    (command,) = re.findall("(?m)^ExecStart=(.*)$", pathlib.Path(path).read_text())
    assert command.startswith('"/usr/bin/python3" "-I" "%s" "watch"' % manager.paths.guard)
    assert command.endswith('"--every" "7" "--failures" "3" "--timeout" "5"')

    link(manager, "watchdog")
    for state, same in (("inactive", False), ("active", True)):
        manager.answers["show"] = shown("watchdog", ActiveState=state, MainPID="0", NeedDaemonReload="yes")
        before, after = manager.ensure_watchdog(settings, check=True)
        assert (before == after) is same
    os.chmod(path, 0o666)
    manager.ensure_watchdog(settings)
    assert os.stat(path).st_mode & 0o777 == 0o644
    for number, harmless in enumerate((False, True)):
        manager.calls.clear()
        monkeypatch.setattr(systemd, "_reload_is_harmless", lambda value=harmless: value)
        manager.ensure_watchdog(dict(settings, interval=8 + number))
        reload = ["systemctl daemon-reload"] if harmless else []
        assert acts(manager) == ["systemctl stop -- " + unit, enable, *reload, start]
    manager.calls.clear()
    manager.ensure_watchdog(None)
    assert acts(manager) == ["systemctl stop -- " + unit, "systemctl disable --quiet --no-reload -- " + unit]
    assert manager.defined() == []


def test_problems(manager, monkeypatch):
    monkeypatch.setattr(systemd.os, "getuid", lambda: 1000)
    assert manager.problem() == "only root may change the system's units. Use become."
    monkeypatch.setattr(systemd.os, "getuid", lambda: 0)
    assert manager.problem() is None
    monkeypatch.setattr(systemd, "SYSTEMD_RUNS", "/no/such/folder")
    assert manager.problem() == "this node was not booted with systemd. Use manager: supervisord."
    assert manager.statuses() == {}


def test_a_program_that_fails_is_told_with_its_words(tmp_path, monkeypatch):
    monkeypatch.setattr(systemd.host_paths, "PATH", "%s:/usr/bin:/bin" % tmp_path)
    made = systemd.Systemd(NodePaths(""), units=str(tmp_path))
    monkeypatch.setattr(systemd.host_paths, "PATH", str(tmp_path))
    caught = error(made.log_tail, "server-0", 5)
    assert (caught.code, caught.values[2]) == ("systemd.command-failed", "journalctl is not installed")
    script(tmp_path / "systemctl", "echo 'Failed to enable unit: no space' >&2; exit 4")
    caught = error(made.start, ["server-0"])
    assert caught.code == "systemd.command-failed"
    assert caught.values[1:] == (
        "enable --quiet --no-reload -- inference-fleet-server-0.service", "Failed to enable unit: no space"
    )  # fmt: skip


def test_a_root_of_its_own_has_no_systemd(monkeypatch):
    own, system = NodePaths("/srv/fleet"), NodePaths("")
    caught = error(services.get_manager, "systemd", own)
    assert caught.code == "arguments.value-invalid"
    path = "/etc/systemd/system/inference-fleet-a.service"
    assert services.get_manager("systemd", system).definition_path("a") == path
    for booted, name in (("/no/such/folder", "supervisord"), ("/", "systemd")):
        monkeypatch.setattr(services, "SYSTEMD_RUNS", booted)
        assert services.get_manager("auto", own).name == "supervisord"
        assert services.get_manager("auto", system).name == name


def test_foreign_files_that_change_a_unit(manager):
    define(manager, "server-0")
    loaded = ["/etc/systemd/system/inference-fleet-%s.service.d/x.conf" % name for name in ("server-0", "")]
    loaded.append("/etc/systemd/system/service.d/x.conf")
    hiding = "/run/systemd/transient/inference-fleet-server-0.service"
    own = manager.definition_path("server-0")
    for fragment, drop_ins, found in ((own, [], []), (hiding, loaded, [*loaded, hiding])):
        manager.answers["show"] = shown(FragmentPath=fragment, DropInPaths=" ".join(drop_ins))
        assert manager.statuses()["server-0"].drop_ins == found


@pytest.mark.parametrize(("changed", "nvidia", "containers", "reload"), [
    ("server-0.service", False, True, True), ("server-0.service", True, False, True),
    ("server-0.service", True, True, False),  # a reload may cost a container of an NVIDIA node its devices
    ("server-0.service.d", False, True, True), ("server-1.service", False, False, False),
])  # fmt: skip
def test_only_an_older_unit_in_memory_is_reloaded(manager, monkeypatch, tmp_path, changed, nvidia, containers, reload):
    """systemd 257 reports NeedDaemonReload of all units if any has changed; its time of the last load decides."""
    monkeypatch.setattr(systemd.PLATFORMS["nvidia"], "lost_by_reload", str(tmp_path) if nvidia else "/no/such/device")
    monkeypatch.setattr(systemd, "_containers_run", lambda: containers)
    define(manager, "server-0", "server-1")
    loaded = tmp_path / "loaded"
    loaded.touch()
    now = os.stat(loaded).st_mtime_ns
    for unit in ("server-0.service.d", "server-0.service", "server-1.service"):
        path = tmp_path / ("inference-fleet-" + unit)
        if unit == changed and unit.endswith(".d"):
            path.mkdir()
        if path.exists():
            at = now + (1 if unit == changed else -1)
            os.utime(path, ns=(at, at))
    manager.answers["show"] = shown(NeedDaemonReload="yes")
    manager.enable(["server-0"])
    enabled = ["systemctl enable --quiet --no-reload -- inference-fleet-server-0.service"]
    assert acts(manager) == enabled + ["systemctl daemon-reload"] * reload
