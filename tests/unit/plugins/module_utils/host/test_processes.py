# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc says of real processes and sockets."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(900)"]
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(900)"


@contextlib.contextmanager
def listener(bind, family=socket.AF_INET):
    """(port, inode) of a socket that listens."""
    with socket.create_server((bind, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as sock:
        yield sock.getsockname()[1], os.fstat(sock.fileno()).st_ino


@contextlib.contextmanager
def child(command=None, **options):
    process = subprocess.Popen(command or SLEEP, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_listening_socket_is_seen_and_a_connected_one_is_not():
    with listener("127.0.0.1") as (port, inode):
        assert ("127.0.0.1", port, inode, os.getuid()) in processes.listening_sockets()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert connection.getsockname()[1] not in [one[1] for one in processes.listening_sockets()]
    assert inode not in [one[2] for one in processes.listening_sockets()]
    with listener("::ffff:127.0.0.1", socket.AF_INET6) as (port, inode):
        assert ("127.0.0.1", port, inode, os.getuid()) in processes.listening_sockets()


def test_who_holds_a_port(monkeypatch):
    user = {"user": processes.user_name(os.getuid()), "server": None, "root": None}
    me = {"pid": os.getpid(), "command": processes.command(os.getpid()), **user}
    with listener("127.0.0.1") as (port, _inode):
        for bind in ("127.0.0.1", "localhost", "0.0.0.0", "::", ""):
            assert processes.port_holder(bind, port) == me
        assert processes.port_holder("127.0.0.2", port) is None
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        assert processes.port_holder("127.0.0.1", silent.getsockname()[1]) is None
    with listener("0.0.0.0") as (port, _inode):
        assert processes.port_holder("127.0.0.1", port) == me
    with listener("::", socket.AF_INET6) as (port, _inode):
        assert processes.port_holder("127.0.0.1", port) == me
        monkeypatch.setattr(processes, "open_files", lambda pid: set())
        assert processes.port_holder("127.0.0.1", port) == {"pid": None, "command": None, **user}


def test_likely_holders_precede_the_others(monkeypatch):
    with listener("127.0.0.1") as (port, inode):
        files = {41: {"socket:[%d]" % inode}, 42: {"socket:[%d]" % inode, "/a"}, 43: {"/a"}}
        monkeypatch.setattr(processes, "process_table", lambda: dict.fromkeys(files))
        monkeypatch.setattr(processes, "open_files", files.get)
        for likely, pid in ((), 41), ((42,), 42), ((43,), 41):
            sockets = processes.Sockets(functools.partial(list, likely))
            assert processes.port_holder("127.0.0.1", port, sockets)["pid"] == pid


@pytest.mark.skipif(os.getuid() != 0, reason="starts a process of another account")
def test_markers_that_another_account_sets_count_for_nothing(tmp_path):
    root, servers = str(tmp_path), tmp_path / "etc/inference-fleet/servers"
    script = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
    marks = {processes.MARKER_SERVER: "server-0", processes.MARKER_ROOT: root}
    command = ["/usr/bin/python3", "-I", "-S", "-c", script + "time.sleep(900)"]
    with child(command, env=marks, user="nobody", stdout=subprocess.PIPE, text=True) as other:
        port = int(other.stdout.readline())
        assert processes.marked_processes(root) == {}
        assert processes.port_holder("127.0.0.1", port)["server"] is None
        servers.mkdir(parents=True)
        (servers / "server-0.json").write_text('{"name": "server-0", "user": "nobody"}')
        assert processes.marked_processes(root) == {"server-0": [other.pid]}
        holder = processes.port_holder("127.0.0.1", port)
        assert (holder["root"], holder["server"]) == (root, "server-0")


def test_processes_are_examined_once_where_nothing_changes(monkeypatch):
    looks = []
    monkeypatch.setattr(processes, "process_table", lambda: looks.append(1) or {})
    with processes.examined_once():
        assert [processes.marked_processes(root) for root in ("/r", "/r", "/s")] == [{}, {}, {}]
        assert len(looks) == 2
    assert processes.server_pids("/r") == []
    assert len(looks) == 3


def test_marked_processes_and_their_children_are_found_and_nothing_else(tmp_path):
    root = str(tmp_path)  # of this run alone
    marks = {processes.MARKER_SERVER: "server-0", processes.MARKER_ROOT: root}
    # an emptied environment below a marked process
    script = "import os, subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', '%s'], env={})" % SLEEP[-1]
    with child([*SLEEP[:-1], script], env=marks) as parent, child(env=dict(marks, INFERENCE_FLEET_ROOT="/")) as other:
        with child(env={"A": "INFERENCE_FLEET_SERVER=server-0"}):
            wait_until(lambda: len(processes.marked_processes(root).get("server-0", [])) == 2)
            found = processes.marked_processes(root)["server-0"]
            (below,) = set(found) - {parent.pid}
            wait_until(lambda: processes.environment_of(below) == {})  # a fork has its parent's until it is executed
            assert processes.marked_processes(root).get("server-1", []) == []
            assert other.pid in processes.marked_processes("").get("server-0", [])
        assert processes.terminate(found, 60, 60) == []
        parent.wait()


def test_terminate_ends_what_ignores_term_and_takes_a_zombie_for_ended():
    with child([*SLEEP[:-1], STUBBORN], stdout=subprocess.PIPE) as stubborn, child() as mild:
        stubborn.stdout.readline()
        began = time.monotonic()
        assert processes.terminate([stubborn.pid, mild.pid], 0.3, 60) == []
        assert time.monotonic() - began >= 0.3
        # nobody has waited for them yet
        assert processes.process(mild.pid).state == processes.process(stubborn.pid).state == "Z"
        assert processes.started_at(mild.pid) is None
        assert (mild.wait(), stubborn.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
        assert processes.terminate([mild.pid], 0, 0) == []


def test_a_pid_that_went_over_to_another_process_is_left_alone(monkeypatch):
    with child() as process:
        real, seen = processes.process, []

        def recycled(pid):
            seen.append(pid)
            found = real(pid)
            return found if len(seen) == 1 or pid != process.pid else found._replace(ticks=found.ticks + 1)

        monkeypatch.setattr(processes, "process", recycled)
        assert processes.terminate([process.pid], 1, 1) == []
        assert process.poll() is None


def test_memory_and_start_time():
    before = time.time()
    large = "x = bytearray(40 << 20); print(1, flush=True); " + SLEEP[-1]
    with child([*SLEEP[:-1], large], stdout=subprocess.PIPE) as one:
        one.stdout.readline()
        assert 40 <= processes.memory_mib([one.pid]) < 80
        assert processes.memory_mib([one.pid, 2**22 + 1]) == processes.memory_mib([one.pid])
        # the kernel tells the time of its boot in whole seconds
        assert before - 2 <= processes.started_at(one.pid) <= time.time() + 2
    assert processes.memory_mib([]) is None
    assert processes.memory_mib([one.pid]) is None
    assert processes.started_at(one.pid) is None


def test_a_handler_of_a_signal_is_seen():
    before = signal.signal(signal.SIGUSR2, lambda *_given: None)
    try:
        assert processes.catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not processes.catches(os.getpid(), signal.SIGUSR2) and not processes.catches(2**22 + 1, signal.SIGUSR2)


@pytest.mark.skipif(processes.command(2) != "[kthreadd]", reason="this namespace has no kernel threads")
def test_the_kernels_own_threads_are_not_processes():
    assert processes.process(2).kernel and 2 not in processes.process_table()


@pytest.mark.parametrize(("bind", "listens", "wider"), [
    ("127.0.0.1", "127.0.0.1", None), ("127.0.0.1", "0.0.0.0", "0.0.0.0"), ("127.0.0.1", "::", "::"),
    ("::1", "::", "::"), ("10.0.0.5", "0.0.0.0", "0.0.0.0"), ("0.0.0.0", "0.0.0.0", None),
])  # fmt: skip
def test_a_server_that_listens_wider_than_it_is_bound(bind, listens, wider):
    sockets = [(listens, 8000, 1, 0)]
    assert processes.open_to_all(bind, 8000, sockets) == wider
    assert processes.open_to_all(bind, 1, sockets) is None


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("looks", [0, 20])
def test_a_process_in_the_middle_of_execve_is_found(tmp_path, monkeypatch, looks, done):
    """It shows neither variables nor arguments then; done: execve ends after the last look in vain at the first."""
    seen, real = [], processes.shown
    marks = {processes.MARKER_SERVER: "server-0", processes.MARKER_ROOT: str(tmp_path)}

    def shown(pid, name):
        if name == "stat" or pid != one.pid:
            return real(pid, name)
        seen.append(name)
        return b"" if len(seen) <= 2 * looks - done else real(pid, name)

    with child(["sleep", "900"], env=marks) as one:
        wait_until(lambda: real(one.pid, "cmdline").startswith(b"sleep"))
        monkeypatch.setattr(processes, "shown", shown)
        assert processes.marked_processes(str(tmp_path)) == {"server-0": [one.pid]}
        assert seen == ["environ", "cmdline"] * looks + ["environ"]


def test_a_process_that_shows_nothing_at_all_is_not_waited_for_long(monkeypatch):
    real, looks = processes.shown, []
    monkeypatch.setattr(processes.time, "sleep", looks.append)
    for kept, most in (("stat",), processes.LOOKS), (("stat", "cmdline"), processes.LOOKS_WITH_ARGUMENTS - 1):
        looks.clear()
        monkeypatch.setattr(processes, "shown", lambda pid, name, kept=kept: real(pid, name) if name in kept else b"")
        assert processes.environment_of(os.getpid()) == {} and len(looks) == most
    monkeypatch.setattr(processes, "process", lambda pid: None)  # it has ended
    assert processes.environment_of(os.getpid()) == {} and len(looks) == most
