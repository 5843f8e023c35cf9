# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""etcd's answers, from a scripted gateway, and what a member's node lacks."""

from __future__ import annotations

import base64
import http.server
import json
import os
import threading
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations.services import ETCD_MEMBER
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import etcd_member, units
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services.etcd_api import Members


@pytest.fixture
def gateway():
    """Serves answers, a mapping of paths to JSON or to (status, text); `asked` is what came."""
    answers, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.path, json.loads(body or b"null")))
            answer = answers.get(self.path, {})
            answer = answer(asked[-1][1]) if callable(answer) else answer
            status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.answers, server.asked = answers, asked
    server.url = "http://127.0.0.1:%d" % server.server_address[1]
    yield server
    server.shutdown()
    server.server_close()


def keeping(store):
    """Answers that keep what is put."""

    def put(body):
        store[body["key"]] = body["value"]
        return {}

    return {
        "/v3/kv/put": put,
        "/v3/kv/range": lambda body: {"kvs": [{"value": store[body["key"]]}]},
        "/v3/kv/deleterange": lambda body: store.pop(body["key"]) and {},
    }


def test_a_key_is_written_read_and_deleted(gateway):
    store = {}
    gateway.answers.update(keeping(store))
    assert Members().write_and_read(gateway.url, "a") == ""
    assert base64.b64decode(gateway.asked[0][1]["key"]) == b"/inference-fleet/ready/a"
    assert (store, len(gateway.asked)) == ({}, 3)


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("/v3/kv/put", (503, "etcdserver: request timed out"), "HTTP 503: etcdserver: request timed out"),
        ("/v3/kv/range", {"kvs": [{"value": "b3RoZXI="}]}, "a key was read back with another value"),
        ("/v3/kv/range", {}, "a key was read back with another value"),
    ],
)
def test_what_is_wrong_with_a_write_is_told(gateway, path, answer, words):
    gateway.answers.update({**keeping({}), path: answer})
    assert Members().write_and_read(gateway.url, "a") == words


def test_health_and_members(gateway):
    members = Members()
    assert not members.healthy(gateway.url)
    gateway.answers["/health"] = {"health": "true"}
    assert members.healthy(gateway.url)
    gateway.answers["/health"] = (503, '{"health": "false"}')
    assert not members.healthy(gateway.url)
    gateway.answers["/v3/cluster/member/list"] = {"members": [{"ID": "1", "peerURLs": ["x"]}]}
    assert members.list(gateway.url) == [{"ID": "1", "name": "", "peerURLs": ["x"], "clientURLs": []}]
    gateway.answers["/v3/cluster/member/list"] = (500, "")
    assert members.list(gateway.url) is None


def test_a_process_older_than_its_files_is_stale(tmp_path):
    path = tmp_path / "x.env"
    path.write_text("")
    now = {"MainPID": "7", "ExecMainStartTimestampMonotonic": str(int(time.monotonic() * 1e6))}
    os.utime(path, (time.time() - 60, time.time() - 60))
    assert not units.is_stale(now, [str(path), str(tmp_path / "none")])
    os.utime(path, (time.time() + 60, time.time() + 60))
    assert units.is_stale(now, [str(path)])
    assert not units.is_stale({**now, "MainPID": "0"}, [str(path)])
    assert units.is_stale({**now, "NeedDaemonReload": "yes"}, [])


@pytest.mark.parametrize(("state", "more"), [("failed", [("reset-failed", "x.service")]), ("inactive", [])])
def test_a_unit_that_fails_at_its_stop_is_no_enabled_one(monkeypatch, state, more):
    """systemd keeps what it knows of a failed unit, that it is enabled too."""
    calls = []
    monkeypatch.setattr(units, "systemctl", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(units, "shown", lambda unit: {"ActiveState": state})
    units.stop("x.service")
    assert calls == [("stop", "x.service"), ("disable", "--no-reload", "x.service"), *more]


def test_a_restart_is_over_when_the_old_process_has_ended(monkeypatch):
    """It answers while it is being stopped, the longer in a container."""
    calls, pids = [], ["7", "7", "7", "0", "8"]
    monkeypatch.setattr(units, "POLL_S", 0)
    monkeypatch.setattr(units, "systemctl", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(units, "shown", lambda unit: {"MainPID": pids.pop(0)})
    units.start("x.service", restart=True)
    assert (pids, calls[-1]) == (["8"], ("restart", "--no-block", "x.service"))
    units.start("x.service")
    assert (pids, calls[-1]) == ([], ("start", "--no-block", "x.service"))


@pytest.fixture
def member(tmp_path, monkeypatch):
    """Makes a Member of the cluster a, b, c, whose unit does not run."""
    monkeypatch.setattr(units, "shown", lambda unit: {"MainPID": "0"})
    monkeypatch.setattr(units, "port_holder", lambda address, port: None)

    def make(**changed):
        params = {name: option.get("default") for name, option in ETCD_MEMBER.items()}
        params.update(
            name="a", state="looked", data_dir=str(tmp_path / "data"), initial=str(tmp_path / "initial.env"),
            members=[{"name": name, "address": "127.0.0.%d" % (index + 2)} for index, name in enumerate("abc")],
            files={str(tmp_path / "etcd.env"): "X=1\n"},
        )  # fmt: skip
        return {**params, **changed}

    make.initial = tmp_path / "initial.env"
    return make


def test_a_bare_node_says_what_it_lacks_and_its_diff(member):
    found = etcd_member.run(member(), True)
    assert sorted(found["due"]) == ["files", "unit"]
    assert (found["changed"], found["data"], found["authority"]) == (True, False, False)
    assert [one["after"] for one in found["diff"]] == ["X=1\n"]
    assert not etcd_member.run(member(), False)["changed"]


def test_a_port_that_is_held_is_refused(member, monkeypatch):
    monkeypatch.setattr(units, "port_holder", lambda address, port: {"pid": 9, "user": "me"} if port == 2380 else None)
    with pytest.raises(FleetError) as caught:
        etcd_member.run(member(), False)
    assert (caught.value.code, caught.value.values) == ("service.port-held", ("etcd", 2380, "127.0.0.2", 9, "me"))


def test_certificates_of_the_operator_are_not_made_anew(member, tmp_path):
    files = {key: str(tmp_path / key) for key in ("ca", "certificate", "key")}
    assert "certificates" in etcd_member.run(member(tls=files, names=["a"]), False)["due"]
    with pytest.raises(FleetError) as caught:
        etcd_member.run(member(tls=files, names=["a"], tls_given=True), False)
    assert caught.value.code == "tls.given-unusable"


def test_a_new_cluster_writes_what_it_begins_with(member, monkeypatch):
    monkeypatch.setattr(etcd_member.Member, "cluster", lambda self: (set(), None, None))
    assert etcd_member.run(member(state="joined", empty=["a", "b", "c"]), True)["action"] == "bootstrap"
    assert not member.initial.exists()
    assert etcd_member.run(member(state="joined", empty=["a", "b", "c"]), False)["changed"]
    assert member.initial.read_text().splitlines() == [
        "ETCD_INITIAL_CLUSTER=a=http://127.0.0.2:2380,b=http://127.0.0.3:2380,c=http://127.0.0.4:2380",
        "ETCD_INITIAL_CLUSTER_STATE=new",
        "ETCD_INITIAL_CLUSTER_TOKEN=inference-fleet",
    ]


def test_without_a_snapshot_no_member_is_removed(member, monkeypatch, tmp_path):
    """The dead one stays listed, and its place can be taken by the next run."""
    listed = [{"ID": "id-a", "name": "a", "peerURLs": ["http://127.0.0.2:2380"], "clientURLs": []}]
    monkeypatch.setattr(etcd_member.Member, "cluster", lambda self: (set(), listed, "http://127.0.0.3:2379"))
    removed = []
    monkeypatch.setattr(Members, "remove", lambda self, url, one: removed.append(one) or "")
    monkeypatch.setattr(Members, "add", lambda self, url, one: "")
    params = member(state="joined", etcdctl=["/bin/false"], backup_dir=str(tmp_path / "backup"))
    with pytest.raises(FleetError) as caught:
        etcd_member.run(params, False)
    assert (caught.value.code, removed, member.initial.exists()) == ("etcd.no-snapshot", [], False)
    program = tmp_path / "etcdctl"
    program.write_text('#!/bin/sh\nfor last; do :; done\necho snapshot > "$last"\n')
    program.chmod(0o755)
    done = etcd_member.run({**params, "etcdctl": ["/usr/bin/env", "A=b", str(program)]}, False)
    assert (done["action"], removed) == ("replace", ["id-a"])
    assert os.path.isfile(done["snapshot"])
    assert "STATE=existing" in member.initial.read_text()
