# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The screen: what the callback makes of failures, of polling and of groups that an inventory lacks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import types

import pytest
from ansible_collections.inference.fleet.plugins.callback import fleet
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import UNSEEN
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import LiveLines
from ansible_collections.inference.fleet.tests.runs import BIN, CLONE
from ansible_collections.inference.fleet.tests.unit.node_helpers import terminal_screen
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import LOCAL, hosts_file, play_tasks, tasks_play

PLAYBOOK = str(BIN / "ansible-playbook")


def screen(tmp_path, tasks, *arguments):
    return play_tasks(tmp_path, tasks, *arguments, inventory="inventories/local").output


def test_failures_are_told_once_as_text(tmp_path):
    text, more = 'first "line"\n%s line', {"ignore_errors": True}
    tasks = [
        {"name": "Fail", "ansible.builtin.fail": {"msg": text % "second"}, **more},
        {"name": "Loop", "ansible.builtin.fail": {"msg": text % "{{ item }}"}, "loop": ["third", "fourth"], **more},
        {"name": "Run", "ansible.builtin.command": "sh -c 'echo {{ item }} words >&2; exit 3'", "loop": ["own"],
         **more},
        {"name": "Poll", "ansible.builtin.command": "false", "register": "polled", "until": "polled is success",
         "retries": 1, "delay": 0, **more},
    ]  # fmt: skip
    output = screen(tmp_path, tasks)
    assert "fatal: [localhost]: FAILED!\n    %s\n" % (text % "second").replace("\n", "\n    ") in output
    for item in ("third", "fourth"):
        assert 'failed: [localhost] (item=%s)\n    first "line"\n    %s line\n' % (item, item) in output
    for word in ("second", "third", "fourth"):
        assert output.count(word + " line") == 1
    assert "    own words\n" in output
    assert re.search(r"FAILED - RETRYING: \[localhost\]: Poll \([01] retries left\)\.", output)  # 0 from core 2.20 on


def test_what_is_unseen_is_shown_wherever_it_appears(tmp_path):
    text = "a\x1b[2J\x00\x9b\u202e\u200b\u2028\ufeffb"
    copy = {"content": text.replace("\0", "\1") + "\n", "dest": str(tmp_path / "file")}
    tasks = [
        {"name": "Show", "ansible.builtin.debug": {"msg": [text]}},
        {"name": "Write", "ansible.builtin.copy": copy},
        {"name": "Loop", "ansible.builtin.debug": {"msg": "{{ item }}"}, "loop": [text]},
        {"name": "Fail", "ansible.builtin.fail": {"msg": text}},
    ]
    output = screen(tmp_path, tasks, "--diff")
    named = ("009B", "202E", "200B", "2028", "FEFF")
    shown = "a\u241b[2J\u2400%sb" % "".join("\u27e8U+%s\u27e9" % one for one in named)
    assert "    " + shown in output and "+" + shown.replace("\u2400", "\u2401") in output
    assert not UNSEEN.search(output)


def test_the_last_page_that_was_written_is_the_last_line(tmp_path):
    def report(name):
        return {"kind": "certificate", "reports_dir": str(tmp_path / name), "shown": name == "b"}

    tasks = [{"name": "Write", "inference.fleet.report": report(name)} for name in "ab"]
    output = screen(tmp_path, [*tasks, {"name": "Fail", "ansible.builtin.fail": {"msg": "why"}}])
    assert output.rstrip().splitlines()[-1] == "Page: %s/b/report.html" % tmp_path
    assert output.count("Page: ") == output.count("CERTIFICATE *") == 1
    assert "certificate  -              Not certified yet" in output
    assert "Page: " not in screen(tmp_path, tasks, "--check")


STEPS = [
    {"phase": "listing", "percent": None},
    {"phase": "downloading", "percent": 10, "bytes_done": 10 << 20, "bytes_total": 100 << 20},
    {"phase": "downloading", "percent": 60, "bytes_done": 60 << 20, "bytes_total": 100 << 20,
     "rate_bytes_s": 50 << 20, "eta_s": 1, "file": "model-00001.safetensors"},
    {"phase": "verifying", "percent": 50, "bytes_done": 50 << 20, "bytes_total": 100 << 20},
    {"phase": "done", "percent": 100, "bytes_done": 100 << 20, "bytes_total": 100 << 20},
]  # fmt: skip
LINES = ["listing", "downloading 10 %, 10.0 of 100.0 MiB",
         "downloading 60 %, 60.0 of 100.0 MiB, 50.0 MiB/s, 1 s left, model-00001.safetensors",
         "verifying 50 %, 50.0 of 100.0 MiB", "done 100 %, 100.0 of 100.0 MiB"]  # fmt: skip


@pytest.mark.parametrize(("interval", "left_out"), [(3600, LINES[2]), (0, None)])
def test_a_log_has_a_line_for_each_phase_and_now_and_then(monkeypatch, interval, left_out):
    said, callback = [], fleet.CallbackModule()
    monkeypatch.setattr(callback, "_display", types.SimpleNamespace(display=lambda text, **named: said.append(text)))
    monkeypatch.setattr(callback, "get_option", {"progress_interval": interval}.get)
    for step in STEPS:
        host = types.SimpleNamespace(get_name=lambda: "node1")
        result = types.SimpleNamespace(host=host, result={"progress": step})
        if step is STEPS[-1]:
            callback._progress_ends(result, well=True)
        else:
            callback.v2_runner_retry(result)
    assert said == ["node1: " + line for line in LINES if line != left_out]


# A module that is further along every time it is asked, on its host's own clock: a file with the number of its steps.
# The first steps wait for the other host.
FAKE = """
import time
from ansible.module_utils.basic import AnsibleModule

STEPS = %r

def count(path):
    return int(open(path).read() or 0)

module = AnsibleModule({"clock": {"type": "path"}, "other": {"type": "path"}, "fails": {"type": "bool"}})
step, end = count(module.params["clock"]), time.monotonic() + 120
open(module.params["clock"], "w").write(str(step + 1))
while step in (1, 2) and count(module.params["other"]) < step and time.monotonic() < end:
    time.sleep(0.02)
if module.params["fails"] and step == 2:
    module.fail_json(msg="The hub is gone.", progress=STEPS[2], finished=True)
if step == 2:
    module.warn("A warning of the module.")
module.exit_json(progress=STEPS[step], finished=step == len(STEPS) - 1, changed=True)
"""


# However long the transfer takes here, no phase is told of twice.
SELDOM = {**os.environ, "INFERENCE_FLEET_PROGRESS_INTERVAL": "3600"}


def lines_of(output, host):
    return [line for line in output.splitlines() if line.startswith(host + ": ") and "ok=" not in line]


def test_a_terminal_has_one_line_for_each_host_and_the_message_of_a_failure(tmp_path):
    """Of 60 columns, for a made-up transfer on two hosts, which fails on the first."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "fake_transfer.py").write_text(FAKE.lstrip() % STEPS)
    given = {
        "clock": "%s/{{ inventory_hostname }}" % tmp_path, "fails": "{{ inventory_hostname == 'node1' }}",
        "other": "%s/{{ (groups.all | difference([inventory_hostname]))[0] }}" % tmp_path,
    }  # fmt: skip
    task = {"name": "Download or copy the weights", "fake_transfer": given, "register": "polled", "retries": 20,
            "until": "polled is failed or polled.finished", "delay": 0.2}  # fmt: skip
    for name in ("node1", "node2"):
        (tmp_path / name).write_text("")
    (tmp_path / "play.yml").write_text(json.dumps([tasks_play([task], hosts="all")]))
    inventory = hosts_file(tmp_path, dict.fromkeys(("node1", "node2"), LOCAL))
    command = [PLAYBOOK, str(tmp_path / "play.yml"), "-i", str(inventory)]
    controller, terminal = pty.openpty()
    environment = {**SELDOM, "TERM": "xterm", "COLUMNS": "60", "LINES": "24", "ANSIBLE_NOCOLOR": "1"}
    process = subprocess.Popen(command, cwd=CLONE, env=environment, stdout=terminal, stderr=terminal, stdin=terminal)
    os.close(terminal)
    output = b""
    with contextlib.suppress(OSError):  # Linux says so at the end
        while block := os.read(controller, 65536):
            output += block
    os.close(controller)
    output = output.decode()
    screen = terminal_screen(output)
    assert (process.wait(60), lines_of("\n".join(screen), "node1")) == (2, [])
    assert {"fatal: [node1]: FAILED!", "    The hub is gone."} <= set(screen)
    assert "downloading 60 %, 60.0 of 100.0 MiB, 50.0 MiB/s" in output
    assert lines_of("\n".join(screen), "node2") == ["node2: done 100 %, 100.0 of 100.0 MiB"]
    assert screen.count("changed: [node2]") == 1
    # The two hosts' lines stood one below the other at some time.
    assert re.search(r"node1: downloading[^\n]*\nnode2: |node2: downloading[^\n]*\nnode1: ", output)


def test_a_warning_from_anywhere_takes_no_lines_place(monkeypatch):
    stream = io.StringIO()
    live = LiveLines(stream, lambda: os.terminal_size((80, 24)))
    display = types.SimpleNamespace(
        display=lambda text, log_only=False: None if log_only else stream.write(text + "\n")
    )  # as much of Ansible's Display as this needs
    fleet.clear_before(display, live)
    live.update("a", "a: 1 %")
    display.display("only the log", log_only=True)
    assert terminal_screen(stream.getvalue()) == ["a: 1 %"]
    display.display("WARNING")
    live.update("a", "a: 2 %")
    assert terminal_screen(stream.getvalue()) == ["WARNING", "a: 2 %"]
    monkeypatch.setattr(os, "getpid", lambda: 0)  # as in a worker process
    before = stream.getvalue()
    display.display("message")
    assert stream.getvalue() == before + "message\n"


def test_a_task_in_the_background_says_that_it_goes_on(tmp_path):
    """It ends when that was seen."""
    seen = tmp_path / "seen"
    task = {
        "name": "Install the engine", "async": 600, "poll": 1, "vars": {"engine_takes": "1 to 10 minutes"},
        "ansible.builtin.shell": "while [ ! -e %s ]; do sleep 0.1; done" % seen, "changed_when": True,
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(json.dumps([tasks_play([task])]))
    command = [PLAYBOOK, str(tmp_path / "play.yml"), "-i", "inventories/local"]
    process, shown = subprocess.Popen(command, cwd=CLONE, env=SELDOM, stdout=subprocess.PIPE, text=True), ""
    for line in process.stdout:
        shown += line
        if line.startswith("localhost: Install the engine, "):
            seen.touch()
    assert process.wait(60) == 0
    assert len(re.findall(r"localhost: Install the engine, \d+ s \(1 to 10 minutes\)", shown)) == 1
    assert "ASYNC" not in shown and "changed: [localhost]" in shown
