# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where ssh goes for a host, and the keys that a real SSH server shows there."""

from __future__ import annotations

import shlex
import sys

import paramiko
import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.connection.host_keys import fetch, ssh_target, target_of
from ansible_collections.inference.fleet.tests.unit.engines.ssh_server import SshServer

PLAIN = ["-F", "none", "-o", "UserKnownHostsFile=/k1 /k2", "-o", "HashKnownHosts=no"]
OPTIONS = {"hostname": "10.0.0.1", "port": "22", "user": "me", "userknownhostsfile": "/k1"}


@pytest.mark.parametrize(
    ("arguments", "names", "files", "hashed"),
    [
        (PLAIN, ["n1.example"], ["/k1", "/k2"], False),
        ([*PLAIN, "-o", "Port=2222"], ["[n1.example]:2222"], ["/k1", "/k2"], False),
        ([*PLAIN, "-o", "Port=2222", "-o", "HostKeyAlias=n1"], ["n1"], ["/k1", "/k2"], False),
        ([*PLAIN, "-o", "HostName=127.0.0.1", "-o", "CheckHostIP=yes"], ["127.0.0.1"], ["/k1", "/k2"], False),
        (["-F", "none", "-o", "UserKnownHostsFile=/dev/null", "-o", "HashKnownHosts=yes"], ["n1.example"], [], True),
        (["-F", "none", "-o", "UserKnownHostsFile=none"], ["n1.example"], [], False),
    ],
)
def test_names_and_files_are_those_of_openssh(arguments, names, files, hashed):
    target = ssh_target("N1.Example", arguments)
    assert (target.names, target.files, target.hashed, target.proxy) == (names, files, hashed, None)
    assert "ssh-ed25519" in target.algorithms


def test_a_configuration_file_counts(tmp_path):
    (tmp_path / "config").write_text(
        "Host n1\n  HostName 10.9.9.9\n  Port 2200\n  UserKnownHostsFile %s/own\n  ProxyJump gate\n" % tmp_path
    )
    target = ssh_target("n1", ["-F", str(tmp_path / "config")])
    assert (target.host, target.port, target.names) == ("10.9.9.9", 2200, ["[10.9.9.9]:2200"])
    assert target.files == ["%s/own" % tmp_path]
    config = str(tmp_path / "config")
    assert target.proxy == ["ssh", "-F", config, "-o", "BatchMode=yes", "-W", "[10.9.9.9]:2200", "--", "gate"]


@pytest.mark.parametrize(
    ("options", "proxy"),
    [
        ({"proxyjump": "gate"}, "ssh -o BatchMode=yes -W [10.0.0.1]:22 -- gate"),
        ({"proxyjump": "me@gate:2222"}, "ssh -o BatchMode=yes -W [10.0.0.1]:22 -p 2222 -- me@gate"),
        ({"proxyjump": "me@[::1]:2222"}, "ssh -o BatchMode=yes -W [10.0.0.1]:22 -p 2222 -- me@::1"),
        ({"proxyjump": "ssh://me@gate:22"}, "ssh -o BatchMode=yes -W [10.0.0.1]:22 -- ssh://me@gate:22"),
        ({"proxyjump": "a,b@c,d"}, "ssh -J a,b@c -o BatchMode=yes -W [10.0.0.1]:22 -- d"),
        ({"proxycommand": "nc -X 5 %h %p # %n %r 100%%"}, "sh -c 'exec nc -X 5 10.0.0.1 22 # n1 me 100%'"),
        ({"proxycommand": "none", "proxyjump": "none"}, None),
    ],
)
def test_a_proxy_is_gone_through_as_openssh_does(options, proxy):
    found = target_of("n1", {**OPTIONS, **options}).proxy
    assert (found and shlex.join(found)) == (proxy and shlex.join(shlex.split(proxy)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proxycommand": "x %i"}, "The connection to n1 goes through ProxyCommand 'x %i' with %i, which is not "
                                   "supported "
         "here. Replace its key by hand: `ssh-keygen -R '10.0.0.1'`, then `ssh n1` and compare the fingerprint. Then "
         "run "
         "site.yml --limit it."),
        ({"proxycommand": "x", "proxyusefdpass": "yes"}, "The connection to n1 goes through ProxyCommand 'x' with "
         "ProxyUseFdpass, which is not supported here. Replace its key by hand: `ssh-keygen -R '10.0.0.1'`, then "
         "`ssh n1` and "
         "compare the fingerprint. Then run site.yml --limit it."),
        ({"userknownhostsfile": "/my hosts"}, "UserKnownHostsFile is '/my hosts'; paths without blanks are needed "
                                              "here."),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(options, message):
    with pytest.raises(FleetError) as caught:
        target_of("n1", {**OPTIONS, **options})
    assert caught.value.message == message


def test_bad_arguments_of_ssh_are_told():
    with pytest.raises(FleetError) as caught:
        ssh_target("n1", ["-o", "NoSuchOption=1"])
    assert caught.value.message.startswith("ssh does not take its options for n1: ")
    with pytest.raises(FleetError) as caught:
        ssh_target("n1", [], ssh="/nowhere/ssh")
    assert caught.value.message.startswith("/nowhere/ssh -G cannot be run: ")


PIPE = """
import os, socket, sys, threading
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536):
        s.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536):
    os.write(1, data)
"""


@pytest.mark.parametrize("through_proxy", [False, True])
def test_all_kinds_of_keys_are_fetched(tmp_path, through_proxy):
    keys = [paramiko.ECDSAKey.generate(bits=384), paramiko.RSAKey.generate(2048)]
    (tmp_path / "pipe.py").write_text(PIPE)
    with SshServer(*keys) as server:
        more = ["-o", "Port=%d" % server.port]
        if through_proxy:
            more += ["-o", "ProxyCommand=%s %s %%p" % (sys.executable, tmp_path / "pipe.py")]
        found = fetch(ssh_target("127.0.0.1", [*PLAIN, *more]))
    assert [(key.type, key.fingerprint) for key in found] == [(key.get_name(), key.fingerprint) for key in keys]
    assert [key.blob for key in found] == [key.asbytes() for key in keys]


def test_only_kinds_that_ssh_takes_are_fetched():
    keys = [paramiko.ECDSAKey.generate(), paramiko.RSAKey.generate(2048)]
    with SshServer(*keys) as server:
        arguments = [*PLAIN, "-o", "Port=%d" % server.port, "-o", "HostKeyAlgorithms=rsa-sha2-512"]
        assert [key.type for key in fetch(ssh_target("127.0.0.1", arguments))] == ["ssh-rsa"]


@pytest.mark.parametrize(("command", "problem"), [("echo gate is closed >&2; false", "gate is closed. "), ("true", "")])
def test_a_proxy_that_fails_is_told_with_what_it_said(command, problem):
    target = ssh_target("n1", [*PLAIN, "-o", "ProxyCommand=sh -c '%s'" % command])
    with pytest.raises(FleetError) as caught:
        fetch(target)
    begin = "The host keys of n1 could not be fetched from n1 port 22 through `%s`: %s" % (
        shlex.join(target.proxy),
        problem,
    )
    assert caught.value.message.startswith(begin)
    assert caught.value.message.endswith("Is the node up, and is this its address?")
