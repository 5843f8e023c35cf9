# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""supervisord's ini file, judged by its own reader; the daemon's faults; the crontab line for boots."""

from __future__ import annotations

import os
import pathlib
import shlex
import socket
import stat
import sys
import tempfile
import types
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from hypothesis import example, given
from hypothesis import strategies as st

options = pytest.importorskip("supervisor.options", reason="supervisor is not installed")
NASTY = st.text(st.one_of(st.sampled_from("%()s$\"'\\ \t;#[]=:hereé😀"), st.characters(codec="utf-8")), max_size=20)


def read_back(value):
    """What supervisord's parser makes of `key=value`, before its expansion."""
    parser = options.UnhosedConfigParser()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="\n") as stream:
        stream.write("[s]\nkey=%s\n" % value)
        stream.flush()
        with open(stream.name, encoding="utf-8") as text:
            parser.read_file(text)
    parser.expand_here("/here")
    return parser.saneget("s", "key", expansions={"here": "/here", "program_name": "p"})


@given(st.lists(NASTY.filter(lambda text: "\x85" not in text), min_size=1, max_size=5))
@example(["/a root's 100% $HOME", "a;b", "%", "", "'\"'"])
def test_a_command_arrives_word_by_word_or_is_refused(argv):
    try:
        value = supervisord.ini_command(argv)
    except FleetError as error:
        assert error.code == "services.text-invalid" and argv != ["/a root's 100% $HOME", "a;b", "%", "", "'\"'"]
    else:
        assert shlex.split(read_back(value)) == argv


@given(st.text(st.sampled_from("%()s$\"'\\ \t;#[]=:here/aé\n"), min_size=1, max_size=20))
def test_a_value_arrives_or_is_refused(text):
    try:
        value = supervisord.ini_value(text)
    except FleetError as error:
        assert (error.code, error.values[0]) == ("services.text-invalid", text)
        assert text != "/var/log/server-0.log"
    else:
        assert read_back(value) == text
        assert options.expand(read_back(supervisord.ini_value(text, expansions=2)), {}, "key") == text


@pytest.mark.parametrize("text", ["a ;b", "a\tb #c", " a", "a\nb", "%(here)s", "a\x00"])
def test_what_the_format_cannot_hold_is_refused(text):
    plans.error(supervisord.ini_value, text)


def test_no_program_that_ends_at_once_is_given_up_by_supervisord(tmp_path):
    """startsecs=0 means that no exit is too quick, so that BACKOFF and FATAL are not for exits; 194 alone is final."""
    text = supervisord.Supervisord(NodePaths(str(tmp_path)), sys.prefix).definition({"name": "server-0"}, None)
    assert {"startsecs=0", "autorestart=unexpected", "exitcodes=194", "stopasgroup=true"} <= set(text.splitlines())


def test_a_socket_folder_that_others_may_use_is_refused(tmp_path):
    folder = tmp_path / "f"
    supervisord._private_folder(str(folder))
    supervisord._private_folder(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    plans.error(supervisord._private_folder, str(folder))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    plans.error(supervisord._private_folder, str(link))
    manager = supervisord.Supervisord(NodePaths("/" + "r" * 100), sys.prefix)
    manager.socket_folder = str(folder)  # of another account, whose daemon would answer as ours
    assert plans.error(manager.statuses).code == "supervisord.socket-directory-wrong"


def test_a_supervisord_that_does_not_start_says_why():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/bin")
        script(pathlib.Path(folder, "bin/supervisord"), "echo 'Error: no such option'; exit 2")
        manager = supervisord.Supervisord(NodePaths(folder + "/r"), folder)
        caught = plans.error(manager.start, ["server-0"])
        assert (caught.code, caught.values[2]) == ("supervisord.failed", "Error: no such option")


def test_a_supervisord_that_hangs_or_is_another_users_is_an_error_and_a_stale_socket_is_none(monkeypatch):
    monkeypatch.setattr(supervisord, "REQUEST_S", 0.2)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as sock:
        manager = supervisord.Supervisord(NodePaths(folder), sys.prefix)
        os.makedirs(manager.paths.run)
        assert manager.statuses() == {}
        sock.bind(manager.socket)
        sock.listen()
        caught = plans.error(manager.statuses)
        assert caught.code == "supervisord.no-answer"
        assert manager.socket in caught.values and manager.log in caught.values
        sock.close()
        assert manager.statuses() == {}
        monkeypatch.setattr(supervisord.Connection, "connect", mock.Mock(side_effect=PermissionError))
        assert plans.error(manager.statuses).code == "supervisord.failed"


CRONTAB = """cd %s
[ -e refuse-$1 ] && { echo "bad minute" >&2; exit 1; }
[ "$1" = - ] && exec cat > table
[ -e table ] && exec cat table; echo "no crontab for me" >&2; exit 1
"""
OTHERS = "MAILTO=me\n*/5 * * * * printf 'a\fb' # inference.fleet\n\n@reboot true # inference.fleet /other\n"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with a root and a program crontab, whose table is in `table`."""
    monkeypatch.setattr(supervisord, "CRONTAB", script(tmp_path / "crontab", CRONTAB % tmp_path))
    paths = NodePaths(str(tmp_path / "a root's 100% $HOME"))
    manager = supervisord.Supervisord(paths, "/toolkit")
    return types.SimpleNamespace(paths=paths, manager=manager, table=tmp_path / "table", folder=tmp_path, warnings=[])


def test_the_line_is_added_and_removed_and_other_lines_stay(node):
    node.table.write_text(OTHERS)
    assert supervisord.ensure_start_on_boot(node, False) == ("", "")
    before, after = supervisord.ensure_start_on_boot(node, True, True)
    assert before == "" and after and node.table.read_text() == OTHERS
    assert supervisord.ensure_start_on_boot(node, True) == (before, after)
    assert node.table.read_text() == OTHERS + after + "\n"
    assert supervisord.ensure_start_on_boot(node, True) == (after, after)
    assert supervisord.ensure_start_on_boot(node, False) == (after, "")
    assert node.table.read_text() == OTHERS


def test_a_crontab_that_cannot_be_used(node, monkeypatch):
    (node.folder / "refuse--").touch()
    assert supervisord.ensure_start_on_boot(node, True) == ("", "")
    (node.folder / "refuse--l").touch()
    supervisord.ensure_start_on_boot(node, True)
    monkeypatch.setattr(supervisord, "CRONTAB", "/none")
    supervisord.ensure_start_on_boot(node, True)
    assert ["bad minute" in words for words in node.warnings] == [True, True, False]
    supervisord.ensure_start_on_boot(node, False)
    node.manager = types.SimpleNamespace(name="systemd")
    assert supervisord.ensure_start_on_boot(node, True) == ("", "")
    assert len(node.warnings) == 3
