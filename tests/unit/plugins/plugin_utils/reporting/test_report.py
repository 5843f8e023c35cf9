# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import page, report, runs
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry

THEN = "2026-01-01T00:00:00Z"
NOW = "2026-01-02T00:00:00Z"


def probe(name, ok=True, ms=5, **more):
    return {"name": name, "ok": ok, "ms": ms, "sent": "POST /", "got": "HTTP 200 {}", "cause": None, **more}


def verdict(server="server-0", ok=True, probes=None, port=8000, **more):
    return {
        "schema": 1, "host": "node-1", "server": server, "ok": ok, "mode": "full", "at": NOW,
        "model_id": "gpt-oss-120b", "url": "http://127.0.0.1:%d" % port, "hash": "hash of " + server,
        "probes": [probe("chat", ok)] if probes is None else probes, **more,
    }  # fmt: skip


def entry(name="server-0", role="server", port=8000):
    return {"name": name, "role": role, "port": port, "hash": "hash of " + name}


# -- auto --------------------------------------------------------------------------------------------------------------


def write_reports(folder, host, mode, verdicts, inventory_hosts, what=None, problem=None):
    return report.write_all(folder, {host: (mode, verdicts, what, problem)}, inventory_hosts)[host]


GOOD = report.host_report("node-1", "full", [verdict()], THEN)
BAD = report.host_report("node-1", "full", [verdict(ok=False)], THEN)
QUICK = report.host_report("node-1", "quick", [verdict(mode="quick")], NOW, GOOD)


@pytest.mark.parametrize(
    ("changed", "servers", "previous", "expected"),
    [
        (False, [entry()], GOOD, "quick"),
        (False, [entry()], QUICK, "quick"),
        (False, [entry()], report.host_report("node-1", "quick", [verdict(mode="quick")], NOW, QUICK), "quick"),
        (False, [entry(), entry("decode-0", "decode", 8001)], GOOD, "quick"),
        (True, [entry()], GOOD, "full"),
        (None, [entry()], GOOD, "full"),
        (False, [entry()], None, "full"),
        (False, [entry()], BAD, "full"),
        (False, [entry(), entry("server-1")], GOOD, "full"),
        (False, [dict(entry(), hash="other")], GOOD, "full"),
        # it passed in full once, never did in full, did not answer last time
        (False, [entry()], report.host_report("node-1", "quick", [verdict()], NOW, BAD), "full"),
        (False, [entry()], report.host_report("node-1", "quick", [verdict()], NOW), "full"),
        (False, [entry()], report.host_report("node-1", "quick", [verdict(ok=False)], NOW, GOOD), "full"),
        # another problem
        (False, [entry()], report.host_report("node-1", "full", [verdict()], NOW, None, None, "not ready"), "full"),
    ],
)
def test_a_server_that_never_passed_in_full_is_not_asked_quickly(changed, servers, previous, expected):
    assert report.settle_auto(changed, servers, previous) == expected


# -- the fleet ---------------------------------------------------------------------------------------------------------


def test_the_fleets_file_has_the_evidence_of_failing_probes():
    probes = [probe("chat"), probe("effort", False), probe("census", None)]
    first = report.host_report("node-1", "full", [verdict(probes=probes)], NOW)
    quick = report.host_report("node-1", "quick", [verdict(probes=probes, mode="quick")], NOW, first)
    one = report.merge(None, quick, ["node-1"], NOW)["hosts"]["node-1"]
    for part in (one, one["last_full"]):
        found = {each["name"]: each["got"] for each in part["verdicts"][0]["probes"]}
        assert found == {"chat": None, "effort": probe("effort")["got"], "census": None}
    assert quick["verdicts"][0]["probes"][0]["got"] == probe("chat")["got"]


def test_what_was_deployed():
    entries = [
        plan_entry(8000, devices=[0, 1, 2, 3], command=["/v/bin/vllm", "serve"]),
        plan_entry(None, "decode-0", role="decode", container={"image": "engine:1.2", "digest": "sha256:ab"}),
    ]
    model = {"id": "gpt-oss-120b", "repo": None, "revision": None, "format": None, "source": None}
    nothing = dict.fromkeys(("recipe", "description", "guide", "simulated", "memory_gib"))
    assert report.deployed(entries) == {
        **nothing, "platform": "cpu", "engine": "vllm", "software": ["engine:1.2@sha256:ab"], "model": model,
        "servers": [
            {"bind": "127.0.0.1", "launcher": "process", "devices": devices,
             **{key: entry[key] for key in ("name", "role", "port", "hash")}}
            for entry, devices in zip(entries, ("0-3", "0"))
        ],
    }  # fmt: skip
    assert report.deployed([], "not a recipe", "all")["simulated"] == "all"


# -- runs --------------------------------------------------------------------------------------------------------------

FIRST = {"id": "1" * 12, "began": THEN}
SECOND = {"id": "2" * 12, "began": NOW}
PLANNED = {**{name: {"recipe": "r", "servers": []} for name in ("node-1", "node-2")}, "node-3": None}


def state(fleet):
    return {name: "missing" if value.get("missing") else value["ok"] for name, value in fleet["hosts"].items()}


def test_a_host_is_without_a_verdict_until_it_has_one_of_this_run():
    fleet = report.begin(None, FIRST, ["node-1", "node-2"], PLANNED, THEN)
    assert fleet["run"] == {**FIRST, "hosts": ["node-1", "node-2"]}
    assert (fleet["ok"], state(fleet)) == (None, dict.fromkeys(PLANNED, "missing"))
    assert fleet["hosts"]["node-1"]["missing"] == {
        "cause": report.MISSED, "run": FIRST["id"], "began": THEN, "last": None,
    }  # fmt: skip
    assert fleet["hosts"]["node-1"]["deployed"] == PLANNED["node-1"]
    assert fleet["hosts"]["node-3"]["missing"] == {"cause": report.NEVER, "run": None, "began": None, "last": None}
    for name in PLANNED:
        assert fleet["ok"] is None
        fleet = report.merge(fleet, report.host_report(name, "full", [verdict()], NOW), list(PLANNED), NOW)
    assert (fleet["ok"], state(fleet)) == (True, dict.fromkeys(PLANNED, True))

    again = report.begin(fleet, SECOND, ["node-2"], PLANNED, NOW)
    assert (again["ok"], state(again)) == (None, {"node-1": True, "node-2": "missing", "node-3": True})
    last = {"ok": True, "generated": NOW, "mode": "full"}
    assert again["hosts"]["node-2"]["missing"]["last"] == last
    # and not even the next run comes to it
    again = report.begin(again, FIRST, list(PLANNED), PLANNED, NOW)
    assert again["hosts"]["node-2"]["missing"]["last"] == last


class Runs:
    """Runs that begin and write verdicts in a folder."""

    def __init__(self, folder):
        self.folder, self.planned = str(folder), 0

    def begin(self, run, hosts, going=None):
        def planned():
            self.planned += 1
            return PLANNED

        return report.begin_run(self.folder, run, hosts, hosts if going is None else going, planned)

    def write(self, host, ok=True, **more):
        write_reports(self.folder, host, "full", [verdict(ok=ok)], list(PLANNED), **more)

    @property
    def fleet(self):
        return read(os.path.join(self.folder, "verdict.json"))

    def states(self):
        return list(state(self.fleet).values())


def test_the_same_run_goes_on(tmp_path):
    runs, hosts = Runs(tmp_path / "new"), list(PLANNED)
    run = runs.begin("a", hosts)
    assert (run["id"], run["hosts"]) == ("a", hosts)
    # The verdict of what failed while it was served stays; what goes on is asked, perhaps once more.
    runs.write("node-1", ok=False)
    written = os.stat(os.path.join(runs.folder, "verdict.json")).st_mtime_ns
    assert runs.begin("a", hosts, ["node-2", "node-3"]) == run
    assert os.stat(os.path.join(runs.folder, "verdict.json")).st_mtime_ns == written
    assert (runs.planned, runs.states()) == (1, [False, "missing", "missing"])
    runs.write("node-2")
    assert runs.begin("a", hosts, ["node-2"]) == run
    assert runs.states() == [False, "missing", "missing"]
    assert runs.begin("b", hosts)["id"] == "b"
    assert runs.states() == ["missing"] * 3


@pytest.mark.parametrize("other", [[], {"hosts": {"node-1": 5}, "run": {}}, {"verdicts": [{}], "mode": "full"}])
def test_reports_of_another_form_are_replaced(tmp_path, other):
    runs = Runs(tmp_path)
    (tmp_path / "hosts").mkdir()
    for path in (tmp_path / "verdict.json", tmp_path / "hosts" / "node-1.json"):
        path.write_text(json.dumps(other))
    report.void_verdicts(runs.folder, "node-1", {"server-0": "restarted"})
    runs.begin("a", list(PLANNED))
    write_reports(runs.folder, "node-1", "quick", [verdict(mode="quick")], list(PLANNED))
    assert runs.states() == [True, "missing", "missing"]


def test_two_runs_at_once_keep_their_verdicts(tmp_path):
    """Each for hosts of its own, and the one begins while the other serves."""
    runs, mine = Runs(tmp_path), ["node-1", "node-2"]
    first = runs.begin("a", mine)
    runs.write("node-1", ok=False, problem="not ready")
    assert runs.begin("b", ["node-3"])["id"] == "b"
    again = runs.begin("a", mine, ["node-2"])
    assert (again["id"], again["began"]) == ("a", first["began"])
    assert runs.states() == [False, "missing", "missing"]
    runs.write("node-3")
    runs.write("node-2")
    assert (runs.states(), runs.fleet["hosts"]["node-1"]["problem"]) == ([False, True, True], "not ready")


# -- files -------------------------------------------------------------------------------------------------------------


def read(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def test_the_page_is_of_the_fleets_file_that_is_there(tmp_path, monkeypatch):
    folder = str(tmp_path)
    write_reports(folder, "node-1", "full", [verdict()], ["node-1"], report.deployed([plan_entry(8000)]))
    text = (tmp_path / "verdict.html").read_text()
    assert "1 of 1 server verified" in text
    digest = hashlib.sha256((tmp_path / "verdict.json").read_bytes()).hexdigest()
    assert text.endswith("</html>\n<!-- of verdict.json, sha256 %s -->\n" % digest)

    rendered = []
    monkeypatch.setattr(page, "render", lambda value: rendered.append(value) or "page\n")
    report.write_page(folder)
    assert rendered == []  # it is of that file already
    write_reports(folder, "node-1", "full", [verdict(ok=False)], ["node-1"])
    assert [value["ok"] for value in rendered] == [False]
    (tmp_path / "verdict.html").unlink()
    report.write_page(folder)
    assert len(rendered) == 2


def test_half_a_character_from_a_server_is_written_and_read(tmp_path):
    half = "name \ud83d"
    written = write_reports(
        str(tmp_path), "node-1", "full", [verdict(ok=False, probes=[probe("chat", False, got=half)])], []
    )
    assert read(tmp_path / "hosts" / "node-1.json") == written
    short = read(tmp_path / "verdict.json")["hosts"]["node-1"]
    assert short["verdicts"][0]["probes"][0]["got"] == half
    assert "name ⟨U+D83D⟩" in (tmp_path / "verdict.html").read_text()


@pytest.mark.parametrize("name", ["../../evil", "a/b", "fd00::1", "node 1", "[::1]", ".."])
def test_any_host_name_is_one_file_in_the_folder(tmp_path, name):
    path = report.host_path(str(tmp_path), name)
    assert os.path.dirname(os.path.abspath(path)) == str(tmp_path / "hosts")


def _write(folder, number, hosts):
    write_reports(folder, "node-%d" % number, "full", [verdict()] * 8, hosts)


def test_hosts_that_report_at_once_lose_nothing(tmp_path):
    hosts = ["node-%d" % number for number in range(24)]
    context = multiprocessing.get_context("fork")  # as Ansible's own workers are
    workers = [context.Process(target=_write, args=(str(tmp_path), number, hosts)) for number in range(24)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 24
    assert sorted(read(tmp_path / "verdict.json")["hosts"]) == sorted(hosts)
    assert "192 of 192 servers verified" in (tmp_path / "verdict.html").read_text()


# -- for people --------------------------------------------------------------------------------------------------------


def test_the_table():
    verdicts = [
        verdict(probes=[probe("alive", ms=2), probe("warm-up", ms=812)]),
        verdict("server-1", False, probes=[probe("alive"), probe("chat", False), probe("effort", None)], port=8001),
        verdict("server-2", None, probes=[probe("alive", None, cause="not verified (check)")], port=8002),
        verdict("server-3", probes=[probe("alive", ms=1), *(probe(name, None) for name in "abcde")], port=8003),
    ]
    assert report.table("node-1", verdicts) == {
        "title": "Verdicts",
        "columns": ["host", "server", "port", "verdict", "probes", "details"],
        "key": 2,
        "rows": [
            ["node-1", "server-0", 8000, "ok", "2/2", "slowest: warm-up 812 ms"],
            ["node-1", "server-1", 8001, "FAILED", "1/2", "failed: chat; not measured: effort"],
            ["node-1", "server-2", 8002, "not verified", "0/0", "not verified (check)"],
            ["node-1", "server-3", 8003, "ok", "1/1", "slowest: alive 1 ms; not measured: a, b, c and 2 more"],
        ],
    }


def test_a_server_that_is_not_the_planned_one_is_told_with_who_answers(tmp_path):
    words = "nothing is deployed as server-0; the port 8000 is held by process 12 of eve (nc -l 8000)"
    failed = probe("identity", False, 3, sent=None, got=words, cause="not verified: " + words)
    skipped = probe("chat", None, 0, sent=None, got=None, cause="not run: identity failed")
    stranger = verdict(ok=False, probes=[failed, skipped], not_verified=words)
    written = write_reports(str(tmp_path), "node-1", "full", [stranger], ["node-1"])
    assert written["ok"] is False
    page = (tmp_path / "verdict.html").read_text(encoding="utf-8")
    assert "0 of 1 server verified" in page
    assert "<b>not verified: %s</b>" % words in page
    assert report.table("node-1", [stranger])["rows"] == [
        ["node-1", "server-0", 8000, "not verified", "0/0", "not verified: " + words]
    ]
    assert report.failure_message("node-1", [stranger]).endswith(
        "  identity failed after 3 ms\n    cause: not verified: %s" % words
    )


HOSTS = ["node-1", "node-2"]
VERSIONS = {"collection": "1.2.3", "inventory": "abc"}


def record(number=1, **more):
    """A record as it is on disk, of the minute `number`."""
    began = "2026-01-02T03:%02d:04Z" % number
    hosts = {"node-1": {"ok": True, "mode": "full", "servers": {"server-0": {"ok": True, "url": "x", "failed": {}}}}}
    return {
        "schema": 1, "ok": True, "generated": began,
        "run": {"id": "%012x" % number, "began": began, "hosts": ["node-1"]},
        "hosts": hosts, "versions": {**VERSIONS, "software": ["a==1"]}, **more,
    }  # fmt: skip


def test_a_run_is_kept_from_its_begin_to_its_last_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "versions", lambda sources: {"collection": "1.2.3", "inventory": sources[0]})
    entries = [plan_entry(8000), plan_entry(None, "decode-0", role="decode")]
    what = report.deployed(entries, {"venv": {"packages": ["a==1"]}})
    run = report.begin_run(str(tmp_path), "a" * 12, HOSTS, HOSTS, lambda: dict.fromkeys(HOSTS, what), ["abc"])
    (begun,), warnings = runs.history(str(tmp_path))
    assert (begun["run"], begun["ok"], warnings) == (run, None, [])
    assert begun["versions"] == {**VERSIONS, "software": ["a==1"]}
    assert [(one["servers"], one["problem"]) for one in begun["hosts"].values()] == [
        ({"server-0": {"ok": None}}, report.MISSED)
    ] * 2
    verified = {"node-1": ("full", [verdict()], what, None), "node-2": ("quick", [verdict(ok=False)], what, "late")}
    report.write_all(str(tmp_path), verified, HOSTS)
    report.void_verdicts(str(tmp_path), "node-1", {"server-0": "restarted"})  # the verdict of that run remains
    (kept,), _warnings = runs.history(str(tmp_path))
    assert (kept["ok"], kept["versions"]) == (False, begun["versions"])
    assert kept["hosts"]["node-1"]["servers"]["server-0"]["ok"] is True
    assert [kept["hosts"]["node-2"][key] for key in ("mode", "problem")] == ["quick", "late"]
    assert kept["hosts"]["node-2"]["servers"]["server-0"]["failed"] == {"chat": None}
    # the next run is only of the one host
    report.begin_run(str(tmp_path), "b" * 12, HOSTS[:1], HOSTS[:1], lambda: dict.fromkeys(HOSTS, what), ["def"])
    found, _warnings = runs.history(str(tmp_path))
    assert sorted((list(one["hosts"]), one["versions"]["inventory"]) for one in found) == [
        (["node-1"], "def"), (HOSTS, "abc")
    ]  # fmt: skip


def test_the_oldest_go_and_files_of_others_stay(tmp_path):
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "0-mine.json").write_text("{}")
    for number in range(runs.KEPT + 3):
        runs.keep(str(tmp_path), record(number))
    found, warnings = runs.history(str(tmp_path))
    assert [one["run"]["id"] for one in found] == ["%012x" % number for number in range(3, runs.KEPT + 3)]
    assert warnings == ["%s is not the record of a run. Remove the file." % (tmp_path / "history" / "0-mine.json")]
    assert len(os.listdir(tmp_path / "history")) == runs.KEPT + 1


@pytest.mark.parametrize("run", [{}, {"id": "../../e", "began": "2026-01-02T03:04:05Z"}, {"id": "a" * 12, "began": 1}])
def test_a_run_with_another_id_or_time_is_not_kept(tmp_path, run):
    runs.keep(str(tmp_path), record(run=run))
    assert os.listdir(tmp_path) == []


OTHER = [{"schema": 2}, {"run": {}}, {"hosts": {"node-1": {}}}, {"versions": None}]


@pytest.mark.parametrize("content", ["", "[]", "{", *(json.dumps({**record(), **other}) for other in OTHER)])
def test_other_content_is_left_out_with_its_name(tmp_path, content):
    runs.keep(str(tmp_path), record(1))
    path = tmp_path / "history" / "20260102T030404Z-000000000004.json"
    path.write_text(content)
    os.mkfifo(tmp_path / "history" / "20260102T030504Z-000000000005.json")
    found, warnings = runs.history(str(tmp_path))
    assert found == [record(1)]
    assert [str(path) in line for line in warnings] == [True, False]
    runs.keep(str(tmp_path), record(4, versions={"software": []}))
    assert runs.history(str(tmp_path))[0][1]["versions"] == {"collection": None, "inventory": None, "software": []}


def test_the_revision_of_the_inventory_is_that_of_its_repository(tmp_path):
    file = tmp_path / "hosts.yml"
    file.write_text("all:")
    assert runs.versions(["a,", str(file), str(tmp_path / "gone" / "x.yml")])["inventory"] is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "-am", "x", "v1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    assert runs.versions([str(tmp_path)]) == {"collection": runs.collection_version(), "inventory": head}
    file.write_text("all: {}")
    assert runs.versions(["a,b", str(file)])["inventory"] == head + "-dirty"
