# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of etcd and NATS against scripted HTTP servers and units; what a member of etcd does before it runs."""

from __future__ import annotations

import http.server
import json
import os
import threading
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.called import operation_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import (
    etcd_member,
    nats_server,
    service,
)
from ansible_collections.inference.fleet.tests.unit.engines import plans

etcd, nats = operation_of("etcd_member"), operation_of("nats_server")
CONTAINER = {"engine": "docker", "image": "r.example/etcd:1", "digest": None}
REMOVE, ADD = "/v3/cluster/member/remove", "/v3/cluster/member/add"


@pytest.fixture
def gateway():
    """Serves answers, {path: JSON, (status, string) or a function that returns one}. `asked` contains the requests."""
    answers, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.path, json.loads(body or b"null")))
            answer = answers.get(self.path, (404, "not found"))
            answer = answer() if callable(answer) else answer
            status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    server.answers, server.asked, server.port = answers, asked, server.server_address[1]
    yield server
    server.shutdown()
    server.server_close()


class Unit(dict):
    """The properties of every unit. calls: the other calls of systemctl."""

    def __init__(self):
        began = str(int(time.monotonic() * 1e6))
        super().__init__(MainPID="0", UnitFileState="enabled", ExecMainStartTimestampMonotonic=began)
        self.calls = []

    def systemctl(self, *arguments):
        if arguments[0] == "show":
            return "".join("%s=%s\n" % item for item in self.items())
        self.calls.append(arguments[0])
        if arguments[0] in ("start", "restart"):
            self["MainPID"] = str(int(self["MainPID"]) + 1)
        return ""


@pytest.fixture(autouse=True)
def unit(monkeypatch):
    found = Unit()
    monkeypatch.setattr(service, "systemctl", found.systemctl)
    monkeypatch.setattr(service, "port_holder", lambda address, port: None)
    return found


def run(module, check_mode=False, names="a", **changed):
    params = {name: option.get("default") for name, option in module.arguments.items()}
    members = [{"name": name, "address": "127.0.0.%d" % (index + 1)} for index, name in enumerate(names)]
    return module.run({**params, "name": "a", "members": members, "state": "looked", **changed}, check_mode)


def refused(*arguments, **changed):
    return plans.error(run, *arguments, **changed)


def test_a_bare_node_reports_what_differs(tmp_path):
    conf, data = str(tmp_path / "etcd.env"), str(tmp_path / "data")
    found = run(etcd, True, names="abc", files={conf: "X=1\n"}, data_dir=data, programs=["/none/etcd"])
    assert sorted(found["due"]) == ["files", "programs", "unit"]
    assert (found["changed"], found["data"], found["authority"]) == (True, False, False)
    assert [one["after"] for one in found["diff"]] == ["X=1\n"]
    assert not run(etcd, files={conf: "X=1\n"}, data_dir=data)["changed"]


@pytest.mark.parametrize("names", ["ab", "aa", "aab"])
def test_members_that_cannot_form_a_cluster_are_an_error(names):
    assert refused(etcd, names=names).code == "service.members-invalid"


def test_a_port_that_another_process_holds_is_an_error(monkeypatch):
    held = {port: {"pid": 9, "user": "me"} for port in (2380, 6222)}
    monkeypatch.setattr(service, "port_holder", lambda address, port: held.get(port))
    error = refused(etcd, names="abc")
    assert (error.code, error.values) == ("service.port-held", ("etcd", 2380, "127.0.0.1", 9, "me"))
    assert refused(nats, names="abc").values[1] == 6222
    assert "unit" in run(nats, names="a")["due"]  # a single server has no port for others


def test_the_image_must_be_on_the_node_and_its_engine_may_be_missing(monkeypatch):
    images = []
    monkeypatch.setattr(service, "ensure_image", lambda image, *_more, check_mode: {"changed": image not in images})
    assert run(etcd, container=CONTAINER)["due"]["programs"] == "the image r.example/etcd:1 is not on this node"
    images.append(CONTAINER["image"])
    assert "programs" not in run(nats, container=CONTAINER)["due"]
    monkeypatch.setattr(service.Engine, "program", lambda self: None)
    assert run(nats, container=CONTAINER)["engine_missing"]
    assert not run(nats)["engine_missing"]


def test_unusable_certificates_of_the_operator_are_an_error(tmp_path, unit):
    files = {key: str(tmp_path / key) for key in ("ca", "certificate", "key")}
    assert "certificates" in run(etcd, tls=files, names="a")["due"]
    unit["MainPID"] = "7"
    assert "certificates" in run(etcd, tls=files, names="a", version="3.6.14")["due"]
    unit["MainPID"] = "0"
    assert refused(etcd, tls=files, tls_given=True).code == "tls.given-unusable"


@pytest.mark.parametrize(("module", "running", "wanted", "fits"), [
    (etcd, "3.5.9", "3.6.14", True), (etcd, "3.6.1", "3.6.14", True), (etcd, "3.6.14", "v3.6.1", True),
    (etcd, "3.4.30", "3.6.14", False), (etcd, "3.6.14", "3.5.9", False), (etcd, "3.6.14", "4.0.0", False),
    (etcd, "3.4.30", "", True), (etcd, "3.4.30", "latest", True), (nats, "2.9.1", "2.11.17", True),
    (nats, "2.11.17", "2.10.0", False),
])  # fmt: skip
def test_a_release_that_cannot_replace_the_running_one_is_an_error(gateway, unit, module, running, wanted, fits):
    unit["MainPID"] = "7"
    gateway.answers.update({"/version": {"etcdserver": running}, "/varz": {"version": running}})
    given = {"version": wanted, "monitor_port" if module is nats else "client_port": gateway.port}
    if fits:
        run(module, **given)
    else:
        assert refused(module, **given).code == "service.version-jump"


def test_etcd_is_ready_with_a_quorum(gateway, unit):
    unit["MainPID"] = "7"
    for answer, ready in (({"health": "true"}, True), ((503, '{"health": "false"}'), False), ((404, ""), False)):
        gateway.answers["/health"] = answer
        assert ("ready" not in run(etcd, client_port=gateway.port)["due"]) is ready
    assert refused(etcd, state="ready", client_port=gateway.port, timeout_s=0).code == "service.not-ready"


def test_nats_is_ready_with_jetstream_and_routes(gateway, unit, monkeypatch, tmp_path):
    login = tmp_path / "login.conf"
    monkeypatch.setattr(nats_server, "LOGIN", str(login))
    login.write_text("")
    os.utime(login, (0, 0))
    unit["MainPID"] = "7"
    routes = {"routes": [{"remote_id": "x"}, {"remote_id": "x"}]}
    for path, answer, fault in (
        ("/varz", {}, "HTTP 404"),
        ("/healthz", {"status": "ok"}, "JetStream"),
        ("/jsz", {"disabled": True}, "JetStream"),
        ("/jsz", {}, "it is connected with 0 of 2 other servers"),
        ("/routez", routes, None),
    ):
        gateway.answers[path] = answer
        found = run(nats, names="abc", jetstream=True, monitor_port=gateway.port)["due"].get("ready")
        assert found is fault is None or found.startswith(fault)
    assert run(nats, login="other", monitor_port=gateway.port)["due"]["files"].endswith("login.conf differs")


@pytest.fixture
def healthy(monkeypatch, unit):
    """The last digits of the addresses of healthy members; the unit runs."""
    unit["MainPID"], found = "7", set()
    monkeypatch.setattr(
        etcd_member.Member, "health", lambda self, url: "" if url.rpartition(":")[0][-1] in found else "down"
    )
    return found


def test_a_process_older_than_its_files_is_restarted_if_the_others_keep_a_quorum(healthy, unit, tmp_path):
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    tls = {name: str(authority) for name in ("ca", "certificate", "key")}
    given = {"state": "restarted", "names": "abc", "tls": tls}
    os.utime(authority, (0, 0))
    assert not run(etcd, **given)["changed"]
    os.utime(authority, (time.time() + 60,) * 2)
    for one in ("1", "2"):  # of the two others
        healthy.add(one)
        assert refused(etcd, **given).code == "service.no-quorum"
    assert run(etcd, True, **given)["changed"]
    assert unit.calls == []
    healthy.add("3")
    unit["NeedDaemonReload"] = "yes"
    assert run(etcd, **given)["changed"]
    assert unit.calls == ["daemon-reload", "enable", "restart"]


def test_members_that_run_get_their_files_in_their_turns(healthy, unit, tmp_path):
    """A first member that does not start with them leaves the others as they were, also for a reboot."""
    conf = tmp_path / "etcd.env"
    conf.write_text("old")
    healthy.add("1")

    def turn(state):
        return run(etcd, state=state, names="abc", files={str(conf): "new"}, timeout_s=0)["changed"]

    assert (turn("started"), turn("ready")) == (False, False)
    assert plans.error(turn, "restarted").code == "service.no-quorum"
    assert (conf.read_text(), unit.calls) == ("old", [])
    healthy |= {"2", "3"}
    assert (turn("restarted"), conf.read_text(), unit.calls) == (True, "new", ["enable", "restart"])
    conf.write_text("old")
    healthy.clear()
    assert (turn("started"), conf.read_text()) == (True, "new")  # it is not ready, and may not become ready without


def test_a_member_starts_once(unit):
    assert [run(etcd, check, state="started")["changed"] for check in (True, False, False)] == [True, True, False]
    assert unit.calls == ["enable", "start"]


@pytest.mark.parametrize(("count", "others", "can"), [(1, 0, True), (5, 3, True), (5, 2, False)])
def test_a_restart_keeps_the_quorum(count, others, can):
    assert service.can_stop(count, others) is can


def join(initial, **more):
    """What etcd_member returns for a member of a, b and c without data."""
    return run(etcd, state="joined", names="abc", initial=str(initial), data_dir="/none", **more)


def test_a_new_cluster_writes_its_initial_configuration(tmp_path, monkeypatch):
    initial = tmp_path / "initial.env"
    monkeypatch.setattr(etcd_member.Member, "cluster", lambda self: (set(), None, None))
    assert join(initial, check_mode=True, empty=list("abc"))["action"] == "bootstrap"
    assert not initial.exists()
    assert join(initial, empty=list("abc"))["changed"]
    assert initial.read_text().splitlines() == [
        "ETCD_INITIAL_CLUSTER=a=http://127.0.0.1:2380,b=http://127.0.0.2:2380,c=http://127.0.0.3:2380",
        "ETCD_INITIAL_CLUSTER_STATE=new",
        "ETCD_INITIAL_CLUSTER_TOKEN=inference-fleet",
    ]


@pytest.fixture
def listed(gateway, monkeypatch):
    """The gateway answers as a healthy cluster of a, b and c: its list of members."""
    url = "http://127.0.0.1:%d" % gateway.port
    monkeypatch.setattr(etcd_member.Member, "client_url", lambda self, name: url)
    found = [{"ID": "id-" + name, "name": name, "peerURLs": ["http://%s:2380" % name]} for name in "abc"]
    gateway.answers.update({"/health": {"health": "true"}, "/v3/cluster/member/list": {"members": found}})
    return found


def test_a_dead_member_is_replaced(gateway, listed, tmp_path, monkeypatch):
    initial = tmp_path / "initial.env"
    monkeypatch.setattr(etcd_member, "SETTLE_S", 0.1)
    monkeypatch.setattr(etcd_member, "POLL_S", 0.01)
    gateway.answers[REMOVE] = (503, "etcdserver: unhealthy cluster")
    assert plans.error(join, initial).code == "etcd.member-change-failed"
    assert sum(path == REMOVE for path, _body in gateway.asked) > 1
    gateway.answers.update({REMOVE: {}, ADD: {}})
    assert join(initial)["action"] == "replace"
    assert gateway.asked[-2:] == [(REMOVE, {"ID": "id-a"}), (ADD, {"peerURLs": ["http://127.0.0.1:2380"]})]
    assert "STATE=existing" in initial.read_text()


def test_a_change_that_was_made_without_an_answer_is_not_made_again(gateway, listed, tmp_path, monkeypatch):
    def remove():
        del listed[0]
        return 503, "etcdserver: request timed out"

    monkeypatch.setattr(etcd_member, "POLL_S", 0.01)
    gateway.answers.update({REMOVE: remove, ADD: {}})
    join(tmp_path / "initial.env")
    assert [path for path, _body in gateway.asked if path in (REMOVE, ADD)] == [REMOVE, ADD]


def test_a_member_that_left_is_removed_once_by_a_member_with_data(gateway, listed, tmp_path):
    gateway.answers[REMOVE] = {}
    given = {"state": "removed", "names": "ab", "leaving": {"name": "c"}, "data_dir": str(tmp_path)}
    assert not run(etcd, **given)["changed"]
    assert gateway.asked == []
    (tmp_path / "member" / "snap").mkdir(parents=True)
    assert run(etcd, True, **given)["changed"]
    assert run(etcd, **given)["changed"]
    assert [one for one in gateway.asked if one[0] == REMOVE] == [(REMOVE, {"ID": "id-c"})]
    del listed[2]
    assert not run(etcd, **given)["changed"]


# ---- each state of a cluster has one way, or an error with the way out


PLANNED = {name: "https://%s:2380" % name for name in ("a", "b", "c")}
NO_QUORUM = "service.no-quorum"


def members_of(names, unstarted="", **urls):
    """The members of a cluster; those that have not started yet have no name."""
    return [
        {"ID": "id-" + name, "name": "" if name in unstarted else name, "peerURLs": [urls.get(name, PLANNED[name])]}
        for name in names
    ]


def up(names):
    return {one for name in names for one in (name, PLANNED[name])}


def decide(data=False, empty="", healthy="", members=None):
    return etcd_member.decide("a", PLANNED, data, set(empty), up(healthy), members)


@pytest.mark.parametrize(("found", "action", "removed"), [
    ({"data": True}, etcd_member.KEEP, None),
    ({"data": True, "healthy": "bc", "members": members_of("abc")}, etcd_member.KEEP, None),
    ({"empty": "a", "healthy": "bc", "members": members_of("abc", a="https://old:2380")}, etcd_member.REPLACE, "id-a"),
    # a run ended between the two steps of a replacement: nothing is removed again
    ({"empty": "a", "healthy": "bc", "members": members_of("abc", unstarted="a")}, etcd_member.JOIN, None),
    ({"empty": "a", "healthy": "bc", "members": members_of("bc")}, etcd_member.ADD, None),
])  # fmt: skip
def test_what_a_member_does(found, action, removed):
    decision = decide(**found)
    cluster = None if action == etcd_member.KEEP else PLANNED
    assert (decision.action, decision.remove, decision.cluster) == (action, removed, cluster)


@pytest.mark.parametrize(("found", "code", "words"), [
    ({"empty": "ab"}, NO_QUORUM, "'c' may have"),  # the two came back empty; the third may have data
    ({"data": True, "healthy": "bc", "members": members_of("bc")}, "etcd.removed-member", ""),
    ({"empty": "a", "healthy": "b", "members": members_of("abc")}, NO_QUORUM, "c is"),
    ({"empty": "a", "healthy": "b", "members": members_of("bc", unstarted="c")}, NO_QUORUM, "https://c:2380 is"),
])  # fmt: skip
def test_what_a_person_has_to_decide(found, code, words):
    caught = plans.error(decide, **found)
    assert (caught.code, caught.values[0]) == (code, "a")
    assert words in caught.values[-1]


@pytest.mark.parametrize(("url", "healthy", "members", "removed"), [
    (PLANNED["c"], "ab", members_of("abc"), "id-c"), (PLANNED["c"], "abc", members_of("abc"), "id-c"),
    (PLANNED["c"], "ab", members_of("abc", unstarted="c"), "id-c"),
    (None, "a", members_of("ab"), None),  # it has left
    (PLANNED["c"], "a", members_of("abc"), FleetError), (None, "", None, FleetError),
])  # fmt: skip
def test_a_member_leaves_if_the_others_keep_a_quorum(url, healthy, members, removed):
    given = ("c", url, up(healthy), members)
    if removed is not FleetError:
        assert etcd_member.decide_removal(*given) == removed
        return
    caught = plans.error(etcd_member.decide_removal, *given)
    assert (caught.code, caught.values[0]) == (NO_QUORUM, "c")
