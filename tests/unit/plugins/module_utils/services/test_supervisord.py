# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ini file that supervisord reads, judged by supervisord's own reader; the daemon's faults as errors."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import sys
import tempfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord
from hypothesis import example, given
from hypothesis import strategies as st

options = pytest.importorskip("supervisor.options", reason="supervisor is not installed")
NASTY = st.text(st.one_of(st.sampled_from("%()s$\"'\\ \t;#[]=:hereé😀"), st.characters(codec="utf-8")), max_size=20)
LINE = NASTY.filter(lambda text: not set(text) & set("\0\r\n"))


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


@given(st.lists(LINE.filter(lambda text: "\x85" not in text), min_size=1, max_size=5))
@example(["%(here)s", "%%(here)s ;# x", "a ; b", "%", "", "'\"'"])
def test_a_command_arrives_word_by_word(argv):
    assert shlex.split(read_back(supervisord.ini_command(argv))) == argv


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
    with pytest.raises(FleetError):
        supervisord.ini_value(text)


def test_a_command_with_a_line_break_is_refused():
    with pytest.raises(FleetError) as caught:
        supervisord.ini_command(["a", "b\nc"])
    assert (caught.value.code, caught.value.values[0]) == ("services.text-invalid", "b\nc")


def test_no_program_that_ends_at_once_is_given_up_by_supervisord(tmp_path):
    """startsecs=0 means that no exit is too quick, so that BACKOFF and FATAL are not for exits; 194 alone is final."""
    manager = supervisord.Supervisord(NodePaths(str(tmp_path)), sys.prefix)
    text = manager.definition({"name": "server-0"}, None)
    lines = text.splitlines()
    assert {"startsecs=0", "autorestart=unexpected", "exitcodes=194", "stopasgroup=true"} <= set(lines)
    assert lines[1] == "[program:inference-fleet-server-0]"
    assert not any(line.startswith("user=") for line in lines)
    with_user = manager.definition({"name": "server-0"}, "nobody").splitlines()
    assert ("user=nobody" in with_user) == (os.getuid() == 0)


def test_a_socket_folder_that_others_may_use_is_refused(tmp_path):
    folder = tmp_path / "f"
    supervisord._private_folder(str(folder))
    supervisord._private_folder(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with pytest.raises(FleetError):
        supervisord._private_folder(str(folder))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(FleetError):
        supervisord._private_folder(str(link))


def test_the_socket_of_a_root_with_a_long_path_is_always_in_the_same_short_place(monkeypatch):
    paths = NodePaths("/" + "r" * 100)
    places = set()
    for folder in ("/tmp", "/" + "t" * 100):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        places.add(supervisord.Supervisord(paths, sys.prefix).socket)
    (place,) = places
    assert len(place) + supervisord.SOCKET_SUFFIX_BYTES <= supervisord.SOCKET_PATH_BYTES


def test_a_supervisord_that_does_not_start_says_why():
    with tempfile.TemporaryDirectory() as folder:
        program = folder + "/bin/supervisord"
        os.mkdir(folder + "/bin")
        with open(program, "w", encoding="utf-8") as stream:
            stream.write("#!/bin/sh\necho 'Error: no such option'\nexit 2\n")
        os.chmod(program, 0o755)
        manager = supervisord.Supervisord(NodePaths(folder + "/r"), folder)
        with pytest.raises(FleetError) as caught:
            manager.start(["server-0"])
        assert caught.value.code == "supervisord.failed"
        assert caught.value.values[2] == "Error: no such option"


def test_a_supervisord_that_hangs_is_an_error_and_a_stale_socket_is_none(monkeypatch):
    monkeypatch.setattr(supervisord, "REQUEST_S", 0.2)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as sock:
        manager = supervisord.Supervisord(NodePaths(folder), sys.prefix)
        os.makedirs(manager.paths.run)
        assert manager.statuses() == {}
        sock.bind(manager.socket)
        sock.listen()
        with pytest.raises(FleetError) as caught:
            manager.statuses()
        assert caught.value.code == "supervisord.no-answer"
        assert manager.socket in caught.value.values and manager.log in caught.value.values
        sock.close()
        assert manager.statuses() == {}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_supervisord_asks_for_become():
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as sock:
        os.chmod(folder, 0o755)
        manager = supervisord.Supervisord(NodePaths(folder), sys.prefix)
        os.makedirs(manager.paths.run)
        sock.bind(manager.socket)
        os.chmod(manager.socket, 0o700)
        sock.listen()
        reader, writer = os.pipe()
        pid = os.fork()  # a process cannot take back that it gave up its rights
        if pid == 0:
            os.setuid(65534)
            try:
                manager.statuses()
            except FleetError as error:
                os.write(writer, error.code.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            assert stream.read() == "supervisord.failed"
