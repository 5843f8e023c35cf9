# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of NATS against a scripted server, and a configuration that the server's program refuses."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import threading
from pathlib import Path

import jinja2
import pytest
from ansible_collections.inference.fleet.plugins.filter import services
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.operations.services import NATS_SERVER
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.shared_services import nats_client, nats_server

ROLE = Path(__file__).resolve().parents[5] / "roles" / "nats"
INFO = b'INFO {"server_name":"a"}\r\n'


class Scripted(threading.Thread):
    """Takes one connection, says INFO, and answers each line by answer(line)."""

    def __init__(self, answer, info=INFO):
        super().__init__(daemon=True)
        self.answer, self.info, self.lines = answer, info, []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.start()

    def run(self):
        connection, _address = self.listening.accept()
        with contextlib.suppress(OSError), self.listening, connection, connection.makefile("rb") as stream:
            connection.sendall(self.info)
            for line in stream:
                self.lines.append(line.decode().strip())
                connection.sendall(self.answer(self.lines))


def echoing(lines):
    if lines[-1] != "PING":
        return b""
    subject, word = lines[1].split()[1], lines[3]
    return ("PING\r\nMSG %s 1 %d\r\n%s\r\nPONG\r\n" % (subject, len(word), word)).encode()


def test_what_is_published_comes_back():
    server = Scripted(echoing)
    assert nats_client.publish_and_receive("127.0.0.1", server.port, login=("fleet", 'p"w')) == ""
    told = json.loads(server.lines[0].partition(" ")[2])
    assert (told["user"], told["pass"], told["verbose"]) == ("fleet", 'p"w', False)


@pytest.mark.parametrize(
    ("answer", "info", "words"),
    [
        (lambda lines: b"-ERR 'Authorization Violation'\r\n", INFO, "-ERR 'Authorization Violation'"),
        (lambda lines: b"PONG\r\n" if lines[-1] == "PING" else b"", INFO, "what was published did not come back"),
        (lambda lines: b"", b"x" * 2**16, "the answer is not NATS's"),
        (lambda lines: b"", b"no json\r\n", "Expecting value"),
    ],
)
def test_what_went_wrong_is_told(answer, info, words):
    said = nats_client.publish_and_receive("127.0.0.1", Scripted(answer, info).port)
    assert said.startswith(words) or "reset" in said.lower()  # a server that goes away may be noticed first


def test_a_server_without_tls_is_told_where_tls_is_expected():
    files = {"ca": "/none", "certificate": "/none", "key": "/none"}
    assert nats_client.publish_and_receive("127.0.0.1", Scripted(echoing).port, files) == "it does not ask for TLS"


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert nats_client.publish_and_receive("127.0.0.1", port)
    assert nats_client.monitored(port, "/healthz")[0] is None


@pytest.fixture
def server(tmp_path):
    """Makes a Server whose program accepts any configuration with the word `good`."""
    program = tmp_path / "nats-server"
    program.write_text(
        '#!/bin/sh\ntest "$4" = --trace && grep -q good "$3" && test -f "$(dirname "$3")/login.conf" || '
        "{ echo refused; exit 1; }\n"
    )
    program.chmod(0o755)
    conf = tmp_path / "nats.conf"

    def make(content, password="secret"):
        params = {name: option.get("default") for name, option in NATS_SERVER.items()}
        params.update(name="a", members=[{"name": "a", "address": "127.0.0.1"}], conf=str(conf), password=password,
                      files={str(conf): content}, nats_server=["/usr/bin/env", str(program)],
                      arguments=["--trace"], account=getpass.getuser())  # fmt: skip
        return nats_server.Server(params)

    make.conf, make.login = conf, tmp_path / "login.conf"
    return make


def test_a_configuration_is_read_by_the_server_before_it_replaces_the_old(server):
    assert nats_server.configure(server("good"), True) == {"changed": True}
    assert not server.conf.exists()
    assert nats_server.configure(server("good"), False) == {"changed": True}
    assert nats_server.configure(server("good"), False) == {"changed": False}
    with pytest.raises(FleetError) as caught:
        nats_server.configure(server("bad", "other"), False)
    assert (caught.value.code, caught.value.values) == ("nats.configuration-refused", ("a", "refused"))
    assert (server.conf.read_text(), sorted(os.listdir(server.conf.parent))) == (
        "good", ["login.conf", "nats-server", "nats.conf"]
    )  # fmt: skip
    assert "secret" in server.login.read_text()


def test_the_login_is_for_the_account_alone_and_quoted(server):
    nats_server.configure(server("good", 'a"b\\c'), False)
    assert server.login.stat().st_mode & 0o777 == 0o600
    assert server.login.read_text() == 'authorization { user: "fleet", password: "a\\"b\\\\c" }\n'
    nats_server.configure(server("good", ""), False)
    assert server.login.read_text() == ""


def test_the_unit_of_older_releases_is_the_same_without_arguments():
    text = (ROLE / "templates" / "nats.service.j2").read_text()
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)
    environment.filters["inference.fleet.unit_word"] = services.unit_word
    template, given = environment.from_string(text), {"nats_version": "1", "nats_programs": "/opt/n"}
    plain = template.render(nats_arguments=[], **given)
    assert "\nExecStart=/opt/n/nats-server -c /etc/nats/nats.conf\nExecReload=" in plain
    assert 'nats.conf "-js" "a%%b$$c"\nExecReload=' in template.render(nats_arguments=["-js", "a%b$c"], **given)
