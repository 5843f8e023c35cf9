# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ssh and Ansible print about a host that cannot be reached, as a sentence."""

from __future__ import annotations

import io
import os

import pytest
from ansible.utils.context_objects import CLIArgs
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import screen
from ansible_collections.inference.fleet.tests.unit.node_helpers import terminal_screen


def waiting(*reasons, **keys):
    return [{"name": "server-%d" % number, "reason": one, **keys} for number, one in enumerate(reasons)]


COMPILING = "compiling since 10:32:05Z (180 s), health: no answer"
FOLLOWS = "waiting for server-0 since 10:32"
LOADING = "loading, 4%d s of at most 300 (last time 15%d)"


@pytest.mark.parametrize(
    ("servers", "line"),
    [
        ([{"name": "server-0", "ready": True}, {"name": "server-1", "ready": False, "reason": "compiling for 34 s"}],
         "1 of 2 ready; server-1: compiling for 34 s"),
        ([{"name": "server-%d" % index, "state": "waiting"} for index in range(8)],
         "0 of 8 ready; server-0, server-1, server-2 and 5 more: waiting"),
        # those in one state are listed together, whatever their seconds
        ([{**one, "progress": LOADING % (index, index)}
          for index, one in enumerate(waiting("starting since 10:32:05Z (40 s)", "starting since 10:32:05Z (41 s)"))],
         "0 of 2 ready; server-0, server-1: loading, 40 s of at most 300 (last time 150)"),
        (waiting(*("reason " + one for one in "abcdef")),
         "0 of 6 ready; server-0: reason a; server-1: reason b; server-2: reason c; server-3: reason d; and 2 more"),
        # those that wait for another one are counted, if there are several
        (waiting(COMPILING, *[FOLLOWS] * 7), "0 of 8 ready; server-0: %s; 7 wait for server-0" % COMPILING),
        (waiting(COMPILING, FOLLOWS), "0 of 2 ready; server-0: %s; server-1: %s" % (COMPILING, FOLLOWS)),
        ([], None),
        (None, None),
    ],
)  # fmt: skip
def test_progress_names_who_is_waited_for_and_why(servers, line):
    assert screen.progress_line({"servers": servers}) == line


def test_status_is_readable():
    differences = [{"kind": "stopped", "text": "it is stopped"}, {"kind": "config", "text": "changed: port"}]
    report = screen.status_report(
        "node1",
        [
            {"name": "server-0", "port": 8000, "state": "running", "ready": True, "since": "2026-01-01T00:00:00Z",
             "restarts": 1, "memory_mib": 2048, "drift": None, "differences": [], "notes": ["the drop-in /x stays"]},
            {"name": "server-1", "port": 8001, "state": "stopped", "differences": differences},
            {"name": "server-2", "state": "running", "differences": None},
        ],
    )  # fmt: skip
    rows = [*report["rows"], *screen.unreachable_report("node2")["rows"]]
    assert screen.render(report["columns"], rows) == [
        "host   server    port  state    ready  since                 restarts  memory   drift",
        "node1  server-0  8000  running  yes    2026-01-01T00:00:00Z  1         2.0 GiB  as planned",
        "                                                                                note: the drop-in /x stays",
        "node1  server-1  8001  stopped  -      -                     -         -        it is stopped",
        "                                                                                changed: port",
        "node1  server-2  -     running  -      -                     -         -        no plan",
        "node2  -         -     -        -      -                     -         -        unreachable",
    ]


GIB = 1 << 30


@pytest.mark.parametrize(
    "progress, line",
    [
        ({"phase": "listing"}, "listing"),
        ({"phase": "listing", "percent": 0.0, "bytes_done": 0, "bytes_total": 0}, "listing"),
        (
            {"phase": "downloading", "percent": 45.9, "bytes_done": 27.4 * GIB, "bytes_total": 60.79 * GIB,
             "rate_bytes_s": 312 << 20, "eta_s": 109.2, "file": "model-00006-of-00014.safetensors"},
            "downloading 45 %, 27.4 of 60.8 GiB, 312.0 MiB/s, 1 min 49 s left, model-00006-of-00014.safetensors",
        ),
        (
            {"phase": "downloading", "percent": 0, "bytes_done": 0, "bytes_total": 1000, "rate_bytes_s": 0,
             "eta_s": None, "file": None},
            "downloading 0 %, 0 of 1000 B, 0 B/s",
        ),
        ({"phase": "verifying", "percent": 99.99, "bytes_done": 1 << 20}, "verifying 99 %, 1.0 MiB"),
        ({}, "working"),
    ],
)  # fmt: skip
def test_a_transfer_is_one_line(progress, line):
    assert screen.transfer_line(progress) == line


COLUMNS = ["host", "server", "since", "memory", "drift"]


def fleet(count, **others):
    """Rows of so many hosts with two servers each; others: {host: its drift}."""
    return [
        row
        for number in range(1, count + 1)
        for name in ["n%d" % number]
        for row in [
            [name, "server-0", "10:0%d" % (number % 10), "%d.5 GiB" % number, others.get(name, "as planned")],
            ["", "", "", "", "note: x"],
            [name, "server-1", None, "2.0 GiB", "as planned"],
        ]
    ]


def test_equal_hosts_share_their_rows():
    rows = screen.folded(COLUMNS, fleet(100, n7="stopped"))
    assert rows == [
        ["n1, n2, n3 and 96 more", "server-0", "10:00 … 10:09", "1.5 GiB … 100.5 GiB", "as planned"],
        ["", "", "", "", "note: x"],
        ["n1, n2, n3 and 96 more", "server-1", None, "2.0 GiB", "as planned"],
        ["n7", "server-0", "10:07", "7.5 GiB", "stopped"],
        ["", "", "", "", "note: x"],
        ["n7", "server-1", None, "2.0 GiB", "as planned"],
    ]
    assert len(screen.lines({"title": "Status", "columns": COLUMNS, "rows": fleet(1000)})) == 4


@pytest.mark.parametrize("rows", [fleet(3), fleet(4, n1="a", n2="b"), []])
def test_few_hosts_have_rows_of_their_own(rows):
    assert screen.folded(COLUMNS, rows) == rows


def test_the_newest_row_of_a_server_replaces_the_older_ones():
    reports = {}
    for rows in ([["n1", "a", "ok"], ["n1", "b", "ok"]], [["n2", "a", "ok"]], [["n1", "a", "FAILED"]]):
        screen.gather(reports, {"title": "Verdicts", "columns": ["host", "server", "verdict"], "key": 2, "rows": rows})
    assert reports["Verdicts"]["rows"] == [["n1", "b", "ok"], ["n2", "a", "ok"], ["n1", "a", "FAILED"]]


PRINT = "SHA256:9XbXTPMxqNbKM1rRFYN3GEHyrvHkDTHbW9vnGMVjkVo"
CHANGED = """\
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
The fingerprint for the ED25519 key sent by the remote host is
%s.
Offending ECDSA key in /home/me/.ssh/known_hosts:17
Host key verification failed."""
COMMAND = "ansible-playbook inference.fleet.replace_node -i inventories/x -e fleet_node=n1"


@pytest.fixture(autouse=True)
def started_in(tmp_path, monkeypatch):
    """A folder without playbooks, from which the run was started with -i inventories/x."""
    monkeypatch.chdir(tmp_path)
    arguments = CLIArgs({"inventory": [str(tmp_path / "inventories" / "x")]})
    monkeypatch.setattr(screen.context, "CLIARGS", arguments)


@pytest.mark.parametrize(("message", "reason"), [
    ("Failed to connect to the host via ssh: " + CHANGED % PRINT,
     "its host key has changed to %s (ED25519), /home/me/.ssh/known_hosts:17 has another; if the node was replaced, "
     "and that is its fingerprint: %s -e fleet_host_key=%s" % (PRINT, COMMAND, PRINT)),
    ("Host key for n1 has changed and you have requested strict checking.\r\nHost key verification failed.",
     "its host key has changed; if the node was replaced, and that is its fingerprint: %s -e "
     "fleet_host_key=SHA256:…" % COMMAND),
    ("Host key verification failed.", "its host key is not in known_hosts; %s shows it" % COMMAND),
    ("The ED25519 host key for n1 is marked as revoked.\nHost key verification failed.",
     "Host key verification failed."),
    ("debug1: something\nSomething quite new.\n", "Something quite new."),
    ("", "no message was returned"),
])  # fmt: skip
def test_the_reason_is_one_sentence(message, reason):
    assert screen.reason(message, "n1") == reason


def test_the_command_can_be_typed_where_the_run_was_started(tmp_path, monkeypatch):
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "replace_node.yml").write_text("")
    sources = [str(tmp_path / "my hosts"), "/etc/more", "localhost,"]
    monkeypatch.setattr(screen.context, "CLIARGS", CLIArgs({"inventory": sources}))
    assert screen.replace_command("n 1", PRINT) == (
        "ansible-playbook playbooks/replace_node.yml -i 'my hosts' -i /etc/more -i localhost, -e 'fleet_node=n 1' "
        "-e fleet_host_key=" + PRINT
    )


@pytest.mark.parametrize(("callback", "shown"), [
    ("default", True), ("ansible.posix.debug", True), ("inference.fleet.fleet", False), ("ansible.posix.json", False),
])  # fmt: skip
def test_tables_are_left_to_the_callback_that_gathers_them_and_out_of_json(monkeypatch, callback, shown):
    shows = []
    monkeypatch.setattr(screen.C, "DEFAULT_STDOUT_CALLBACK", callback, raising=False)
    monkeypatch.setattr(screen.Display, "display", lambda self, text, *args, **kwargs: shows.append(text))
    screen.show([{"title": "Plan", "columns": ["host", "port"], "rows": [["a", 1]]}])
    assert shows == (["\nPLAN %s\nhost  port\na     1" % ("*" * 75)] if shown else [])


def shown(stream):
    return terminal_screen(stream.getvalue())


def test_lines_are_written_again_and_make_way():
    stream = io.StringIO()
    live = screen.LiveLines(stream, lambda: os.terminal_size((80, 24)))
    stream.write("TASK\n")
    live.update("a", "a: 1 %")
    live.update("b", "b: 5 %")
    live.update("a", "a: 2 %")
    assert shown(stream) == ["TASK", "a: 2 %", "b: 5 %"]
    live.clear()
    stream.write("WARNING\n")
    assert shown(stream) == ["TASK", "WARNING"]
    live.update("b", "b: 6 %")
    assert shown(stream) == ["TASK", "WARNING", "a: 2 %", "b: 6 %"]
    live.drop("a")
    stream.write("ok: [a]\n")
    live.update("b", "b: 7 %")
    assert shown(stream) == ["TASK", "WARNING", "ok: [a]", "b: 7 %"]
    live.drop("b")
    live.drop("b")
    live.clear()
    assert shown(stream) == ["TASK", "WARNING", "ok: [a]"]


def test_no_line_wraps_and_no_block_is_longer_than_the_terminal():
    stream = io.StringIO()
    live = screen.LiveLines(stream, lambda: os.terminal_size((10, 4)))
    for number in range(5):
        live.update("host%d" % number, "host%d: a long line" % number)
    assert shown(stream) == ["host0: a ", "host1: a ", "and 3 mor"]
    live.update("host0", "done")
    assert shown(stream) == ["done", "host1: a ", "and 3 mor"]
