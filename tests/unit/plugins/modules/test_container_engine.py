# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Setting a container engine up: what is merged, what is restarted, and what is left alone."""

from __future__ import annotations

import json
import os
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import (
    host_settings as container_setup,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import settings_text
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import EngineError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.images import ensure_image
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.merged_settings import merge
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.commands import hangs
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations import containers as operations
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.node_helpers import run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation
from hypothesis import given
from hypothesis import strategies as st

module = Operation("container_engine")

DAEMON, DROP_IN, PROXIES = settings_text.DAEMON_JSON, container_setup.DROP_IN, container_setup.PROXY_FILE
PROXY = {"HTTPS_PROXY": "http://user:pass\\word@proxy:3128", "NO_PROXY": "127.0.0.1"}
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OURS = {"id": "1", "name": "inference-fleet-server-0", "state": "running",
        "labels": {"inference.fleet.server": "server-0", "inference.fleet.root": "/"}}  # fmt: skip
FOREIGN = {"id": "2", "name": "database", "state": "running", "labels": {}}


class Node:
    """A node's file system and engine; systemctl is a script that writes down what it is told."""

    def __init__(self, folder, engine):
        self.root = folder / "sys"
        self.engine = engine
        self.log = folder / "systemctl"
        (self.root / "run/systemd/system").mkdir(parents=True)
        self.write("/etc/os-release", 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n')
        script = engine.bin / "systemctl"
        self.stale = folder / "stale"
        self.stale.write_text("NeedDaemonReload=no\n")
        self.broken = folder / "broken"
        script.write_text(
            '#!/bin/sh\nif [ "$1" = show ]; then read -r line < %s; echo "$line"; exit; fi\necho "$@" >> %s\n'
            'if [ -e %s ]; then echo no >&2; exit 1; fi\n' % (self.stale, self.log, self.broken)
        )  # fmt: skip
        script.chmod(0o755)
        self.started(1)

    def write(self, path, text):
        place = self.root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, path):
        place = self.root / path[1:]
        return place.read_text() if place.exists() else None

    def started(self, pid):
        """Docker is this process now, one of this machine's."""
        self.write("/run/docker.pid", "%d\n" % pid)

    def told(self):
        """What systemctl was told since the last time."""
        lines = self.systemctl
        if lines:
            self.log.unlink()
        return lines

    @property
    def systemctl(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def ensure(self, check_mode=False, **arguments):
        return container_setup.ensure(check_mode=check_mode, sysroot=str(self.root), **arguments)

    def four_steps(self, **arguments):
        """Check, apply, check, apply; the last two change nothing and tell systemd nothing."""
        check = self.ensure(check_mode=True, **arguments)
        assert not self.systemctl
        applied = self.ensure(**arguments)
        assert check == applied and applied["changed"]
        told = self.systemctl
        for check_mode in (True, False):
            assert self.ensure(check_mode=check_mode, **arguments) == {
                "changed": False, "engine": applied["engine"], "missing": [], "actions": [],
                "pending": applied["pending"], "diff": {"before": "", "after": ""},
            }  # fmt: skip
        assert self.systemctl == told
        return applied

    def refused(self, **arguments):
        before = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        with pytest.raises(FleetError) as caught:
            self.ensure(**arguments)
        assert {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()} == before
        assert not self.systemctl
        return caught.value.message


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, ScriptedEngine(tmp_path, monkeypatch))


def test_what_runs_as_wanted_is_left_alone(node):
    assert not node.ensure()["changed"]
    assert not node.ensure(ca_bundle="", registries=["a.example"])["changed"]
    assert node.read(DAEMON) is None


def test_settings_are_merged_and_docker_is_told_without_a_restart(node):
    node.write(DAEMON, '{"log-driver": "journald", "registry-mirrors": ["https://old.example"], "runtimes": {"a": {}}}')
    node.engine.write(containers=[FOREIGN])
    result = node.four_steps(
        settings={"live-restore": True, "runtimes": {"nvidia": {"path": "x"}}}, registry_mirrors=["https://new.example"],
        insecure_registries=["10.0.0.1:5000"],
    )  # fmt: skip
    assert json.loads(node.read(DAEMON)) == {
        "log-driver": "journald",
        "registry-mirrors": ["https://old.example", "https://new.example"],
        "runtimes": {"a": {}, "nvidia": {"path": "x"}},
        "live-restore": True,
        "insecure-registries": ["10.0.0.1:5000"],
    }
    assert node.systemctl == ["reload docker.service"]
    assert result["actions"] == ["reload docker for insecure-registries, live-restore, registry-mirrors, runtimes"]


def test_a_setting_that_needs_a_restart(node):
    result = node.four_steps(settings={"log-driver": "journald"})
    assert node.systemctl == ["restart docker.service"]
    assert (result["actions"], result["pending"]) == (["restart docker for log-driver"], [])
    assert not node.ensure(state="effective")["changed"]


def test_servers_that_run_are_restarted_in_their_turn(node):
    """All nodes are prepared at once; docker, and the servers in it, are restarted by the step that has a serial."""
    node.engine.write(containers=[OURS], live_restore=True)
    settings = {"log-driver": "journald", "debug": True}
    result = node.four_steps(settings=settings, proxy_env=PROXY)
    assert result["actions"] == [
        "not restarted for log-driver, proxies before the step serve, as servers of the fleet run in docker",
        "reload docker for debug",
    ]
    assert result["pending"] == ["log-driver", "proxies"]
    assert node.told() == ["reload docker.service"]  # and systemd reads no unit while they run
    assert not node.ensure(state="effective", restart="never")["changed"]
    result = node.four_steps(state="effective")
    assert result["actions"] == ["restart docker for log-driver, proxies"]
    assert result["diff"] == {"before": "docker: was not started since log-driver, proxies was set\n",
                              "after": "docker: restarted\n"}  # fmt: skip
    assert node.told() == ["daemon-reload", "restart docker.service"]
    assert not node.ensure(settings=settings, proxy_env=PROXY)["changed"]
    node.four_steps(restart="always")
    assert node.told() == ["daemon-reload", "restart docker.service"]
    assert node.read(RECORD) is None


def test_what_waits_is_not_applied_where_that_would_end_others(node):
    node.engine.write(containers=[OURS])
    node.ensure(settings={"log-driver": "journald"})
    node.engine.write(containers=[OURS, FOREIGN])
    message = (
        "Docker has to be restarted for log-driver, which would end containers that are not the fleet's: database. "
        "Nothing was changed. Stop them, set live-restore in container_engine_settings (a first run with nothing else "
        "applies it without a restart), or set container_engine_restart to always."
    )
    assert node.refused(state="effective") == message
    assert node.refused(settings={"log-driver": "journald"}) == message
    node.engine.write(errors={"*": "down"})  # its servers' start says so
    assert not node.ensure(state="effective")["changed"]


def test_a_restart_that_was_left_out_is_made_up_for(node):
    node.engine.write(containers=[FOREIGN])
    wanted = {"settings": {"log-driver": "journald"}, "proxy_env": PROXY}
    result = node.ensure(restart="never", **wanted)
    assert result["actions"] == [
        "not restarted: log-driver, proxies from docker's next start on that follows a systemctl daemon-reload"
    ]
    again = node.ensure(restart="never", **wanted)
    assert (again["changed"], again["actions"], again["pending"]) == (False, [], ["log-driver", "proxies"])
    assert node.told() == []
    node.four_steps(restart="always", **wanted)
    assert node.told() == ["daemon-reload", "restart docker.service"]


def test_without_containers_systemd_reads_the_unit_though_docker_is_not_restarted(node):
    result = node.four_steps(restart="never", proxy_env=PROXY)
    assert result["actions"] == ["not restarted: proxies from docker's next start on"]
    assert node.told() == ["daemon-reload"]
    assert node.ensure(proxy_env=PROXY)["actions"] == ["restart docker for proxies"]
    assert node.told() == ["restart docker.service"]


def test_a_pull_that_fails_meanwhile_says_what_docker_goes_without(node, tmp_path):
    root = str(tmp_path / "root")
    waits = (
        " Docker goes without proxies until it is restarted, which ends the servers that run in it. Run this step with "
        "-e container_engine_restart=always, on a few nodes at a time (--limit)."
    )
    node.engine.write(containers=[OURS])
    container_setup.ensure(proxy_env=PROXY, root=root, sysroot=str(node.root))
    assert container_setup.pending_words("docker", root) == ""  # the record is below the sysroot
    for below, address, words in (
        (str(node.root) + root, None, waits),
        (root, None, ""),
        (str(node.root) + root, "unix:///x", ""),
    ):
        with pytest.raises(FleetError) as caught:
            ensure_image("nvcr.io/team/app:1", engine="docker", address=address, root=below)
        assert caught.value.message.startswith("nvcr.io/team/app:1 cannot be pulled: ")
        assert caught.value.message.endswith(waits) == bool(words)


@pytest.mark.parametrize("stale", [False, True])
def test_who_starts_docker_has_applied_it(node, stale):
    node.engine.write(containers=[FOREIGN])
    wanted = {"settings": {"log-driver": "journald"}, "proxy_env": PROXY}
    node.ensure(restart="never", **wanted)
    node.started(os.getpid())
    node.stale.write_text("NeedDaemonReload=%s\n" % ("yes" if stale else "no"))
    pending = ["log-driver", "proxies"] if stale else []
    assert node.ensure(check_mode=True, restart="never", **wanted)["pending"] == pending
    result = node.ensure(restart="never", **wanted)
    assert (result["changed"], result["pending"]) == (False, pending)
    assert bool(json.loads(node.read(RECORD))["docker"]["pending"]) == stale
    node.engine.write(containers=[])
    node.stale.write_text("NeedDaemonReload=no\n")  # too late: docker was started from the old unit
    assert node.ensure(**wanted)["changed"] == stale


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        ({"settings": {"log-driver": "journald"}}, "restart docker.service"),
        ({"settings": {"debug": True}}, "reload docker.service"),
        ({"proxy_env": PROXY}, "restart docker.service"),
    ],
)
def test_what_fails_once_is_done_by_the_next_run(node, wanted, command):
    node.broken.write_text("")
    with pytest.raises(FleetError) as caught:
        node.ensure(**wanted)
    assert caught.value.message == "'systemctl %s' failed: no" % node.systemctl[-1]
    node.broken.unlink()
    node.told()
    result = node.four_steps(**wanted)
    assert result["actions"] and node.told()[-1] == command


def test_what_an_interrupted_run_laid_is_applied_by_the_next_one(node, monkeypatch):
    node.four_steps(registry_mirrors=["https://one.example"])
    node.told()

    def die(*unused):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(container_setup, "_do", die)
        for wanted in ({}, {"settings": {"log-driver": "journald"}}):
            with pytest.raises(KeyboardInterrupt):
                node.ensure(**wanted)
    assert node.told() == []
    result = node.ensure(settings={"log-driver": "journald"})
    assert (result["actions"], node.told()) == (["restart docker for log-driver"], ["restart docker.service"])


def test_an_interrupted_reload_still_empties_what_docker_has_to_forget(node, monkeypatch):
    node.four_steps(registry_mirrors=["https://one.example"])
    node.broken.write_text("")
    with pytest.raises(FleetError):
        node.ensure()
    node.broken.unlink()
    emptied = []
    monkeypatch.setattr(container_setup, "_reload_without", lambda setup, gone, text: emptied.append(gone))
    assert node.ensure()["actions"] == ["reload docker for registry-mirrors"]
    assert emptied == [{"registry-mirrors": ["https://one.example"]}]
    assert node.read(RECORD) is None


@pytest.mark.parametrize(("kind", "pending"), [("down", []), ("docker version did not end", ["log-driver"])])
def test_what_a_docker_that_does_not_answer_is_without(node, monkeypatch, kind, pending):
    """One that is down takes all with its start; one that hangs goes on with what it had when it answers again."""
    wanted = {"settings": {"log-driver": "journald"}}
    answers = [EngineError("down" if kind == "down" else "timeout", kind), None]
    monkeypatch.setattr(container_setup.Setup, "answers", lambda setup: answers.pop(0) if answers else None)
    result = node.ensure(**wanted)
    assert (result["actions"], result["pending"]) == (["start docker"], pending)
    node.told()
    assert node.ensure(**wanted)["changed"] == bool(pending)
    assert node.told() == (["restart docker.service"] if pending else [])


def test_without_systemd_new_settings_are_for_a_person_to_apply(node):
    (node.root / "run/systemd/system").rmdir()
    wanted = {"settings": {"log-driver": "journald"}}
    message = (
        "docker has new settings, and this node has no systemd to restart it. Restart it as this node restarts its "
        "daemons."
    )
    for _turn in range(2):
        with pytest.raises(FleetError) as caught:
            node.ensure(**wanted)
        assert caught.value.message == message
    node.started(os.getpid())
    assert not node.ensure(**wanted)["changed"]


def test_the_diff_shows_what_changes_and_nothing_else(node):
    """Others keep their secrets in daemon.json, too."""
    theirs = {
        "proxies": {"http-proxy": "http://me:theirs1@proxy"},
        "log-opts": {"splunk-token": "theirs2", "tag": "old"},
        "registry-mirrors": ["http://me:theirs3@one.example"],
        "labels": ["a"],
    }
    node.write(DAEMON, json.dumps(theirs))
    wanted = {
        "proxies": {"https-proxy": "http://me:ours\\1@proxy"},
        "log-opts": {"splunk-token": "ours2", "tag": "new"},
        "registry-mirrors": ["https://two.example"],
        "runtimes": {"x": {"path": "/x", "token": "ours3"}, "y": [{"password": "ours4"}]},
    }
    diff = node.ensure(check_mode=True, settings=wanted)["diff"]
    assert diff == {
        "before": DAEMON + ':\n  log-opts.splunk-token: "********"\n  log-opts.tag: "old"\n'
        '  registry-mirrors: []\n',
        "after": DAEMON + ':\n  log-opts.splunk-token: "********"\n  log-opts.tag: "new"\n'
        '  proxies.https-proxy: "http://me:********@proxy"\n  registry-mirrors: ["https://two.example"]\n'
        '  runtimes: {"x": {"path": "/x", "token": "********"}, "y": [{"password": "********"}]}\n',
    }  # fmt: skip
    assert not [word for word in ("theirs", "ours") if word in str(diff)]
    assert node.ensure(check_mode=True)["diff"] == {"before": "", "after": ""}


def test_nobody_elses_containers_are_ended(node):
    node.engine.write(containers=[OURS, FOREIGN])
    assert node.refused(settings={"log-driver": "journald", "debug": True}) == (
        "Docker has to be restarted for log-driver, which would end containers that are not the fleet's: database. "
        "Nothing was changed. Stop them, set live-restore in container_engine_settings (a first run with nothing else "
        "applies it without a restart), or set container_engine_restart to always."
    )
    node.engine.write(live_restore=True)
    assert node.ensure(check_mode=True, settings={"log-driver": "journald"})["changed"]
    node.engine.write(live_restore=False)
    result = node.ensure(settings={"log-driver": "journald"}, restart="never")
    assert result["actions"] == ["not restarted: log-driver from docker's next start on"]
    assert node.systemctl == []
    assert node.ensure(settings={"exec-opts": ["a=b"]}, restart="always")["changed"]
    assert node.systemctl == ["restart docker.service"]


def test_proxies_are_in_no_unit(node):
    result = node.four_steps(proxy_env=PROXY)
    assert node.read(PROXIES) == 'HTTPS_PROXY="http://user:pass\\\\word@proxy:3128"\nNO_PROXY="127.0.0.1"\n'
    assert (node.root / PROXIES[1:]).stat().st_mode & 0o777 == 0o600
    assert node.read(DROP_IN) == (
        "# Written by inference.fleet; the next run overwrites it.\n[Service]\nEnvironmentFile=-%s\n" % PROXIES
    )
    assert "pass" not in str(result)
    assert node.systemctl == ["daemon-reload", "restart docker.service"]
    node.log.unlink()
    node.four_steps(proxy_env={"HTTPS_PROXY": "http://other"})
    assert node.systemctl == ["restart docker.service"]  # the unit is the same: no device is taken from any container
    node.log.unlink()
    node.four_steps(proxy_env={})
    assert (node.read(PROXIES), node.read(DROP_IN)) == (None, None)
    assert node.systemctl == ["daemon-reload", "restart docker.service"]


def test_certificates_need_no_restart(node, tmp_path):
    (tmp_path / "ca.pem").write_text(PEM)
    registries = ["b.example:5000", "a.example"]
    node.four_steps(ca_bundle=str(tmp_path / "ca.pem"), registries=registries)
    for name in registries:
        assert node.read("/etc/docker/certs.d/%s/inference-fleet.crt" % name) == PEM
    assert node.systemctl == []
    (tmp_path / "ca.pem").write_text("nothing")
    assert node.refused(ca_bundle=str(tmp_path / "ca.pem"), registries=registries) == (
        "fleet_ca_bundle is %s/ca.pem, which is no file with certificates (PEM) on this node." % tmp_path
    )


def test_features_are_there_from_a_start_on(node):
    """CDI is one of them: docker rereads them while it runs, and does nothing about it."""
    assert node.four_steps(settings={"features": {"cdi": True}})["actions"] == ["restart docker for features"]


def test_a_docker_that_has_cdi_by_itself_is_not_restarted_for_it(node):
    node.engine.write(info={"CDISpecDirs": ["/etc/cdi"]}, version="28.2.2", containers=[FOREIGN])
    assert node.four_steps(settings={"features": {"cdi": True}})["actions"] == []
    others = {"features": {"cdi": True, "containerd-snapshotter": True}}
    assert "end containers that are not the fleet's: database" in node.refused(settings=others)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_mirrors_of_docker_hub_have_certificates_too(node, tmp_path, engine):
    node.engine.add("podman")
    node.write("/usr/bin/catatonit", "")
    (tmp_path / "ca.pem").write_text(PEM)
    mirrors = ["https://mirror.example:5000/", "mirror.example", "http://plain.example"]
    node.four_steps(
        engine=engine, ca_bundle=str(tmp_path / "ca.pem"), registry_mirrors=mirrors, registries=["a.example"]
    )
    laid = (node.root / container_setup.CERTIFICATES[engine][1:]).iterdir()
    assert sorted(path.name for path in laid) == ["a.example", "mirror.example", "mirror.example:5000"]


def test_podman_has_files_and_no_daemon(tmp_path, monkeypatch):
    node = Node(tmp_path, ScriptedEngine(tmp_path, monkeypatch, kinds=["podman"]))
    node.write("/usr/libexec/podman/catatonit", "")
    (tmp_path / "ca.pem").write_text(PEM)
    node.four_steps(engine="podman", registry_mirrors=["http://m.example:5000/"], insecure_registries=["i.example"],
                    registries=["a.example"], ca_bundle=str(tmp_path / "ca.pem"), proxy_env=PROXY)  # fmt: skip
    assert node.read(container_setup.PODMAN_REGISTRIES) == (
        "# Written by inference.fleet; the next run overwrites it.\n"
        '[[registry]]\nprefix = "docker.io"\nlocation = "docker.io"\n'
        '[[registry.mirror]]\nlocation = "m.example:5000"\ninsecure = true\n'
        '[[registry]]\nlocation = "i.example"\ninsecure = true\n'
    )
    assert node.read("/etc/containers/certs.d/a.example/inference-fleet.crt") == PEM
    assert node.systemctl == []


def test_one_that_does_not_run_is_started(node):
    down = node.engine.bin / "systemctl"
    down.write_text('#!/bin/sh\necho "$@" >> %s\nsed -i s/down/up/ %s\n' % (node.log, node.engine.file))
    (node.engine.bin / "sed").symlink_to("/bin/sed")
    down.write_text(down.read_text().replace("sed -i s/down/up/", '/bin/sed -i \'s/"\\*": "down"//\''))
    node.engine.write(errors={"*": "down"})
    result = node.ensure()
    assert (result["actions"], node.systemctl) == (["start docker"], ["enable --now docker.service"])
    assert not node.ensure()["changed"]


def test_without_systemd_it_is_for_a_person_to_start(node):
    (node.root / "run/systemd/system").rmdir()
    node.engine.write(errors={"*": "down"})
    assert node.refused() == (
        "docker does not run, and this node has no systemd to start it. Start it as this node starts its daemons."
    )


def test_one_that_is_masked_is_not_started(node):
    node.engine.write(errors={"*": "down"})
    for unit, folder in (("docker.socket", "/run/systemd/system/"), ("docker.service", "/etc/systemd/system/")):
        link = node.root / folder[1:] / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/dev/null")
        for check_mode in (True, False):
            with pytest.raises(FleetError) as caught:
                node.ensure(check_mode=check_mode)
            assert (caught.value.code, caught.value.values) == ("containers.unit-masked", (unit, unit))
    assert node.systemctl == []
    node.engine.write(errors={})
    assert not node.ensure()["changed"]


def test_one_that_hangs_is_an_error_and_not_started(node, monkeypatch):
    """Whoever waits for a daemon that is up and does not answer waits in vain; one that is starting answers late."""
    monkeypatch.setattr(container_engine, "HANGS", {})
    (node.engine.bin / "docker").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    monkeypatch.setattr(container_engine.Engine.__init__, "__defaults__", ("docker", None, None, 0.5))
    node.stale.write_text("ActiveState=active\n")
    with pytest.raises(FleetError) as caught:
        node.ensure(check_mode=True)
    assert (caught.value.code, node.systemctl) == ("containers.engine-problem", [])
    assert "docker version did not end" in caught.value.message
    assert hangs(caught.value)
    began = time.monotonic()
    with pytest.raises(EngineError) as again:
        container_engine.Engine("docker", call_s=600).containers("")
    assert (again.value.kind, time.monotonic() < began + 60) == ("timeout", True)
    with pytest.raises(FleetError) as caught:
        container_setup.faults("docker", sysroot=str(node.root))
    assert hangs(caught.value)


FAULTS = [
    # what is the matter, whether prepare is in the run: (words of problems, words of warnings)
    ({}, True, [], []),
    ({"errors": {"*": "down"}}, True, [], ["docker does not run; the step prepare starts it"]),
    ({"errors": {"*": "down"}}, False, ["docker does not answer"], []),
    ({"errors": {"*": "permission"}}, True, ["may not use docker"], []),
    ({"errors": {"*": "down"}, "mask": True}, True, ["its unit docker.service is masked"], []),
    ({"mask": True}, True, [], ["docker.service is masked"]),
    ({"errors": {"*": "down"}, "daemon": "{"}, True, ["daemon.json is no valid JSON"], []),
    ({"daemon": "[]"}, True, ["daemon.json is no valid JSON"], []),
    ({"gone": True}, True, [], ["docker is not installed; the step prepare installs it"]),
    ({"gone": True}, False, ["There is no docker on this node"], []),
]


@pytest.mark.parametrize(("state", "prepares", "problems", "warnings"), FAULTS)
def test_what_is_the_matter_with_an_engine_before_anything_is_changed(
    node, monkeypatch, state, prepares, problems, warnings
):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node.engine.write(errors=state.get("errors", {}))
    if state.get("gone"):
        (node.engine.bin / "docker").unlink()
    if "daemon" in state:
        node.write(DAEMON, state["daemon"])
    if state.get("mask"):
        link = node.root / "etc/systemd/system/docker.service"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/dev/null")
    found = container_setup.faults("docker", prepares=prepares, sysroot=str(node.root))
    for words, messages in zip((problems, warnings), found):
        assert len(words) == len(messages)
        assert all(one in message for one, message in zip(words, messages))


@pytest.mark.parametrize(
    "info", [{"ServerErrors": ["Cannot connect to the Docker daemon at unix:///x."]}, {"ServerVersion": ""}]
)
def test_a_client_that_ends_well_though_no_daemon_answers(node, info):
    """`docker info` of a daemon that is down, which has no version and takes no CDI names: not one that is too old."""
    node.engine.write(info=info)
    with pytest.raises(EngineError) as caught:
        container_engine.Engine("docker").cdi()
    assert caught.value.kind == "down"


def test_a_start_that_fails_says_what_docker_said(node):
    node.engine.write(errors={"*": "down"})
    (node.engine.bin / "journalctl").write_text(
        "#!/bin/sh\necho 'Starting docker.service'\necho 'unable to configure the Docker daemon with file x: nope'\n"
        "echo 'docker.service: Failed with result x.'\necho 'Failed to start docker.service'\n"
    )
    (node.engine.bin / "journalctl").chmod(0o755)
    node.broken.touch()
    with pytest.raises(FleetError) as caught:
        node.ensure()
    assert caught.value.code == "containers.systemctl-failed"
    assert caught.value.values[2].endswith("unable to configure the Docker daemon with file x: nope")


@pytest.mark.parametrize(
    ("kinds", "engine", "program"),
    [([], "docker", "docker"), ([], "podman", "podman"), (["podman"], "podman", "catatonit")],
)
def test_what_is_not_installed(tmp_path, monkeypatch, kinds, engine, program):
    """`podman run --init` fails where a distribution installed podman alone."""
    node = Node(tmp_path, ScriptedEngine(tmp_path, monkeypatch, kinds=kinds))
    settings = {"engine": engine, "insecure_registries": ["i.example"]}
    result = node.ensure(allow_missing=True, **settings)
    assert (result["changed"], result["missing"]) == (False, [program])
    assert node.read(RECORD) is None
    with pytest.raises(FleetError) as caught:
        node.ensure(**settings)
    assert (caught.value.code, caught.value.values) == ("containers.program-missing", (program,))
    check = node.ensure(check_mode=True, **settings)  # the role would have installed it
    assert (check["changed"], check["missing"]) == (True, [])


@pytest.mark.parametrize("text", ["{", "[]", '"a"'])
def test_a_broken_file_is_not_overwritten(node, text):
    node.write(DAEMON, text)
    message = node.refused(settings={"debug": True})
    assert message.startswith("/etc/docker/daemon.json is no valid JSON (")
    assert message.endswith(
        "), so nothing is merged into it. Repair or remove it; docker itself does not start with it."
    )


def test_a_proxy_that_no_variable_can_hold(node):
    assert node.refused(proxy_env={"HTTPS_PROXY": "a\nb"}) == (
        "fleet_proxy_env: HTTPS_PROXY cannot be set: its name or value has a character that no variable has."
    )


def test_the_module_shows_no_proxy(node, capsys, monkeypatch):
    monkeypatch.setattr(operations, "ensure", node.ensure)
    result = run_module(capsys, module, proxy_env=PROXY)
    assert result["actions"] == ["restart docker for proxies"]
    assert "pass" not in str(result)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), max_leaves=10)  # fmt: skip
MAPPING = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


RECORD = "/var/lib/inference-fleet/container_engine.json"


@given(MAPPING, MAPPING)
def test_merging_takes_nothing_away_and_is_done_once(base, more):
    merged, notes = merge(base, more)
    assert merge(merged, more) == (merged, [])
    assert merge(merged, more, notes) == (merged, notes)
    assert set(merged) == set(base) | set(more)
    for key in set(base) - set(more):
        assert merged[key] == base[key]
    for key in set(base) & set(more):
        if isinstance(base[key], list) and isinstance(more[key], list):
            assert merged[key][: len(base[key])] == base[key]


@given(MAPPING, st.lists(MAPPING, max_size=4))
def test_whatever_was_laid_is_taken_back(base, turns):
    settings, notes = base, []
    for turn in turns:
        settings, notes = merge(settings, turn, notes)
        assert merge(settings, turn, notes) == (settings, notes)
    assert json.loads(json.dumps(notes)) == notes
    assert merge(settings, {}, notes) == (base, [])


def test_what_others_change_meanwhile_stays():
    base = {"debug": False, "labels": ["theirs"]}
    settings, notes = merge(base, {"debug": True, "labels": ["ours"], "runtimes": {"ours": {"path": "x"}}})
    settings["debug"] = "theirs"
    settings["labels"].append("theirs too")
    settings["runtimes"]["theirs"] = {}
    assert merge(settings, {}, notes)[0] == {
        "debug": "theirs",
        "labels": ["theirs", "theirs too"],
        "runtimes": {"theirs": {}},
    }


def test_what_leaves_the_inventory_leaves_the_node(node, tmp_path):
    before = '{"log-driver": "journald", "registry-mirrors": ["https://old.example"]}'
    node.write(DAEMON, before)
    (tmp_path / "ca.pem").write_text(PEM)
    node.engine.write(containers=[FOREIGN])
    both = ["https://one.example", "https://two.example"]
    node.four_steps(registry_mirrors=both, insecure_registries=["10.0.0.1:5000"], registries=["a.example", "b.example"],
                    ca_bundle=str(tmp_path / "ca.pem"))  # fmt: skip
    node.log.unlink()
    result = node.four_steps(registry_mirrors=both[1:], registries=["b.example"], ca_bundle=str(tmp_path / "ca.pem"))
    assert json.loads(node.read(DAEMON)) == {"log-driver": "journald",
                                             "registry-mirrors": ["https://old.example", both[1]]}  # fmt: skip
    assert result["actions"] == ["reload docker for insecure-registries, registry-mirrors"]
    assert set(node.systemctl) == {"reload docker.service"}
    certificates = "/etc/docker/certs.d/%s/inference-fleet.crt"
    assert (node.read(certificates % "a.example"), node.read(certificates % "b.example")) == (None, PEM)
    node.log.unlink()
    node.four_steps()
    assert json.loads(node.read(DAEMON)) == json.loads(before)
    assert not (node.root / "etc/docker/certs.d").exists()
    assert node.read(RECORD) is None


def test_a_list_that_is_gone_is_emptied_first_since_docker_does_not_read_what_is_missing(node):
    node.four_steps(registry_mirrors=["https://one.example"])
    copy = node.root / "seen"
    systemctl = node.engine.bin / "systemctl"
    systemctl.write_text(systemctl.read_text() + 'while read -r line; do echo "$line"; done < %s%s >> %s\n'
                         % (node.root, DAEMON, copy))  # fmt: skip
    assert node.ensure()["changed"]
    assert '"registry-mirrors": []' in copy.read_text()
    assert node.read(DAEMON) is None  # the file was the fleet's, as /etc/docker was
    assert not (node.root / "etc/docker").exists()


def test_a_setting_that_docker_takes_back_by_a_restart_only(node):
    node.four_steps(settings={"live-restore": True})
    node.engine.write(containers=[FOREIGN])
    assert node.ensure(restart="never")["actions"] == ["not restarted: live-restore from docker's next start on"]
    assert node.read(DAEMON) is None


def test_absent_leaves_nothing_of_it_and_starts_nothing(node, tmp_path):
    (tmp_path / "ca.pem").write_text(PEM)
    before = set(node.root.rglob("*"))
    node.four_steps(settings={"log-driver": "journald"}, registry_mirrors=["https://one.example"], proxy_env=PROXY,
                    registries=["a.example"], ca_bundle=str(tmp_path / "ca.pem"))  # fmt: skip
    node.log.unlink()
    node.engine.write(errors={"*": "down"}, containers=[FOREIGN])
    node.four_steps(state="absent", restart="never")
    kept = {node.root / "var", node.root / "var/lib", node.root / "var/lib/inference-fleet"}  # the record's own
    assert set(node.root.rglob("*")) - kept == before
    assert node.systemctl == []


def test_absent_without_a_restart_waits_for_nothing(node):
    node.engine.write(containers=[FOREIGN])
    node.ensure(settings={"log-driver": "journald"}, restart="always")
    result = node.ensure(state="absent", restart="never")
    assert result["actions"] == ["not restarted: log-driver from docker's next start on"]
    assert node.read(RECORD) is None


def test_absent_is_of_one_root(node):
    node.four_steps(root="/srv/a", registry_mirrors=["https://a.example"], proxy_env=PROXY)
    node.log.unlink()
    node.four_steps(root="/srv/b", registry_mirrors=["https://a.example", "https://b.example"], proxy_env=PROXY)
    assert not node.ensure(root="/srv/c", state="absent")["changed"]
    node.log.unlink()
    node.four_steps(root="/srv/b", state="absent", restart="never")
    assert json.loads(node.read(DAEMON)) == {"registry-mirrors": ["https://a.example"]}


def test_absent_reads_nothing_of_others(node):
    node.write(DAEMON, "no JSON at all")
    node.engine.write(errors={"*": "permission"})
    assert not node.ensure(state="absent")["changed"]
    assert node.engine.called("version") == []


def test_absent_where_there_is_no_engine(tmp_path, monkeypatch):
    node = Node(tmp_path, ScriptedEngine(tmp_path, monkeypatch, kinds=[]))
    for engine in ("docker", "podman"):
        assert not node.ensure(engine=engine, state="absent")["changed"]
    node.write(container_setup.PODMAN_REGISTRIES, "")
    node.four_steps(engine="podman", state="absent")
    assert node.read(container_setup.PODMAN_REGISTRIES) is None
