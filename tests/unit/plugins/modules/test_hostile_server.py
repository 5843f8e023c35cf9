# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that lists and prints what would move a cursor, hide, or forge lines; and accounts that write its state."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest
from ansible_collections.inference.fleet.plugins.filter import servers as filters
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import UNSEEN
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import render, status_report
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until

SAYS = "a\x1b[2J\x1b]0;t\x07b\x00c\x9bd\u202ee\u2066f\u200bg\u2028h\rfatal: [node]: ok\x85i\ufeff\U000e0041j"
SECRET = "hf_0123456789abcdefghijkl"


def strings(value):
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in strings(item)]
    return [value] if isinstance(value, str) else []


def test_what_a_server_lists_and_prints_is_shown(node):
    entry = node.entry("server-0", "--says", json.dumps(SAYS))
    node.servers([entry])
    log = pathlib.Path(node.paths.log_file("server-0"))
    wait_until(lambda: log.exists() and "listening" in log.read_text(errors="replace"))
    failed = node.module("engine_ready", [entry])
    info = node.module("engine_servers_info", [entry], log_lines=20, probe=True)
    assert (failed["failed"], failed["code"]) == (True, "readiness.not-ready")
    assert "a\u241b[2J" in failed["msg"] and "\n" not in failed["msg"]
    assert any("a\u241b[2J\u241b]0;t\u2407b\u2400c\u27e8U+009B\u27e9d\u27e8U+202E\u27e9e" in line
               for line in info["servers"][0]["log_tail"])  # fmt: skip
    lines = [*filters.log_lines(info["servers"]), *filters.drift_lines(info["servers"])]
    report = status_report("node", info["servers"])
    lines += render(report["columns"], report["rows"])
    assert [one for one in strings([failed, info]) if UNSEEN.search(one)] == []
    assert [one for one in lines if UNSEEN.search(one) or "\n" in one] == []


def test_a_planted_root_is_refused_before_anything_is_written(node):
    if os.getuid() != 0:
        pytest.skip("for root alone")
    os.makedirs(node.root)
    os.chmod(node.root, 0o777)
    for module in ("engine_servers", "engine_servers_info", "engine_ready"):
        result = node.module(module, [node.entry("server-0")])
        assert (result["failed"], result["code"]) == (True, "node.root-not-safe")
    assert os.listdir(node.root) == []


def test_a_record_that_is_none_ends_no_run(node):
    """The server's account can write it; the next run restarts that server, whose guard writes a true record."""
    entry = node.entry("server-0")
    node.servers([entry])
    record = pathlib.Path(node.paths.server_state("server-0"))
    for content in ("[]", '{"pid": "x", "starts": 7}', None):
        node.ready([entry])
        record.unlink()
        os.mkfifo(record) if content is None else record.write_text(content)
        signal.alarm(120)
        try:
            assert not node.module("engine_servers_info", [entry], probe=True).get("failed")
            (action,) = node.servers([entry])["actions"]
        finally:
            signal.alarm(0)
        assert (action["kind"], action["reason"]) == ("restart", "the record of its start is gone")
    node.ready([entry])
    assert json.loads(record.read_text())["hash"] == entry["hash"]
    assert record.stat().st_mode & 0o777 == 0o640
    assert node.servers([entry])["changed"] is False


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away")
def test_rights_of_what_root_starts_are_repaired(node):
    entry = node.entry("server-0")
    before = node.servers([entry])["servers"][0]["pid"]
    program, settings = os.path.realpath(node.paths.guard) + "/fleet_node/cli.py", node.paths.etc + "/supervisord.conf"
    for file, change in (
        (program, lambda path: os.chmod(path, 0)),
        (program, lambda path: os.chmod(path, 0o666)),
        (program, lambda path: os.chown(path, 4_000_000, 0)),
        (settings, lambda path: os.chmod(path, 0o666)),
    ):
        change(file)
        (drift,) = node.module("engine_servers_info", [entry])["servers"][0]["differences"]
        assert drift["kind"] == "shared file" and file in drift["text"]
        assert node.servers([entry], check=True)["diff"]["before"].startswith(drift["text"].partition(" ")[0])
        assert node.servers([entry])["servers"][0]["pid"] == before
        status = os.lstat(file)
        assert (status.st_mode & 0o7777, status.st_uid) == (0o644, 0)
        assert node.servers([entry])["changed"] is False
